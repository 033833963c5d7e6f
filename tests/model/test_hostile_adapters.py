"""Folders of adapters that contradict themselves, or hold what is no number: our error, by name."""

from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors.numpy

import cortiq
from cortiq.arguments import is_finite
from cortiq.errors import CortiqError, FormatError, UnsupportedError

MODEL = "synthetic:tiny-mixtral"
HUGE = 10**400
Q, HEAD = "model.layers.0.self_attn.q_proj", "lm_head"
EXPERTS = "model.layers.0.mlp.experts"
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 4}
STACKED = {"target_parameters": ["mlp.experts.down_proj"]}


def floats(*shape):
    return np.random.default_rng(1).normal(size=shape).astype(np.float32) / 9


def lora(module, rows=64, columns=64, rank=2):
    made = {"lora_A.weight": floats(rank, columns), "lora_B.weight": floats(rows, rank)}
    return {f"base_model.model.{module}.{part}": value for part, value in made.items()}


def whole(module, values, name="modules_to_save.weight"):
    return {f"base_model.model.{module}.{name}": values}


def generated(folder, config, tensors):
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    safetensors.numpy.save_file(tensors, folder / "adapter_model.safetensors")
    with cortiq.load(MODEL, backend="cpu", context=32, adapters=[f"a={folder}"]) as model:
        plain = model.generate([1, 2, 3], max_tokens=2, ignore_eos=True)
        made = model.generate([1, 2, 3], max_tokens=2, ignore_eos=True, adapter="a")
        return made.step_digests != plain.step_digests


@pytest.mark.parametrize(
    ("config", "tensors"),
    [({}, lora(Q)), ({}, whole(HEAD, floats(320, 64))), (STACKED, lora(EXPERTS, 64, 96, 8)),
     ({}, whole("model.embed_tokens", floats(320, 64)))],
)  # fmt: skip
def test_adapters_of_each_kind_change_a_model_without_files(config, tensors, tmp_path):
    assert generated(tmp_path, config, tensors)


@pytest.mark.parametrize(
    ("config", "tensors", "says"),
    [
        ({"lora_alpha": HUGE}, lora(Q), "lora_alpha"),
        ({"alpha_pattern": {"q_proj": HUGE}}, lora(Q), "lora_alpha"),
        ({"alpha_pattern": [1]}, lora(Q), "alpha_pattern"),
        ({"use_rslora": "no"}, lora(Q), "use_rslora"),
        (STACKED | {"lora_alpha": HUGE}, lora(EXPERTS, 64, 96, 8), "lora_alpha"),
        (STACKED | {"use_rslora": "no"}, lora(EXPERTS, 64, 96, 8), "use_rslora"),
        ({}, lora(Q) | whole(Q, floats(2, 64), "lora_A.default.weight"), "has both"),
        ({}, whole(HEAD, floats(320, 64)) | whole(HEAD, floats(320, 64), "weight"), "has both"),
        ({}, lora(Q) | whole(Q, floats(64, 64)), "twice, or changes it and holds it whole"),
        ({}, lora("model.layers.9.self_attn.q_proj"), "the model in memory does not have"),
        ({}, whole(Q, floats(64), "bias"), "the model in memory does not have"),
        ({}, whole("model.norm", floats(64)), "holds model.norm.weight whole"),
    ],
)
def test_what_contradicts_itself_or_is_no_number_is_refused(config, tensors, says, tmp_path):
    with pytest.raises((FormatError, UnsupportedError), match=says):
        generated(tmp_path, config, tensors)


def test_integers_that_no_float_holds_are_no_finite_numbers(tmp_path):
    assert is_finite(1) and is_finite(0.5) and is_finite(np.float32(2))
    for value in (HUGE, -HUGE, float("nan"), float("inf"), True, "1", None, 1j):
        assert not is_finite(value)
    file = tmp_path / "generation_config.json"
    from cortiq.formats.recommended import _recommended

    with pytest.raises(CortiqError):
        _recommended({"temperature": HUGE}, str(file))
    with pytest.raises(CortiqError):
        _recommended({"top_k": HUGE}, str(file))
