"""GGUF files of tiny checkpoints, written by the `gguf` package in llama.cpp's conventions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from cortiq.formats.checkpoint import open_checkpoint

Config = Mapping[str, Any]
SCALARS = {
    "context_length": "max_position_embeddings", "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers", "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads", "feed_forward_length": "intermediate_size",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps", "vocab_size": "vocab_size",
}  # fmt: skip
"""Metadata of every architecture, and where config.json has it."""
LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
"""Keys that a config.json may have for the number of layers."""
STACKED = re.compile(
    r"(model\.altup_\w*projections|model\.layers\.\d+\.self_attn\.[qk]_layernorm)"
    r"(?:\.norms)?\.\d+\.weight"
)
"""Matrices and norms of a folder that a file holds as one stack, in the order of their numbers."""
BARE = ("xielu.", "tokenizer.")
"""What keys begin with that have no architecture before them."""
LLAMA_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True)
class GGUF:
    """A family's tensors and metadata as llama.cpp's converter writes them.

    Attributes
    ----------
    architecture : `general.architecture`.
    values : the family's own metadata, by keys without the prefix; `None` leaves a common one out.
    permuted : rows of q and k are in pairs, as llama.cpp turns them.
    norm_offset : what is added to norms.
    tensors : more that is done to a tensor: (config, name, array) → names and arrays.
    extra : tensors that are not in the folder, by GGUF name.
    numbers : tensors of one number a layer that are metadata, by a regular expression of what
        follows the layer with a group, and what comes before the group's words in the key.
    geometries : those of the harness that a file can hold.
    names : the architecture whose names the tensors have, where the package does not know this one.
    marked : what cortiq adds to an architecture that two families share (`registry.MARKS`).
    """

    architecture: str
    values: Callable[[Config], Mapping[str, Any]] = lambda config: {}
    permuted: bool = False
    norm_offset: float = 0.0
    tensors: Callable[[Config, str, np.ndarray], Mapping[str, np.ndarray]] | None = None
    extra: Callable[[Config], Mapping[str, np.ndarray]] = lambda config: {}
    numbers: Mapping[str, str] = field(default_factory=dict)
    geometries: Sequence[str] = ("wide", "odd", "switched")
    names: str = ""
    marked: str = ""

    def __str__(self) -> str:
        return f"{self.architecture}+{self.marked}" if self.marked else self.architecture


def head_width(config: Config) -> int:
    """Width of a head."""
    named = ("num_attention_heads", "n_head", "n_heads")
    heads = next((config[k] for k in named if k in config), 1)
    width = next(config[k] for k in ("hidden_size", "n_embd", "d_model") if k in config)
    return config.get("head_dim") or width // heads


def permuted(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as llama.cpp orders them: pairs (i, i + d/2) of a head become neighbours."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def tensors_for_gguf(folder: Path, config: Config, how: GGUF) -> dict[str, np.ndarray]:
    """Tensors by GGUF name, through the package's own name map."""
    layers = next((config[k] for k in LAYERS if config.get(k)), 0)
    layers = layers or len(config["layers_block_type"])
    names = name_map(how.names or how.architecture, layers)
    tensors, experts, stacks = {}, {}, {}
    for name, values in load_file(folder / "model.safetensors").items():
        if number_key(how, name):
            continue
        if how.permuted and ".q_proj." in name:
            values = permuted(values, config["num_attention_heads"])
        if how.permuted and ".k_proj." in name:
            values = permuted(values, config["num_key_value_heads"])
        if name.endswith("norm.weight"):
            values = values + np.float32(how.norm_offset)
        if name.endswith("conv.conv.weight"):
            values = values[:, 0]
        name = name.replace("e_score_correction_bias", "e_score_correction.bias")
        given = how.tensors(config, name, values) if how.tensors else {name: values}
        for name, values in given.items():
            if re.search(r"\.experts\.\d+\.", name):
                layer, expert, role = (name.split(".")[i] for i in (2, 5, 6))
                experts.setdefault((layer, role), {})[int(expert)] = values
            elif stacked := STACKED.fullmatch(name):
                stacks.setdefault(stacked[1], []).append(values)
            else:
                mapped = names.get_name(name, try_suffixes=(".weight", ".bias", ".scale"))
                tensors[name if name.startswith(("blk.", "output_")) else mapped] = values
    tensors |= {f"{names.get_name(name)}.weight": np.stack(m) for name, m in stacks.items()}
    for (layer, role), parts in experts.items():
        mlp, block = f"model.layers.{layer}.mlp", f"layers.{layer}.feed_forward"
        found = [names.get_name(f"{prefix}.experts.{role}") for prefix in (mlp, block)]
        stack = np.stack([parts[e] for e in range(len(parts))])
        tensors[next(name for name in found if name) + ".weight"] = stack
    return tensors


def number_key(how: GGUF, name: str) -> str:
    """Key of a folder's tensor that is metadata; empty for all others."""
    rest = re.sub(r"model\.layers\.\d+\.", "", name)
    found = [(re.fullmatch(pattern, rest), start) for pattern, start in how.numbers.items()]
    return next((f"{start}.{match[1]}" for match, start in found if match), "")


def numbers_for_gguf(folder: Path, how: GGUF) -> dict[str, list[float]]:
    """Metadata that a folder holds as tensors, in the order of the layers."""
    found: dict[str, dict[int, float]] = {}
    for name, values in load_file(folder / "model.safetensors").items() if how.numbers else ():
        if key := number_key(how, name):
            found.setdefault(key, {})[int(name.split(".")[2])] = float(values.item())
    return {key: [parts[n] for n in sorted(parts)] for key, parts in found.items()}


def name_map(architecture: str, layers: int) -> Any:
    """The package's name map, with tensors of draft layers for every architecture.

    llama.cpp has them for all that have such layers; the package's release lags behind.
    """
    import gguf

    kind = next(k for k, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, layers)
    for tensor, keys in names.block_mappings_cfg.items():
        if tensor.name.startswith("NEXTN") or tensor.name == "LAYER_OUT_NORM":
            for layer in range(layers):
                found = tensor, gguf.TENSOR_NAMES[tensor].format(bid=layer)
                names.mapping |= dict.fromkeys((key.format(bid=layer) for key in keys), found)
    return names


def rope_values(config: Config) -> dict[str, Any]:
    """Metadata of the rotary table that several architectures have."""
    rope = config.get("rope_parameters") or {"rope_theta": 10000.0, "rope_type": "default"}
    rope = rope.get("full_attention", rope.get("compress", rope))
    values = {"rope.freq_base": rope["rope_theta"]}
    if rope["rope_type"] in ("linear", "yarn"):
        values["rope.scaling.type"] = rope["rope_type"]
        values["rope.scaling.factor"] = rope["factor"]
        original = rope.get("original_max_position_embeddings", 0)
        values["rope.scaling.original_context_length"] = original
        for beta in ("beta_fast", "beta_slow"):
            values[f"rope.scaling.yarn_{beta}"] = rope.get(beta)
    return values


def write_gguf(
    path: Path,
    folder: Path,
    how: GGUF,
    change: Callable[[dict[str, Any], dict[str, np.ndarray]], None] | None = None,
) -> None:
    """The checkpoint as GGUF in F32; `change` edits metadata and tensors before that."""
    config = dict(open_checkpoint(folder).config)
    tensors = tensors_for_gguf(folder, config, how)
    head = head_width(config)
    values = {key: config[name] for key, name in SCALARS.items() if config.get(name) is not None}
    values |= {"attention.key_length": head, "attention.value_length": head}
    values |= rope_values(config) | dict(how.values(config)) | numbers_for_gguf(folder, how)
    tensors |= how.extra(config)
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") == "llama3":
        tensors[LLAMA_FACTORS] = llama3_factors(rope, head)
    if change:
        change(values, tensors)
    emit(path, how.architecture, values, tensors)


def llama3_factors(rope: Config, dim: int) -> np.ndarray:
    """Return each frequency's divisor, as llama.cpp's converter stores for Llama 3."""
    frequencies = rope["rope_theta"] ** (-np.arange(0, dim, 2) / dim)
    turns = rope["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)


def emit(
    path: Path, architecture: str, values: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
) -> None:
    """Write the file; a value `None` is left out."""
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    if "tokenizer.ggml.model" not in values:
        writer.add_tokenizer_model("no_vocab")
    for key, value in values.items():
        key = key if key.startswith(BARE) else f"{architecture}.{key}"
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_uint32(key, value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(tensor))
    close_writer(writer)


def close_writer(writer: Any) -> None:
    """Write a file's header, metadata and tensors, and close it."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
