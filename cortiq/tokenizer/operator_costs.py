"""The cost of a template's operators and of formatted texts, known before they are computed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Formatter
from typing import Any

from jinja2.exceptions import SecurityError

from cortiq.tokenizer.render_budget import CHARACTERS_PER_UNIT, INTEGER_BITS, BudgetError, measure

_WIDEST = 1000
"""Widest field of a formatted text."""
_LONG_NUMBER = re.compile(r"\d{4}")
_WIDE_PERCENT = re.compile(r"%(\([^)]*\))?[^a-zA-Z%]*?(\d{4}|\*)")


def units(characters: int) -> int:
    """Return the units of so many characters."""
    return 1 + max(number(characters), 0) // CHARACTERS_PER_UNIT


def number(value: Any) -> int:
    """Check that an argument is an integer: a text multiplied by another would be large."""
    if not isinstance(value, int):
        raise TypeError(f"expected an integer, not a {type(value).__name__}")
    return value


def shallow(value: Any) -> int:
    """Return the units of a value without its items."""
    if isinstance(value, (str, bytes)):
        return units(len(value))
    return 1 + len(value) if hasattr(value, "__len__") else 1


def cost_of_operator(operator: str, left: Any, right: Any) -> int:
    """Return the units of `left operator right`, for every operator that computes."""
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length()
        if operator in ("*", "**") and bits + right.bit_length() > INTEGER_BITS:
            raise BudgetError("the template computes with too large a number")
        return units(left.bit_length() + right.bit_length())
    if operator == "%" and isinstance(left, str):
        return cost_of_percent(left, right)
    if operator == "*":
        text, count = (left, right) if isinstance(right, int) else (right, left)
        return shallow(text) * max(count, 1) if isinstance(count, int) else 1
    if operator == "-":  # of what mappings hold: items are compared whole
        return measure(left) + measure(right)
    return shallow(left) + shallow(right)


def cost_of_percent(text: str, values: Any) -> int:
    """Return the units of `text % values`; refuses fields that are wide or of computed width."""
    if _WIDE_PERCENT.search(text):
        raise SecurityError("the template formats with a wide or computed field")
    fields = text.count("%")
    if isinstance(values, Mapping):
        size = fields * max(map(measure, values.values()), default=0)
    else:
        size = measure(values)
    return units(len(text)) + fields * units(_WIDEST) + size


def cost_of_format(text: str, values: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    """Return the units of `text.format(…)`; refuses fields that are wide or hold further fields."""
    fields = 0
    for _, name, form, _ in Formatter().parse(text):
        fields += name is not None
        if form and ("{" in form or _LONG_NUMBER.search(form)):
            raise SecurityError("the template formats with a wide or computed field")
    widest = max(map(measure, (*values, *named.values())), default=0)
    return units(len(text)) + fields * (units(_WIDEST) + widest)


def cost_of_comparison(operator: str, left: Any, right: Any) -> int:
    """Return the units of a comparison."""
    if operator in ("in", "notin"):
        return measure(left) + (1 if isinstance(right, dict) else measure(right))
    return min(measure(left), measure(right))
