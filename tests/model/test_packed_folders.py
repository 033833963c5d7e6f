"""Folders as models are published: experts in MXFP4, and draft layers after the last one."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("transformers")

import numpy as np
import torch
from checkpoints import write
from families_experts import DEEPSEEK_V3, GPT_OSS
from family_harness import Edited, changed, logits_of
from safetensors.numpy import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from cortiq.errors import FormatError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program

SIZES = {"hidden_size": 64, "intermediate_size": 32}
STACKS = ("gate_up_proj", "down_proj")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One model twice: with random codes, and with what transformers makes of them."""
    family, packed = GPT_OSS, tmp_path_factory.mktemp("packed")
    case = family.case("wide")
    case.options.update(SIZES)
    plain = tmp_path_factory.mktemp("plain")
    model = write(case, plain)
    tensors, rng = load_file(plain / "model.safetensors"), np.random.default_rng(1)
    codes = dict(tensors)
    for name in tensors:
        if name.endswith(STACKS):
            experts, columns, rows = tensors[name].shape
            blocks = rng.integers(0, 256, (experts, rows, columns // 32, 16), np.uint8)
            scales = rng.integers(120, 126, blocks.shape[:-1], np.uint8)
            codes |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            parts = torch.tensor(blocks), torch.tensor(scales)
            made = convert_moe_packed_tensors(*parts, dtype=torch.float32)
            tensors[name] = made.numpy()
            del codes[name]
    save_file(tensors, plain / "model.safetensors")
    save_file(codes, packed / "model.safetensors")
    config = json.loads((plain / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["x"]}
    (packed / "config.json").write_text(json.dumps(config))
    return plain, packed, model.tokens


def test_codes_and_exponents_are_the_floats_they_stand_for(folders):
    plain, packed, tokens = folders
    expected = logits_of(open_checkpoint(plain), tokens)
    found = logits_of(open_checkpoint(packed), tokens)
    assert np.array_equal(found, expected)


def test_codes_stay_codes(folders):
    loaded = load_program(open_checkpoint(folders[1]))
    name = "model.layers.0.mlp.experts.gate_up_proj.weight"
    assert loaded.program.weights[name].layout == "MXFP4"
    raw = loaded.weights[name].parts["raw"]
    assert raw.nbytes == 5 * 64 * 64 // 32 * 17


@pytest.mark.parametrize("edit", ["missing", "short"])
def test_a_pair_that_does_not_fit_is_named(edit, folders, tmp_path):
    tensors = load_file(folders[1] / "model.safetensors")
    name = "model.layers.0.mlp.experts.down_proj_scales"
    if edit == "missing":
        del tensors[name]
    else:
        tensors[name] = tensors[name][:-1]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folders[1] / "config.json").read_bytes())
    with pytest.raises(FormatError, match="down_proj"):
        open_checkpoint(tmp_path)


def test_draft_layers_are_no_part_of_the_trunk(tmp_path):
    model = write(DEEPSEEK_V3.case("wide"), tmp_path)
    checkpoint = open_checkpoint(model.folder)
    head = Edited(checkpoint, extra="model.layers.2.eh_proj.weight")
    assert np.array_equal(logits_of(head, model.tokens), logits_of(checkpoint, model.tokens))
    none = changed(checkpoint, {"num_nextn_predict_layers": 0})
    with pytest.raises(FormatError, match=r"eh_proj\.weight is not used"):
        load_program(Edited(none, extra="model.layers.2.eh_proj.weight"))
