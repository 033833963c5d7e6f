"""Configurations from GGUF metadata: one key table for every family, and rotary scaling."""

from __future__ import annotations

import fnmatch
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Protocol

from cortiq.errors import FormatError, UnsupportedError
from cortiq.models.config import AnyConfig, BaseConfig, Keys, construct
from cortiq.models.rope import check_rope_values

GGUF_KEYS: Mapping[str, str] = {
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "feed_forward_length": "intermediate_size",
    "vocab_size": "vocab_size",
}
"""GGUF keys, without the architecture's prefix, and the field of a config that each fills."""

ROPE_GGUF_KEYS = frozenset({
    "rope.dimension_count", "rope.freq_base", "rope.scale_linear", "rope.scaling.attn_factor",
    "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.type",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
})  # fmt: skip
"""Keys that `gguf_rope` reads."""

HARMLESS_GGUF = frozenset({"rope.dimension_sections", "rope.scaling.finetuned"})
"""Keys that never change the graph. In a text all axes of a position are one, so that it does not
matter which of them turns which pair.
"""

ONLY_GGUF: Mapping[str, Any] = {"attention.causal": True}
"""Keys that would change the graph, accepted with the one value that does not."""

YARN_KEYS: Mapping[str, str] = {
    "rope.scaling.attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
EMBEDDING, HEAD, FREQUENCY_FACTORS = "token_embd.weight", "output.weight", "rope_freqs.weight"
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
ROPE_TENSORS: Mapping[str, frozenset[str]] = {
    "frequency_factors": frozenset({FREQUENCY_FACTORS}),
    "longrope": frozenset({SHORT_FACTORS, LONG_FACTORS}),
}
"""Tensors that `gguf_rope` reads, by the type of RoPE they make."""


class GGUFSource(Protocol):
    """What is read of an open checkpoint."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The metadata."""

    @property
    def architecture(self) -> str:
        """`general.architecture`, the prefix of the model's keys."""

    @property
    def tensor_names(self) -> Iterable[str]:
        """All names."""

    def __contains__(self, name: object) -> bool: ...

    def tensor(self, name: str) -> Any:
        """A tensor with `shape`, `type` and `raw`."""


def config_from_gguf(
    config_type: type[AnyConfig], keys: Keys, source: GGUFSource, *, where: str
) -> AnyConfig:
    """Read the metadata of a GGUF file.

    The vocabulary size and whether the head is tied come from the tensors; so do biases, by
    `keys.gguf_tensors`.

    Raises
    ------
    UnsupportedError : keys under the architecture's prefix that are unknown, by name.
    FormatError : a value is missing, of the wrong type, or contradicts another.
    """
    prefix = f"{source.architecture}."
    given = {
        key.removeprefix(prefix): _plain(source.config[key])
        for key in source.config
        if key.startswith(prefix)
    }
    table = {**GGUF_KEYS, **keys.gguf}
    known = {f.name for f in fields(config_type)}
    _refuse_unknown(given, table, known, keys, where)
    values = {name: given[key] for key, name in table.items() if key in given and name in known}
    if EMBEDDING not in source:
        raise FormatError(f"has no tensor {EMBEDDING!r}", where=where)
    rows = source.tensor(EMBEDDING).shape[0]
    if values.setdefault("vocab_size", rows) != rows:
        message = f"says vocab_size is {values['vocab_size']}, but {EMBEDDING} has {rows} rows"
        raise FormatError(message, where=where)
    values["tie_word_embeddings"] = HEAD not in source
    tensors = tuple(source.tensor_names)
    values |= {name: bool(fnmatch.filter(tensors, t)) for name, t in keys.gguf_tensors.items()}
    values["source"] = "gguf"
    layers, drafts = given.get("block_count"), given.get("nextn_predict_layers", 0)
    if type(layers) is int and type(drafts) is int:  # blocks count the layers that draft
        values["num_hidden_layers"] = layers - drafts
        if drafts and layers <= drafts:
            raise FormatError(f"has {layers} layers, of which {drafts} draft", where=where)
    config = construct(config_type, values, where=where)
    if "attention.value_length" not in keys.gguf:
        _check_value_length(given, config.head_width, where)
    values["rope_parameters"] = gguf_rope(given, source, config, where)
    return construct(config_type, values, where=where)


def _plain(value: Any) -> Any:
    """NumPy arrays as lists, and float32 numbers as the shortest decimal that gives them.

    1e-05 was 1e-05 before a converter rounded it to float32; RoPE reads decimals, so that a GGUF
    file and the folder it came from have the same tables.
    """
    if isinstance(value, float) and math.isfinite(value):
        shortest = (float(f"{value:.{digits}g}") for digits in range(1, 10))
        return next((s for s in shortest if _as_float32(s) == value), value)
    return value.tolist() if hasattr(value, "tolist") else value


def _as_float32(value: float) -> float:
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.inf


def _refuse_unknown(
    given: Mapping[str, Any], table: Mapping[str, str], known: set[str], keys: Keys, where: str
) -> None:
    unknown, only = [], {**ONLY_GGUF, **keys.gguf_only}
    for key, value in given.items():
        if key in ROPE_GGUF_KEYS | HARMLESS_GGUF or key == "attention.value_length":
            continue
        if key in only and value == only[key]:
            continue
        if table.get(key) not in known:
            unknown.append(f"{key} = {value!r}")
    if unknown:
        message = f"has metadata that cortiq does not support: {', '.join(sorted(unknown))}"
        hint = "a key that is not known could change what the model computes"
        raise UnsupportedError(message, where=where, hint=hint)


def _check_value_length(given: Mapping[str, Any], width: int, where: str) -> None:
    value = given.get("attention.value_length", width)
    if value != width:
        message = f"has value heads of {value} and key heads of {width}"
        raise UnsupportedError(message, where=where)


def gguf_rope(
    given: Mapping[str, Any], source: GGUFSource, config: BaseConfig, where: str
) -> dict[str, Any]:
    """RoPE parameters in the form of `BaseConfig`.

    `rope_freqs.weight`, if there is one, divides every frequency by a factor of its own; the two
    tensors of longrope make it that, whatever the metadata say.
    """
    check_rope_values({key: given[key] for key in ROPE_GGUF_KEYS & given.keys()}, where)
    dim = given.get("rope.dimension_count", config.head_width)
    rope: dict[str, Any] = {
        "rope_type": given.get("rope.scaling.type", "none"),
        "rope_theta": given.get("rope.freq_base", config.default_theta),
        "partial_rotary_factor": dim / config.head_width,
    }
    factor = given.get("rope.scaling.factor", given.get("rope.scale_linear", 0.0))
    if LONG_FACTORS in source or SHORT_FACTORS in source:
        return rope | _longrope(given, source, config, where)
    kind = rope["rope_type"]
    if kind == "none" or factor in (0.0, 1.0):
        rope["rope_type"] = "default"
    elif kind in ("linear", "yarn"):
        rope["factor"] = factor
    else:
        raise UnsupportedError(f"rope.scaling.type {kind!r} of a GGUF file", where=where)
    if kind == "yarn":
        original = given.get("rope.scaling.original_context_length", 0)
        rope["original_max_position_embeddings"] = original or config.max_position_embeddings
        rope |= {name: given[key] for key, name in YARN_KEYS.items() if key in given}
    if FREQUENCY_FACTORS in source:
        if rope["rope_type"] != "default":
            message = f"has both {FREQUENCY_FACTORS} and {rope['rope_type']} scaling"
            raise UnsupportedError(message, where=where)
        rope["rope_type"] = "frequency_factors"
        rope["factors"] = _factors(source, FREQUENCY_FACTORS, where)
    return rope


def _longrope(
    given: Mapping[str, Any], source: GGUFSource, config: BaseConfig, where: str
) -> dict[str, Any]:
    """Longrope's parameters; the amplitude is what the converter computed, 1 if it did not."""
    original = given.get("rope.scaling.original_context_length", 0)
    return {
        "rope_type": "longrope",
        "short_factor": [_plain(f) for f in _factors(source, SHORT_FACTORS, where)],
        "long_factor": [_plain(f) for f in _factors(source, LONG_FACTORS, where)],
        "original_max_position_embeddings": original or config.max_position_embeddings,
        "attention_factor": given.get("rope.scaling.attn_factor", 1.0),
    }


def _factors(source: GGUFSource, name: str, where: str) -> tuple[float, ...]:
    """The numbers of a vector."""
    if name not in source:
        raise FormatError(f"has no tensor {name!r}", where=where)
    tensor = source.tensor(name)
    if tensor.type != "F32" or len(tensor.shape) != 1:
        raise FormatError(f"{name} is not a vector of F32", where=where)
    return struct.unpack(f"<{tensor.shape[0]}f", tensor.raw.tobytes())
