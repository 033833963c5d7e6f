"""Folders whose modules are quantised in several ways, and stacks of quantised experts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")
pytest.importorskip("compressed_tensors")

import torch
import transformers
from checkpoints import Case, draw_weights
from family_harness import distance, logits_of
from quantised_folders import (
    BF16,
    F32,
    SIZES,
    TOKENS,
    compressed,
    fp8_blocks,
    fp8_one,
    integers,
    mlx,
    mxfp4,
    nvfp4,
)
from safetensors.torch import load_file, save_file

from cortiq.errors import FormatError
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.formats.quantisation import Quantisation
from cortiq.formats.quantised import read_quantised
from cortiq.formats.safetensors import open_safetensors
from cortiq.models import load_program
from cortiq.numerics.dequantise import embedding_rows
from cortiq.numerics.layouts import LAYOUTS, Weight

Pack = Callable[[torch.Tensor], tuple[dict[str, torch.Tensor], np.ndarray]]
FP8, FP4 = fp8_one("weight_scale", True, BF16), nvfp4(True)


def deepseek_v4(x: torch.Tensor) -> Any:
    """MXFP4 in bytes of two codes, I8, with exponents in E8M0."""
    parts, meant = mxfp4(x)
    exponents = parts["weight_scale"].view(torch.float8_e8m0fnu)
    return {"weight": parts["weight_packed"].view(torch.int8), "scale": exponents}, meant


def write(
    case: Case, folder: Any, packs: Mapping[str, Pack], said: Any, **more: Any
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Write a model whose tensors with these ends are packed; their meaning, and its logits."""
    config, plain, meant = case.build(), folder / "plain", {}
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    draw_weights(model)
    model.save_pretrained(plain)
    tensors, exact = {}, {}
    for name, value in load_file(plain / "model.safetensors").items():
        pack = next((packs[end] for end in packs if name.endswith(f"{end}.weight")), None)
        tensors[name] = exact[name] = value
        if pack is not None:
            parts, meant[name] = pack(value.float())
            stem = name.removesuffix("weight")
            del tensors[name]
            tensors |= {stem + end: part.contiguous() for end, part in parts.items()}
            exact[name] = torch.from_numpy(meant[name])
    save_file(exact, plain / "model.safetensors", metadata={"format": "pt"})
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    wanted = json.loads((plain / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(wanted | said))
    for name, value in more.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    double = transformers.AutoModelForCausalLM.from_pretrained(
        plain, dtype=torch.float64, experts_implementation="eager"
    )
    with torch.no_grad():
        logits = double(torch.tensor([TOKENS]), use_cache=False).logits[0].numpy()
    return meant, logits


LLAMA = Case("mixed", "LlamaConfig", SIZES | {"tie_word_embeddings": False})
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
PACKS = {**dict.fromkeys((*ATTENTION, "lm_head"), FP8), **dict.fromkeys(MLP, FP4)}


def group(form: str, bits: int, *targets: str) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "float"}
    return {"targets": list(targets), "format": form, "weights": weights}


COMPRESSED = {
    "quant_method": "compressed-tensors", "format": "mixed-precision",
    "config_groups": {
        "group_0": group("float-quantized", 8, "re:.*self_attn.(q|k|v|o)_proj", "lm_head"),
        "group_1": group("nvfp4-pack-quantized", 4, "Linear"),
        "group_2": group("nvfp4-pack-quantized", 4, "re:.*mlp.*"),
    },
    "ignore": ["re:.*vision.*"],
}  # fmt: skip


def layers_of(algorithms: Mapping[str, str]) -> dict[str, Any]:
    """modelopt's `quantized_layers` of the two layers, by the modules' names."""
    return {
        f"model.layers.{layer}.{'self_attn' if name in ATTENTION else 'mlp'}.{name}": {
            "quant_algo": algorithm
        }
        for layer in range(2)
        for name, algorithm in algorithms.items()
    } | {"lm_head": {"quant_algo": "FP8"}}


MODELOPT = {
    "producer": {"name": "modelopt"},
    "quantization": {
        "quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8",
        "quantized_layers": layers_of(
            {**dict.fromkeys(ATTENTION, "FP8"), **dict.fromkeys(MLP, "NVFP4")}
        ),
    },
}  # fmt: skip
OPT_PACKS = {**PACKS, **dict.fromkeys(MLP, nvfp4(False))}


@pytest.mark.parametrize("method", ["compressed-tensors", "modelopt"])
def test_each_module_keeps_its_own_codes(method, tmp_path):
    if method == "modelopt":
        _, logits = write(LLAMA, tmp_path, OPT_PACKS, {}, hf_quant_config=MODELOPT)
    else:
        _, logits = write(LLAMA, tmp_path, PACKS, {"quantization_config": COMPRESSED})
    checkpoint = open_checkpoint(tmp_path)
    layouts = {n: spec.layout for n, spec in load_program(checkpoint).program.weights.items()}
    for name in ("lm_head", "model.layers.1.self_attn.o_proj"):
        assert layouts[f"{name}.weight"] == "e4m3b32"
    assert layouts["model.layers.0.mlp.down_proj.weight"] == "e2m1b16"
    assert distance(logits_of(checkpoint, TOKENS), logits) < 1e-5


def test_what_mlx_leaves_null_is_usual_for_the_mode(tmp_path):
    """mlx-lm's recipes (`mixed_3_6`) write a null group size beside every module's bits."""
    pytest.importorskip("mlx")
    packs = {**dict.fromkeys(ATTENTION, mlx(3, 64)), **dict.fromkeys(MLP, mlx(6, 64))}
    own = {
        f"model.layers.{layer}.{'self_attn' if name in ATTENTION else 'mlp'}.{name}": {
            "group_size": None, "bits": 3 if name in ATTENTION else 6, "mode": "affine"
        }
        for layer in range(2)
        for name in packs
    }  # fmt: skip
    said = {"quantization": {"group_size": 32, "bits": 4, "mode": "affine"} | own}
    _, logits = write(LLAMA, tmp_path, packs, said)
    assert distance(logits_of(open_checkpoint(tmp_path), TOKENS), logits) < 1e-5


def with_groups(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    said = json.loads(json.dumps(COMPRESSED))
    change(said["config_groups"])
    return {"quantization_config": said}


def test_a_kind_that_no_group_of_a_module_has_is_named(tmp_path):
    write(LLAMA, tmp_path, PACKS, with_groups(lambda groups: groups["group_0"].pop("format")))
    open_checkpoint(tmp_path)  # a group without a format says no kind
    others = with_groups(lambda groups: groups["group_0"].update(format="int-quantized"))
    (tmp_path / "config.json").write_text(
        json.dumps(json.loads((tmp_path / "config.json").read_text()) | others)
    )
    with pytest.raises(FormatError, match="is fp8, and should be int8 or nvfp4"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model.layers.1.mlp.up_proj": {"quant_algo": "FP8"}}, "up_proj is nvfp4, and should be"),
        ({"model.embed_tokens": {"quant_algo": "FP8"}}, "embed_tokens is not quantised, and sho"),
        ({"lm_head": "FP8"}, "which is no object"),
    ],
)
def test_layers_that_modelopt_lists_otherwise_are_named(change, words, tmp_path):
    said = json.loads(json.dumps(MODELOPT))
    said["quantization"]["quantized_layers"] |= change
    write(LLAMA, tmp_path, OPT_PACKS, {}, hf_quant_config=said)
    with pytest.raises(FormatError, match=words):
        open_checkpoint(tmp_path)


EXPERTS = {
    "hidden_size": 128, "moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2,
    "head_dim": 32, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_MOE = Case("experts", "Qwen3MoeConfig", SIZES | EXPERTS)


@pytest.mark.parametrize(
    ("pack", "said", "layout"),
    [
        (fp8_blocks("weight_scale_inv", F32, 48, 64),
         {"quant_method": "fp8", "weight_block_size": [48, 64]}, "e4m3b32"),
        (nvfp4(False), {"quant_method": "modelopt", "quant_algo": "NVFP4"}, "e2m1b16"),
        (deepseek_v4, {"quant_method": "fp8", "expert_dtype": "fp4"}, "MXFP4"),
        (integers(4, 32, True, BF16),  # Kimi K2's
         compressed("pack-quantized", 4, group_size=32), "i4b32"),
    ],
    ids=["fp8", "nvfp4", "mxfp4", "int4"],
)  # fmt: skip
def test_experts_apart_are_a_stack(pack, said, layout, tmp_path):
    packs = {f"experts.{e}.{name}": pack for e in range(4) for name in MLP}
    meant, logits = write(QWEN3_MOE, tmp_path, packs, {"quantization_config": said})
    assert len(meant) == 2 * 4 * 3
    checkpoint = open_checkpoint(tmp_path)
    program = load_program(checkpoint).program
    stacks = [n for n in program.weights if ".experts." in n]
    assert stacks and {program.weights[name].layout for name in stacks} == {layout}
    assert distance(logits_of(checkpoint, TOKENS), logits) < 1e-5


def stacked(pack: Pack, count: int = 3) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    """Parts of several matrices, one behind the other, and what they mean."""
    packed = [pack(torch.randn(80, 96) * 2.0**e) for e in range(-2, count - 2)]
    parts = {end: torch.stack([one[end] for one, _ in packed]) for end in packed[0][0]}
    return parts, np.stack([meant for _, meant in packed])


BLOCKS = fp8_blocks("weight_scale_inv", F32, 48, 64)
SIZE = {"quant_method": "fp8", "weight_block_size": [48, 64]}
STACKS: dict[str, tuple[Pack, str]] = {
    "fp8-blocks": (BLOCKS, "e4m3b32"),
    "fp8-rows": (fp8_one("weight_scale", True, BF16), "e4m3b32"),
    "fp8-tensor": (fp8_one("weight_scale", False, F32), "e4m3b32"),
    "nvfp4": (nvfp4(True), "e2m1b16"),
    "nvfp4-modelopt": (nvfp4(False), "e2m1b16"),
    "mxfp4": (mxfp4, "MXFP4"),
    "mxfp4-I8": (deepseek_v4, "MXFP4"),
}


BARE = [name for name in STACKS if name.startswith("fp8")]
"""Stacks in FP8 are also written without `.weight`."""


@pytest.mark.parametrize(
    ("name", "bare"), [*((name, False) for name in STACKS), *((name, True) for name in BARE)]
)
def test_stacks_of_matrices_have_a_scale_each(name, bare, tmp_path):
    torch.manual_seed(3)
    pack, layout = STACKS[name]
    parts, meant = stacked(pack)
    stem = "m.experts.up_proj"
    between = "_" if bare else "."
    tensors = {
        stem if bare and end == "weight" else f"{stem}{between}{end}": part
        for end, part in parts.items()
    }
    if bare:  # as transformers names it
        tensors = {n.replace("_weight_scale_inv", "_scale_inv"): t for n, t in tensors.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    how = Quantisation(blocks=((48, 64),))
    tensor = read_quantised(open_safetensors(tmp_path), how).joined(
        stem if bare else f"{stem}.weight"
    )
    assert (tensor.type, tensor.shape) == (layout, meant.shape)
    rows = tensor.raw.reshape(tensor.height, -1)
    weight = Weight.from_bytes(LAYOUTS[layout], rows, (tensor.height, 96))
    found = embedding_rows(weight, np.arange(tensor.height)).reshape(meant.shape)
    assert np.abs(found - meant).max() <= 2.0**-22 * np.abs(meant).max()
    assert np.array_equal(tensor.make(75, 170), rows[75:170])
