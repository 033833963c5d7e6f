"""Rotary parameters of a GGUF file, as llama.cpp reads them."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

from cortiq.errors import FormatError, UnsupportedError
from cortiq.models.config import BaseConfig
from cortiq.models.gguf_keys import WINDOWS_BASE
from cortiq.models.open_checkpoint import OpenCheckpoint
from cortiq.models.rope import check_rope_values

DEFAULT_TYPE = "linear"
"""Type of a file that names none: a factor alone divides every position."""
KINDS = ("none", "linear", "yarn", "longrope")
FACTORS = ("rope.scaling.factor", "rope.scale_linear")
"""Keys of the factor, today's and the one of old files; 0 stands for 1."""
ATTENTION_FACTOR = "rope.scaling.attn_factor"
ORIGINAL_CONTEXT = "rope.scaling.original_context_length"
YARN_KEYS: Mapping[str, str] = {
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
ROPE_GGUF_KEYS = frozenset({
    "rope.dimension_count", "rope.freq_base", "rope.scaling.type", ATTENTION_FACTOR,
    ORIGINAL_CONTEXT, *FACTORS, *YARN_KEYS,
})  # fmt: skip
"""Keys that `gguf_rope` reads."""
USUAL_BASE = 10000.0
FREQUENCY_FACTORS = "rope_freqs.weight"
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
ROPE_TENSORS: Mapping[str, frozenset[str]] = {
    "frequency_factors": frozenset({FREQUENCY_FACTORS}),
    "longrope": frozenset({SHORT_FACTORS, LONG_FACTORS}),
}
"""Tensors that `gguf_rope` reads, by the type of RoPE they make."""


def gguf_rope(
    given: Mapping[str, Any], source: OpenCheckpoint, config: BaseConfig, where: str
) -> dict[str, Any]:
    """Return the RoPE parameters in the form of `BaseConfig`.

    `rope_freqs.weight`, if there is one, divides every frequency by a factor of its own; the two
    tensors of longrope select it. A key that the type of scaling does not use is refused, unless
    its value has no effect.

    Raises
    ------
    UnsupportedError : a type, or a key beside this type, that is not implemented.
    FormatError : a value that is no number, or two factors.
    """
    read = ROPE_GGUF_KEYS | ({WINDOWS_BASE} if config.windows_turn else set())
    check_rope_values({key: given[key] for key in read & given.keys()}, where)
    kind, factor = _kind(given, source, where), _factor(given, where)
    dim = given.get("rope.dimension_count", config.head_width)
    rope: dict[str, Any] = {
        "rope_type": kind,
        "rope_theta": _theta(given, config),
        "partial_rotary_factor": dim / config.head_width,
    }
    original = given.get(ORIGINAL_CONTEXT, 0) or config.max_position_embeddings
    if kind == "longrope":
        rope |= {"original_max_position_embeddings": original, **_longrope(given, source, where)}
    elif kind == "yarn":
        rope |= {"factor": factor, "original_max_position_embeddings": original}
        rope |= {name: given[key] for key, name in YARN_KEYS.items() if key in given}
    elif kind == "linear":
        rope["factor"] = factor
    if FREQUENCY_FACTORS in source:
        if kind != "default":
            message = f"has both {FREQUENCY_FACTORS} and {kind} scaling"
            raise UnsupportedError(message, where=where)
        rope["rope_type"] = "frequency_factors"
        rope["factors"] = _vector(source, FREQUENCY_FACTORS, where)
    return rope


def _theta(given: Mapping[str, Any], config: BaseConfig) -> Any:
    """Return the rotary base: that of windows, if it is given and they alone are rotated.

    A file that names none has llama.cpp's, whatever is usual in the family's folders.
    """
    base = given.get("rope.freq_base", USUAL_BASE)
    windowed = config.windows_turn and given.get("attention.sliding_window")
    return given.get(WINDOWS_BASE, base) if windowed else base


def _kind(given: Mapping[str, Any], source: OpenCheckpoint, where: str) -> str:
    """Return the `rope_type`, after checking that no key asks for more than that type does."""
    named, factor = given.get("rope.scaling.type", DEFAULT_TYPE), _factor(given, where)
    if named not in KINDS:
        raise UnsupportedError(f"rope.scaling.type {named!r} of a GGUF file", where=where)
    kind = "default" if named == "none" or factor == 1.0 else named
    if LONG_FACTORS in source or SHORT_FACTORS in source:
        kind = "longrope" if named != "yarn" else "yarn"
    unread = {ATTENTION_FACTOR: 1.0} if kind != "longrope" else dict.fromkeys(FACTORS, 1.0)
    if kind != "yarn" and named != "yarn":
        unread |= dict.fromkeys(YARN_KEYS, 0.0)
    for key, harmless in unread.items():
        if key in given and given[key] not in (harmless, 0.0):
            what = f"has {key} = {given[key]!r} beside {named} scaling"
            raise UnsupportedError(what, where=where)
    if named == "longrope" and kind != "longrope":
        raise FormatError(f"names longrope, but has no tensor {LONG_FACTORS!r}", where=where)
    return kind


def _factor(given: Mapping[str, Any], where: str) -> float:
    """Return the factor of the scaling, 1 where there is none."""
    found = {float(given[key]) or 1.0 for key in FACTORS if key in given}
    if len(found) > 1:
        raise FormatError(f"{' and '.join(FACTORS)} differ", where=where)
    return found.pop() if found else 1.0


def _longrope(given: Mapping[str, Any], source: OpenCheckpoint, where: str) -> dict[str, Any]:
    """Return longrope's factors; the amplitude is what the converter computed, 1 if it did not."""
    return {
        "short_factor": [shortest_decimals(f) for f in _vector(source, SHORT_FACTORS, where)],
        "long_factor": [shortest_decimals(f) for f in _vector(source, LONG_FACTORS, where)],
        "attention_factor": given.get(ATTENTION_FACTOR, 1.0),
    }


def _vector(source: OpenCheckpoint, name: str, where: str) -> tuple[float, ...]:
    """Return the numbers of a vector."""
    if name not in source:
        raise FormatError(f"has no tensor {name!r}", where=where)
    tensor = source.tensor(name)
    if tensor.type != "F32" or len(tensor.shape) != 1:
        raise FormatError(f"{name} is not a vector of F32", where=where)
    return struct.unpack(f"<{tensor.shape[0]}f", tensor.raw.tobytes())


def shortest_decimals(value: Any) -> Any:
    """Return float32 numbers as their shortest decimals, and arrays as lists.

    1e-05 was 1e-05 before a converter rounded it to float32; RoPE reads decimals, so that a GGUF
    file and the folder it came from have the same tables.
    """
    if isinstance(value, float) and math.isfinite(value):
        rounded = (float(f"{value:.{digits}g}") for digits in range(1, 10))
        return next((r for r in rounded if _as_float32(r) == value), value)
    return value.tolist() if hasattr(value, "tolist") else value


def _as_float32(value: float) -> float:
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.inf
