"""Kimi K3 against an evaluation of its formulas in float64, from folders and from GGUF files."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import kimi_k3_folders
import numpy as np
import pytest
import torch
from family_harness import distance, logits_of
from kimi_k3_folders import TEXT, tensors, write, write_gguf
from kimi_k3_oracle import logits

from cortiq.errors import CortiqError, FormatError
from cortiq.formats.checkpoint import open_checkpoint

INNER = "linear_attn_config"
TOKENS = np.random.default_rng(1).integers(0, TEXT["vocab_size"], 24).tolist()
GEOMETRIES = {
    "published": {},
    "plain": {
        "attn_res_block_size": None, "routed_expert_hidden_size": None, "q_lora_rank": None,
        "latent_moe_use_norm": False, "mla_use_output_gate": False, "hidden_act": "silu",
        f"{INNER}.gate_lower_bound": None, f"{INNER}.use_full_rank_gate": False,
    },
    "odd": {
        "hidden_size": 40, "num_attention_heads": 3, "num_key_value_heads": 3, "v_head_dim": 20,
        f"{INNER}.num_heads": 3, f"{INNER}.short_conv_kernel_size": 3, "attn_res_block_size": 1,
        "first_k_dense_replace": 2, "moe_renormalize": False, "activation_situ_linear_beta": None,
    },
}  # fmt: skip
"""Options of the tests' checkpoints, over those of `TEXT`."""
MOVES = [
    {"attn_res_block_size": 3}, {"activation_situ_beta": 1.4}, {"routed_scaling_factor": 1.4},
    {"activation_situ_linear_beta": 2.6}, {"activation_situ_linear_beta": None},
    {"hidden_act": "silu"}, {"num_experts_per_token": 2}, {"moe_renormalize": False},
    {"rms_norm_eps": 0.03}, {f"{INNER}.gate_lower_bound": -4.0},
    {f"{INNER}.gate_lower_bound": None},
]  # fmt: skip


def options(changes):
    """The text model's configuration with some keys changed; dots reach inside."""
    config = deepcopy(TEXT)
    for path, value in changes.items():
        *outer, key = path.split(".")
        (config[outer[0]] if outer else config)[key] = value
    return config


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The published geometry, as a folder."""
    path = tmp_path_factory.mktemp("kimi-k3")
    write(path, TEXT, tensors(TEXT))
    return path


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_float64_is_the_formulas(geometry, tmp_path):
    config = options(GEOMETRIES[geometry])
    held = tensors(config)
    write(tmp_path, config, held)
    assert (
        distance(logits_of(open_checkpoint(tmp_path), TOKENS), logits(config, held, TOKENS)) < 1e-5
    )


@pytest.mark.parametrize("geometry", ["published", "odd"])
def test_gguf_files_are_the_folder(geometry, tmp_path):
    pytest.importorskip("gguf")
    config = options(GEOMETRIES[geometry])
    held = tensors(config)
    write_gguf(tmp_path / "k3.gguf", config, held)
    found = logits_of(open_checkpoint(tmp_path / "k3.gguf"), TOKENS)
    assert distance(found, logits(config, held, TOKENS)) < 1e-5


@pytest.mark.parametrize("changes", MOVES, ids=str)
def test_every_option_moves_the_logits_as_the_formulas_say(changes, folder, tmp_path):
    config, held = options(changes), tensors(TEXT)
    before = logits(TEXT, held, TOKENS)
    wanted = logits(config, held, TOKENS)
    assert distance(before, wanted) > 1e-4
    write(tmp_path, config, held)
    assert distance(logits_of(open_checkpoint(tmp_path), TOKENS), wanted) < 1e-5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mla_use_nope": False}, "mla_use_nope"),
        ({"topk_method": "greedy"}, "topk_method"),
        ({"num_nextn_predict_layers": 1}, "num_nextn_predict_layers"),
        ({f"{INNER}.gate_low_rank": 4}, "gate_low_rank"),
        ({f"{INNER}.gate_lower_bound": "low"}, "gate_lower_bound is 'low'"),
        ({f"{INNER}.gate_lower_bound": 2.0}, "decay_bound"),
        ({f"{INNER}.use_full_rank_gate": 1}, "use_full_rank_gate 1"),
        ({"gate_lower_bound": -5.0}, "gate_lower_bound"),
        ({"activation_situ_beta": 0.0}, "gate_cap"),
        ({"hidden_act": "tanhish"}, "activation 'tanhish'"),
    ],
    ids=str,
)
def test_what_is_not_known_is_refused_by_name(changes, words, folder, tmp_path):
    write(tmp_path, options(changes), tensors(TEXT))
    with pytest.raises(CortiqError, match=words):
        logits_of(open_checkpoint(tmp_path), TOKENS)


@pytest.mark.parametrize(
    "changes",
    [
        {"attn_res_block_size": None}, {"latent_moe_use_norm": False},
        {"mla_use_output_gate": False}, {"routed_expert_hidden_size": 32},
        {f"{INNER}.use_full_rank_gate": False}, {"num_shared_experts": 1},
    ],
    ids=str,
)  # fmt: skip
def test_tensors_that_contradict_the_configuration_are_refused(changes, tmp_path):
    write(tmp_path, options(changes), tensors(TEXT))
    with pytest.raises(FormatError, match=r"does not hold the tensors"):
        logits_of(open_checkpoint(tmp_path), TOKENS)


def test_every_key_of_a_gguf_file_moves_the_logits_or_is_refused(tmp_path):
    """Three seconds: every one of the keys loads the file."""
    pytest.importorskip("gguf")
    write_gguf(tmp_path / "k3.gguf", TEXT, tensors(TEXT))
    checkpoint, without = open_checkpoint(tmp_path / "k3.gguf"), []
    right = logits_of(checkpoint, TOKENS[:3])
    for key, value in checkpoint.config.items():
        if not key.startswith("kimi-k3.") or key == "kimi-k3.context_length":
            continue
        kinds = {bool: lambda v: not v, int: lambda v: v + 1, float: lambda v: 2 * v}
        other = kinds.get(type(value), lambda v: 0)(value)
        changed = replace(checkpoint, config={**checkpoint.config, key: other})
        try:
            if distance(right, logits_of(changed, TOKENS[:3])) < 1e-9:
                without.append(key)
        except CortiqError:
            continue
    assert not without


@pytest.mark.parametrize("key", ["attn_res.block_size", "activation.situ_beta"])
def test_a_gguf_file_without_a_key_that_llama_cpp_needs_is_refused(key, tmp_path, monkeypatch):
    pytest.importorskip("gguf")
    whole = kimi_k3_folders.metadata(TEXT)
    monkeypatch.setattr(kimi_k3_folders, "metadata", lambda c: whole | {key: None})
    write_gguf(tmp_path / "k3.gguf", TEXT, tensors(TEXT))
    with pytest.raises(FormatError, match=key.partition(".")[2]):
        logits_of(open_checkpoint(tmp_path / "k3.gguf"), TOKENS)


def test_experts_may_be_mxfp4_as_published(tmp_path):
    pytest.importorskip("compressed_tensors")
    from quantised_folders import compressed, mxfp4

    ignored = ("self_attn", "shared_experts", r"mlp\.(gate|up|gate_up|down)_proj", "lm_head")
    said = compressed("mxfp4-pack-quantized", 4, "float", group_size=32, strategy="group")
    said["ignore"] = [f"re:.*{part}.*" for part in (*ignored, "vision_tower", "mm_projector")]
    config = options({"routed_expert_hidden_size": 32, "quantization_config": said})
    held = tensors(config)
    packed, meant = dict(held), dict(held)
    for name, values in held.items():
        if ".experts." in name:
            parts, exact = mxfp4(torch.tensor(values))
            meant[name] = exact
            del packed[name]
            stem = name.removesuffix("weight")
            packed |= {f"{stem}{end}": part.numpy() for end, part in parts.items()}
    write(tmp_path, config, packed)
    found = logits_of(open_checkpoint(tmp_path), TOKENS)
    assert distance(found, logits(config, meant, TOKENS)) < 1e-5


def test_padded_decays_are_cut_and_short_ones_refused(tmp_path):
    held = tensors(TEXT)
    name = "model.layers.0.self_attn.A_log"
    write(tmp_path / "cut", TEXT, held | {name: held[name][:4]})
    found = logits_of(open_checkpoint(tmp_path / "cut"), TOKENS)
    assert distance(found, logits(TEXT, held, TOKENS)) < 1e-5
    write(tmp_path / "short", TEXT, held | {name: held[name][:3]})
    with pytest.raises(FormatError, match=r"A_log is \[3\], should be \[4\]"):
        logits_of(open_checkpoint(tmp_path / "short"), TOKENS)
