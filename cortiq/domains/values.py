"""Domains of one value: integers, numbers, words, and types."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from numbers import Integral
from numbers import Real as RealNumber
from typing import Annotated, Any, NamedTuple

import numpy as np

from cortiq.errors import shown

MAX_COUNT = 2**31 - 1
"""Largest integer of an option: kernels hold them as int32."""


FLOAT32_LIMIT = 2.0**127
"""Well below the largest float32."""


class Violation(NamedTuple):
    """Options that are outside their domain, as `name is value`, and the domain in words."""

    options: str
    wanted: str

    def __str__(self) -> str:
        return f"{self.options}; {self.wanted}"


class Domain:
    """Base of the domains of one value."""

    def text(self) -> str:
        """Return what is admitted, in words, as the object of `takes`."""
        raise NotImplementedError

    def admits(self, value: Any) -> bool:
        """Return whether the value lies in the domain."""
        raise NotImplementedError

    def violations(self, value: Any, name: str) -> Iterator[Violation]:
        """Yield what is wrong with the value of this option."""
        if not self.admits(value):
            yield Violation(f"{name} is {shown(value)}", f"it takes {self.text()}")


@dataclass(frozen=True)
class Integer(Domain):
    """Integers from `least` to `most` that are multiples of `multiple`."""

    least: int = -MAX_COUNT
    most: int = MAX_COUNT
    multiple: int = 1

    def text(self) -> str:
        """Return both bounds."""
        kind = "an integer" if self.multiple == 1 else f"a multiple of {self.multiple}"
        most = "2^31 - 1" if self.most == MAX_COUNT else self.most
        return f"{kind} from {self.least} to {most}"

    def admits(self, value: Any) -> bool:
        """Return whether it is such an integer; `True` is none."""
        whole = type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))
        return whole and self.least <= value <= self.most and int(value) % self.multiple == 0


@dataclass(frozen=True)
class Real(Domain):
    """Numbers from `low` to `high`.

    Attributes
    ----------
    above, below : the lower, or the upper bound is excluded.
    signed : bounds are those of the magnitude.
    zero : +0 is admitted too.
    single : the number rounded to float32 must lie in the bounds too.
    """

    low: float
    high: float
    above: bool = False
    below: bool = False
    signed: bool = False
    zero: bool = False
    single: bool = True

    def text(self) -> str:
        """Return both bounds, large powers of two as such."""
        kind = "a number of magnitude" if self.signed else "a number"
        low = f"above {_power(self.low)} and" if self.above else f"from {_power(self.low)}"
        high = f"{'below' if self.below else 'up to'} {_power(self.high)}"
        high = high if self.above or not self.below else f"to {high}"
        return f"{kind} {low} {high}" + (", or 0" if self.zero else "")

    def admits(self, value: Any) -> bool:
        """Return whether it is such a number, and stays one when it is rounded."""
        if type(value) is not float and (
            isinstance(value, bool) or not isinstance(value, RealNumber)
        ):
            return False
        try:
            number = float(value)
        except OverflowError:
            return False
        if number == 0 and self.zero:
            return math.copysign(1, number) > 0
        if not self._holds(number):
            return False
        # Beyond float32 NumPy would warn, and rounded numbers have no bounds there.
        return not self.single or (
            abs(number) < FLOAT32_LIMIT and self._holds(float(np.float32(number)))
        )

    def _holds(self, number: float) -> bool:
        size = abs(number) if self.signed else number
        low = self.low < size if self.above else self.low <= size
        return low and (size < self.high if self.below else size <= self.high)


def _power(bound: float) -> str:
    mantissa, exponent = math.frexp(abs(bound)) if math.isfinite(bound) else (0.0, 0)
    sign = "-" if bound < 0 else ""
    return f"{sign}2^{exponent - 1}" if mantissa == 0.5 and abs(exponent) > 20 else f"{bound:g}"


@dataclass(frozen=True)
class OneOf(Domain):
    """One of some words."""

    words: tuple[str, ...]

    def __init__(self, words: Iterable[str]) -> None:
        object.__setattr__(self, "words", tuple(words))

    def text(self) -> str:
        """Return all of them."""
        return f"one of {', '.join(self.words)}"

    def admits(self, value: Any) -> bool:
        """Return whether it is one of them."""
        return isinstance(value, str) and value in self.words


@dataclass(frozen=True)
class TypedValue(Domain):
    """Any value of a type; numbers are finite."""

    type: type

    def text(self) -> str:
        """Return the type's name."""
        names = {bool: "true or false", int: "an integer", float: "a finite number", str: "a text"}
        return names.get(self.type, f"a {self.type.__name__}")

    def admits(self, value: Any) -> bool:
        """Return whether it has the type; an integer is a number, `True` is neither."""
        if self.type is int:
            return Integer().admits(value)
        if self.type is float:
            number = isinstance(value, RealNumber) and not isinstance(value, bool)
            return number and abs(value) <= sys.float_info.max
        return isinstance(value, self.type)


@dataclass(frozen=True)
class NoneOnly(Domain):
    """`None` alone."""

    def text(self) -> str:
        """Return its name."""
        return "None"

    def admits(self, value: Any) -> bool:
        """Return whether it is `None`."""
        return value is None


Count = Annotated[int, Integer(1)]
"""A number of things of which there is one at least."""

Size = Annotated[int, Integer(0)]
"""A number of things, or 0 for none."""
