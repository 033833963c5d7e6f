"""Specifications of options, and the check of values against them."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cortiq.errors import OptionError, RequestError, shown

TRUE_WORDS = ("1", "true", "yes", "on")
FALSE_WORDS = ("0", "false", "no", "off")
FLOAT_LIMIT = 2**1023
"""Bound on integers given for floats, so that their conversion cannot overflow."""


@dataclass(frozen=True)
class OptionSpec:
    """Specification of an option, except its default.

    Attributes
    ----------
    help : the sentence that `--help` shows.
    type : type of one value: str, int, float or bool.
    least, most : inclusive bounds of a number.
    above : exclusive lower bound.
    choices : the allowed words.
    repeated : a tuple of values: the flag may be repeated; in the environment, separated by commas.
    bias : pairs ID=VALUE, kept as a mapping.
    bits : whether a value can change a logit or a token.
    ends : whether a value can change where a text ends.
    metavar : name of the value in `--help`.
    instead : an object that Python code may pass instead of a text: its name, and its methods.
    hidden : commands have no flag for it, since another flag says it.
    """

    help: str
    type: type = str
    least: float | None = None
    most: float | None = None
    above: float | None = None
    choices: tuple[str, ...] = ()
    repeated: bool = False
    bias: bool = False
    bits: bool = False
    ends: bool = False
    metavar: str | None = None
    instead: tuple[str, tuple[str, ...]] | None = None
    hidden: bool = False


def checked_value(name: str, spec: OptionSpec, value: Any) -> Any:
    """Return a value converted to the option's type; raise OptionError if it is not allowed."""
    if spec.bias:
        return _checked_bias(name, value)
    if spec.repeated:
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            value = (value,)
        return tuple(_checked_one(name, spec, item) for item in value)
    return value if value is None else _checked_one(name, spec, value)


def _checked_bias(name: str, value: Any) -> dict[int, float]:
    token, amount = OptionSpec("", int, least=0), OptionSpec("", float)
    if value is not None and not isinstance(value, Mapping):
        what = f"must be a mapping of token ids to numbers, not {shown(value)}"
        raise OptionError(name, what)
    pairs = (value or {}).items()
    return {_checked_one(name, token, i): _checked_one(name, amount, b) for i, b in pairs}


def _checked_one(name: str, spec: OptionSpec, value: Any) -> Any:
    if spec.type is float and type(value) is int:
        value = float(value) if abs(value) < FLOAT_LIMIT else float("inf")
    if spec.type is int and not isinstance(value, bool):
        with contextlib.suppress(TypeError):  # NumPy arrays have __index__ too, and refuse
            value = operator.index(value)
    if spec.instead is not None and all(hasattr(value, name) for name in spec.instead[1]):
        return value
    if type(value) is not spec.type or not _allowed(spec, value):
        raise OptionError(name, f"must be {value_description(spec)}, not {shown(value)}")
    return value


def _allowed(spec: OptionSpec, value: Any) -> bool:
    if spec.choices:
        return value in spec.choices
    if spec.type not in (int, float):
        return True
    low = spec.least is None or value >= spec.least
    high = spec.most is None or value <= spec.most
    finite = abs(value) < float("inf")
    return finite and low and high and (spec.above is None or value > spec.above)


def _plain(number: float) -> str:
    return f"{number:g}" if isinstance(number, float) else str(number)


def value_description(spec: OptionSpec) -> str:
    """Return a description of the values that an option takes."""
    if spec.choices:
        return "one of " + ", ".join(spec.choices)
    if spec.bias:
        return "pairs ID=VALUE"
    kind = {int: "an integer", float: "a finite number", bool: "true or false", str: "a text"}
    limits = (("above", spec.above), ("of at least", spec.least), ("at most", spec.most))
    bounds = [f"{word} {_plain(limit)}" for word, limit in limits if limit is not None]
    instead = f"or {spec.instead[0]}" if spec.instead else ""
    return " ".join(filter(None, [kind[spec.type], " and ".join(bounds), instead]))


def from_text(name: str, spec: OptionSpec, text: str, where: str) -> Any:
    """Parse an option's value from a text, such as an environment variable.

    Parameters
    ----------
    where : source of the text, for the message.

    Raises
    ------
    RequestError : the option cannot have this value.
    """
    parts = text.split(",") if spec.repeated or spec.bias else [text]
    try:
        values = parse_bias(parts) if spec.bias else tuple(_word(spec, part) for part in parts)
        return checked_value(name, spec, values if spec.repeated or spec.bias else values[0])
    except (ValueError, OptionError):
        raise RequestError(f"{shown(text)} is not {value_description(spec)}", where=where) from None


def _word(spec: OptionSpec, text: str) -> Any:
    if spec.type is not bool:
        return spec.type(text)
    word = text.strip().lower()
    if word not in (*TRUE_WORDS, *FALSE_WORDS):
        raise ValueError(text)
    return word in TRUE_WORDS


def parse_bias(pairs: Sequence[str]) -> dict[int, float]:
    """Parse `ID=VALUE` pairs; raise ValueError if one is no pair of numbers."""
    split = (pair.partition("=") for pair in pairs)
    return {int(token): float(value) for token, _, value in split}
