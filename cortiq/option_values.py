"""What values an option takes: the table's entry, and the check against it."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cortiq.errors import OptionError, shown

FLOAT_LIMIT = 2**1023
"""A bound on integers that are given for floats, so that converting them cannot overflow."""


@dataclass(frozen=True)
class Spec:
    """What is known of an option besides its default.

    Attributes
    ----------
    help : the sentence `--help` shows.
    type : of one value: str, int, float or bool.
    least, most : bounds of a number, both allowed.
    above : a bound that is not allowed itself.
    choices : the words allowed.
    repeated : a tuple of values: the flag may be given again, the environment separates by commas.
    bias : pairs ID=VALUE, kept as a mapping.
    bits : whether a value can change a logit or a token.
    ends : whether a value can change where a text ends.
    metavar : how `--help` names the value.
    instead : an object that Python may give in place of the text: what it is, and its methods.
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


def checked(name: str, spec: Spec, value: Any) -> Any:
    """A value in the type it is kept in; OptionError when it is not allowed."""
    if spec.bias:
        return _checked_bias(name, value)
    if spec.repeated:
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            value = (value,)
        return tuple(_checked_one(name, spec, item) for item in value)
    return value if value is None else _checked_one(name, spec, value)


def _checked_bias(name: str, value: Any) -> dict[int, float]:
    token, amount = Spec("", int, least=0), Spec("", float)
    if value is not None and not isinstance(value, Mapping):
        what = f"must be a mapping of token ids to numbers, not {shown(value)}"
        raise OptionError(name, what)
    pairs = (value or {}).items()
    return {_checked_one(name, token, i): _checked_one(name, amount, b) for i, b in pairs}


def _checked_one(name: str, spec: Spec, value: Any) -> Any:
    if spec.type is float and type(value) is int:
        value = float(value) if abs(value) < FLOAT_LIMIT else float("inf")
    if spec.type is int and not isinstance(value, bool):
        with contextlib.suppress(TypeError):  # NumPy arrays have __index__ too, and refuse
            value = operator.index(value)
    if spec.instead is not None and all(hasattr(value, name) for name in spec.instead[1]):
        return value
    if type(value) is not spec.type or not _allowed(spec, value):
        raise OptionError(name, f"must be {described(spec)}, not {shown(value)}")
    return value


def _allowed(spec: Spec, value: Any) -> bool:
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


def described(spec: Spec) -> str:
    """What values an option takes, for a sentence."""
    if spec.choices:
        return "one of " + ", ".join(spec.choices)
    if spec.bias:
        return "pairs ID=VALUE"
    kind = {int: "an integer", float: "a finite number", bool: "true or false", str: "a text"}
    limits = (("above", spec.above), ("of at least", spec.least), ("at most", spec.most))
    bounds = [f"{word} {_plain(limit)}" for word, limit in limits if limit is not None]
    instead = f"or {spec.instead[0]}" if spec.instead else ""
    return " ".join(filter(None, [kind[spec.type], " and ".join(bounds), instead]))
