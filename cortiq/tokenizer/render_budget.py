"""The budget of a chat template's rendering, and the cost of values."""

from __future__ import annotations

import time
from typing import Any

from jinja2.runtime import Macro

__all__ = [
    "CHARACTERS_PER_UNIT",
    "INTEGER_BITS",
    "VIEWS",
    "RenderBudget",
    "BudgetError",
    "depth",
    "measure",
]

CHARACTERS_PER_UNIT = 16
INTEGER_BITS = 1 << 14
"""Largest integer; more digits than that are in no JSON text that Python reads."""
_BITS_PER_UNIT = 64
_EMPTY: dict[str, Any] = {}
VIEWS = (type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items()))
"""A mapping's keys, values and items, which print all that is in it."""
_LISTS: Any = (list, tuple, set, *VIEWS)


class BudgetError(Exception):
    """The template needs more steps, memory or time than it may use."""


class RenderBudget:
    """The units that a rendering may still spend.

    Parameters
    ----------
    units : one for each step or value, and one for every 16 characters of a text.
    seconds : limit of the thread's processor time, beside the units. Time that others take on a
        busy machine does not count, so the same template is not refused for it.
    """

    def __init__(self, units: int, seconds: float) -> None:
        self._left = units
        self._deadline = time.thread_time() + seconds

    def spend(self, units: int) -> None:
        """Take `units`, at least one, off the budget."""
        self.require(units)
        self._left -= max(units, 1)
        if time.thread_time() > self._deadline:
            raise BudgetError("the template takes too long")

    def require(self, units: int) -> None:
        """Refuse a step that would cost more than is left, before it runs."""
        if units > self._left:
            raise BudgetError("the template takes too many steps, or makes too large a text")

    def charge(self, value: Any) -> Any:
        """Charge a value by its size, items included; return it."""
        if isinstance(value, int) and value.bit_length() > INTEGER_BITS:
            raise BudgetError("the template computes with too large a number")
        self.spend(measure(value, self._left))
        return value

    def weigh(self, value: Any) -> Any:
        """Charge a step that walks through a value; return the value."""
        self.spend(measure(value, self._left))
        return value


def measure(value: Any, limit: int = 1 << 40) -> int:
    """Return the units of a value with its items; stop counting above `limit`.

    What is in it twice counts twice, as in the text that it prints.
    """
    units, pending = 0, [value]
    while pending and units + len(pending) <= limit:
        item = pending.pop()
        units += 1
        if isinstance(item, (str, bytes)):
            units += len(item) // CHARACTERS_PER_UNIT
        elif isinstance(item, int):
            units += item.bit_length() // _BITS_PER_UNIT
        elif isinstance(item, _LISTS):
            pending += item
        elif isinstance(item, dict):
            pending += [*item.keys(), *item.values()]
        elif isinstance(item, Macro):
            units += len(item.name or "") // CHARACTERS_PER_UNIT
    return units + len(pending)


def depth(value: Any) -> int:
    """Return the nesting depth of lists and mappings."""
    levels, level = 0, [value]
    while level:
        levels += 1
        inside: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inside += item.values()
            elif isinstance(item, _LISTS):
                inside += item
        level = inside
    return levels
