"""Sampling that a model's files recommend, under the names of our options.

Sources: `generation_config.json` as transformers writes it, and the keys `general.sampling.*` of
GGUF. A file that recommends any way to sample means temperature 1 where it names none, as
transformers does; `do_sample: false` recommends the most likely token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cortiq.arguments import is_finite
from cortiq.errors import FormatError, shown

Sampling = Mapping[str, float | int]
"""Values by the name of the option."""

BOUNDS = {
    "temperature": (0.0, math.inf),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.0, math.inf),
}
"""Least and greatest value of each number; of `top_k` any integer, none above 0 being no limit."""
SHAPES = ("temperature", "top_k", "top_p", "min_p")
"""Options that recommend a way to sample; a penalty alone does not."""
NEUTRAL: Sampling = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
GGUF_NAMES = {
    "temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}  # fmt: skip
DIGITS = 7
"""Decimal digits of a float32 that are kept: files store 0.6 as 0.60000002."""


def of_generation_config(config: Mapping[str, Any], where: str) -> Sampling:
    """Return what a generation_config.json recommends; empty if it recommends nothing.

    Raises
    ------
    FormatError : a value is no number, or out of range.
    """
    if config.get("do_sample") is False:
        return {"temperature": 0.0}
    return _recommended({name: config.get(name) for name in (*BOUNDS, "top_k")}, where)


def of_gguf(metadata: Mapping[str, Any], where: str) -> Sampling:
    """Return what the keys `general.sampling.*` recommend; errors as above."""
    given = {name: metadata.get(f"general.sampling.{key}") for name, key in GGUF_NAMES.items()}
    return _recommended(given, where)


def _recommended(given: Mapping[str, Any], where: str) -> Sampling:
    found = {
        name: _checked(name, value, where) for name, value in given.items() if value is not None
    }
    if any(name in found for name in SHAPES):
        found.setdefault("temperature", 1.0)
    return {name: value for name, value in found.items() if NEUTRAL.get(name) != value}


def _checked(name: str, value: Any, where: str) -> float | int:
    """Return a value as its option takes it; a `top_p` or penalty of 0 is none."""
    low, high = BOUNDS.get(name, (-math.inf, math.inf))
    number = is_finite(value)
    whole = name != "top_k" or (number and float(value).is_integer())
    if not number or not whole or not low <= value <= high:
        hint = "correct the value, or remove it from the file"
        raise FormatError(f"recommends the {name} {shown(value)}", where=where, hint=hint)
    if name == "top_k":
        return max(int(value), 0)
    rounded = float(f"{value:.{DIGITS}g}")
    return 1.0 if rounded == 0 and name in ("top_p", "repetition_penalty") else rounded
