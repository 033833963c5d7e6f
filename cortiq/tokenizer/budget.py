"""What a chat template may use up, and the checks before steps that could use all at once."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from string import Formatter
from typing import Any

from jinja2.exceptions import SecurityError

__all__ = [
    "CHECKS",
    "Budget",
    "BudgetError",
    "measure",
    "operator_units",
    "refuse_wide_fields",
    "refuse_wide_percent",
]

CHARACTERS_PER_UNIT = 16
_INTEGER_BITS = 4096
_INDENT = 64
_LONG_NUMBER = re.compile(r"\d{4}")
_WIDE_PERCENT = re.compile(r"%(\([^)]*\))?[^a-zA-Z%]*?(\d{4}|\*)")


class BudgetError(Exception):
    """The template wants more steps, memory or time than it gets."""


class Budget:
    """What a rendering may still use.

    Parameters
    ----------
    units : one for each step or value, and one for every 16 characters of a text.
    seconds : wall-clock limit; units bound the usual cases, this the odd slow step.
    """

    def __init__(self, units: int, seconds: float) -> None:
        self._left = units
        self._deadline = time.monotonic() + seconds

    def spend(self, units: int) -> None:
        """Take `units`, at least one, off the budget."""
        self.require(units)
        self._left -= max(units, 1)
        if time.monotonic() > self._deadline:
            raise BudgetError("the template takes too long")

    def require(self, units: int) -> None:
        """Refuse a step that would cost more than is left, before it is done."""
        if units > self._left:
            raise BudgetError("the template does too much, or makes too large a text")

    def charge(self, value: Any) -> Any:
        """Pay for a value by its size, all it contains included; return it."""
        self.spend(measure(value, self._left))
        return value


def measure(value: Any, limit: int) -> int:
    """Units of a value with everything in it; stops counting above `limit`."""
    units, pending = 0, [value]
    while pending and units + len(pending) <= limit:
        item = pending.pop()
        units += 1
        if isinstance(item, str):
            units += len(item) // CHARACTERS_PER_UNIT
        elif isinstance(item, (list, tuple)):
            pending += item
        elif isinstance(item, dict):
            pending += [*item.keys(), *item.values()]
    return units + len(pending)


def operator_units(operator: str, left: Any, right: Any) -> int:
    """What the result of `left operator right` will cost, for `+`, `*`, `**` and `%`."""
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length()
        if operator in ("*", "**") and bits + right.bit_length() > _INTEGER_BITS:
            raise BudgetError("the template computes with too large a number")
        return 1
    if operator == "*":
        text, count = (left, right) if isinstance(right, int) else (right, left)
        return _shallow_units(text) * count if isinstance(count, int) else 1
    return _shallow_units(left) + _shallow_units(right)


def _shallow_units(value: Any) -> int:
    if isinstance(value, str):
        return 1 + len(value) // CHARACTERS_PER_UNIT
    return len(value) if isinstance(value, (list, tuple)) else 1


def _check_join(budget: Budget, values: Any, separator: Any = "", *more: Any, **_: Any) -> tuple:
    values = list(values)
    budget.require(len(values) * _shallow_units(str(separator)))
    return (values, separator, *more)


def _check_replace(budget: Budget, text: Any, old: Any, new: Any, *more: Any, **_: Any) -> tuple:
    text = text if isinstance(text, str) else str(text)
    budget.require(text.count(str(old)) * len(str(new)) // CHARACTERS_PER_UNIT)
    return (text, old, new, *more)


def _check_indent(budget: Budget, text: Any, *more: Any, **named: Any) -> tuple:
    width = named.get("width", more[0] if more else 4)
    if (len(width) if isinstance(width, str) else width) > _INDENT:
        raise BudgetError(f"the template indents by more than {_INDENT} characters")
    return (text, *more)


CHECKS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "join": _check_join,
    "replace": _check_replace,
    "indent": _check_indent,
}
"""Filter or method -> a check of its arguments, which returns them."""


def refuse_wide_fields(text: str) -> None:
    """Refuse a `str.format` text with a wide field (four digits) or a computed one (`{:{}}`)."""
    for _, _, form, _ in Formatter().parse(text):
        if form and ("{" in form or _LONG_NUMBER.search(form)):
            raise SecurityError("the template formats with a wide or computed field")


def refuse_wide_percent(text: str) -> None:
    """Refuse a `%` format text with a wide field or one of computed width (`%*d`)."""
    if _WIDE_PERCENT.search(text):
        raise SecurityError("the template formats with a wide or computed field")
