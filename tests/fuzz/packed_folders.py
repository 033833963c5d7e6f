"""The small folder with matrices as other programs store them: seeds of `files`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from .packed import late_parts, mixed_parts, other_parts, packed_parts, quark_parts, stacked_parts
from .small_folder import CONFIG, FOLDER, SHAPES, WIDTH, folder_files, weights


def _stored(values: dict[str, tuple[str, np.ndarray]]) -> bytes:
    """A safetensors file of arrays and the names of their types, narrow floats among them."""
    header, body = {}, b""
    for name, (kind, array) in values.items():
        data = np.ascontiguousarray(array).tobytes()
        place = [len(body), len(body) + len(data)]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": place}
        body += data
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def mixed_files() -> dict[str, bytes]:
    """The folder with matrices of two precisions, as compressed-tensors says it."""
    kinds = {"float-quantized": (8, "re:.*self_attn.*"), "nvfp4-pack-quantized": (4, "Linear")}
    groups = {
        f"group_{i}": {"targets": [target], "format": form,
                       "weights": {"num_bits": bits, "type": "float"}}
        for i, (form, (bits, target)) in enumerate(kinds.items())
    }  # fmt: skip
    said = {"quant_method": "compressed-tensors", "format": "mixed-precision",
            "config_groups": groups, "ignore": ["lm_head"]}  # fmt: skip
    return _packed_files(mixed_parts, {"quantization_config": said})


def quark_files() -> dict[str, bytes]:
    """The folder with matrices that Quark quantised."""
    codes = {"dtype": "uint4", "qscheme": "per_group"}
    said = {"quant_method": "quark", "export": {"pack_method": "order"}, "exclude": ["lm_head"],
            "global_quant_config": {"weight": codes}}  # fmt: skip
    return _packed_files(quark_parts, {"quantization_config": said})


def quantised_files() -> dict[str, bytes]:
    """The folder with matrices that four programs quantised."""
    said = {"quantization_config": {"quant_method": "auto-round", "bits": 4}}
    return _packed_files(packed_parts, said)


def other_files() -> dict[str, bytes]:
    """The folder with matrices that four other programs quantised, without a word of it."""
    return _packed_files(other_parts, {})


def _packed_files(
    parts_of: Callable[..., Any],
    said: Mapping[str, Any],
    others: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> dict[str, bytes]:
    tensors = weights()
    values = {
        "model.embed_tokens.weight": ("F32", tensors["token_embd"]),
        "model.norm.weight": ("F32", np.ones(WIDTH, "f4")),
    }
    for name, own in FOLDER.items():
        stem, shape = f"model.layers.0.{own}", {**SHAPES, **others}[name]
        matrix = len(shape) == 2 and shape[1] % 32 == 0
        plain = {f"{stem}.weight": ("F32", tensors[name])}
        values |= parts_of(stem, *shape) if matrix else plain
    return {**folder_files(), "config.json": json.dumps({**CONFIG, **said}).encode(),
            "model.safetensors": _stored(values)}  # fmt: skip


def late_files() -> dict[str, bytes]:
    """The folder with NF4, GPTQ's columns in an order of their own, and HQQ's axis 0."""
    wide = {"ffn_gate": (64, WIDTH), "ffn_up": (64, WIDTH), "ffn_down": (WIDTH, 64)}
    return _packed_files(late_parts, {"intermediate_size": 64}, wide)


def expert_files() -> dict[str, bytes]:
    """A mixture of experts: stacks of matrices that lie apart, in NVFP4, FP8 and plain floats."""
    tensors, experts = weights(), 2
    values = {
        "model.embed_tokens.weight": ("F32", tensors["token_embd"]),
        "model.norm.weight": ("F32", np.ones(WIDTH, "f4")),
    }
    for name, own in FOLDER.items():
        if not own.startswith("mlp."):
            values[f"model.layers.0.{own}.weight"] = ("F32", tensors[name])
    stem = "model.layers.0.block_sparse_moe"
    values[f"{stem}.gate.weight"] = ("F32", tensors["ffn_gate"][:experts])
    for expert in range(experts):
        values |= stacked_parts(f"{stem}.experts.{expert}")
    config = {k: v for k, v in CONFIG.items() if k != "rope_scaling"}
    config |= {"model_type": "mixtral", "num_local_experts": experts, "num_experts_per_tok": 1,
               "intermediate_size": 64}  # fmt: skip
    return {**folder_files(), "config.json": json.dumps(config).encode(),
            "model.safetensors": _stored(values)}  # fmt: skip
