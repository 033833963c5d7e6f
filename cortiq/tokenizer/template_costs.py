"""The cost of every step a template can take, computed before the step runs.

A filter, test or method that is not listed here cannot be used. Most work through what they get
once: they cost its size. Those that can make much of little, or look at a text many times, say how
much that is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cortiq.tokenizer.operator_costs import (
    cost_of_comparison,
    cost_of_percent,
    number,
    shallow,
    units,
)
from cortiq.tokenizer.render_budget import CHARACTERS_PER_UNIT, VIEWS, BudgetError, depth, measure

__all__ = ["FILTERS", "GATHERS", "MAKES_LISTS", "METHODS", "PASSES", "TESTS", "Cost"]

Cost = Callable[..., int]

_INDENT = 64
_ATTRIBUTE = 256
_PRECISION = 400


def _free(*_: Any, **__: Any) -> int:
    return 1


def _deep(*values: Any, **named: Any) -> int:
    """Charge for walking through or printing all arguments."""
    return sum(map(measure, values)) + sum(map(measure, named.values()))


def _shallow(value: Any, *_: Any, **__: Any) -> int:
    return shallow(value)


def _pieces(value: Any, *rest: Any, **named: Any) -> int:
    """Charge for splitting a text into at most one piece for two characters."""
    return _deep(value, *rest, *named.values()) + (len(value) // 2 if isinstance(value, str) else 0)


def _letters(value: Any, *_: Any, **__: Any) -> int:
    """Charge for one item a letter."""
    return measure(value) + (len(value) if isinstance(value, str) else 0)


def _square(value: Any, *rest: Any, **named: Any) -> int:
    """Charge for rescanning a text from many of its places."""
    size = measure(value)
    return size * size + _deep(*rest, *named.values())


def _product(text: Any, part: Any = "", *_: Any, **__: Any) -> int:
    """Charge for comparing a text with another at every place."""
    return units(len(text)) * units(len(part)) + (len(text) if isinstance(part, str) else 0)


def _backwards(text: Any, sep: Any = None, *_: Any, **__: Any) -> int:
    return _pieces(text) if sep is None else _product(text, sep)


def _strip(text: Any, chars: Any = None, *_: Any, **__: Any) -> int:
    return measure(text) * measure(chars)


def _wide(text: Any, width: int = 80, *_: Any, **__: Any) -> int:
    return measure(text) + units(width)


def _tabs(text: str, tabsize: int = 8) -> int:
    return measure(text) + units(text.count("\t") * number(tabsize))


def _join(values: Any, d: Any = "", attribute: Any = None, **_: Any) -> int:
    return measure(values) + len(values) * measure(d) if hasattr(values, "__len__") else measure(d)


def _replace(text: Any, old: Any, new: Any, *_: Any, **__: Any) -> int:
    text = str(text)
    return measure(text) * (2 if old else 17) + text.count(str(old)) * measure(new)


def _indent(text: Any, width: Any = 4, *_: Any, **__: Any) -> int:
    if (len(width) if isinstance(width, str) else number(width)) > _INDENT:
        raise BudgetError(f"the template indents by more than {_INDENT} characters")
    lines = len(text) if isinstance(text, str) else 1
    return measure(text) + (lines if width else 0) * units(_INDENT)


def _wrap(text: Any, width: int = 79, long: Any = True, wrapstring: Any = "\n", *_: Any,
          **named: Any) -> int:  # fmt: skip
    wrapstring = named.get("wrapstring", wrapstring) or ""
    letters = len(text) if isinstance(text, str) else 16 * measure(text)
    return _square(text) + letters * measure(wrapstring)


def _strip_tags(value: Any) -> int:
    return _pieces(value) * (1 + str(value).count("<") // CHARACTERS_PER_UNIT)


def _json(value: Any, ensure_ascii: bool = False, indent: Any = None, *_: Any, **__: Any) -> int:
    wide = len(indent) if isinstance(indent, str) else number(indent or 0)
    return measure(value) * (2 + units(depth(value) * wide))


def _pretty(value: Any) -> int:
    return 16 * measure(value) * (1 + depth(value))


def _fill(value: Any, count: Any = 1, fill_with: Any = None, *_: Any, **__: Any) -> int:
    return shallow(value) + (number(count) * measure(fill_with) if fill_with is not None else 0)


def _sum(values: Any, attribute: Any = None, start: Any = 0) -> int:
    """Charge for adding lists, which copies the sum so far each time."""
    size = measure(values) + measure(start)
    return size * (size if isinstance(start, (list, tuple, str)) else 1)


def _round(value: Any, precision: Any = 0, *_: Any, **__: Any) -> int:
    if abs(precision) > _PRECISION:
        raise BudgetError(f"the template rounds to more than {_PRECISION} digits")
    return measure(value)


def _percent(text: Any, *values: Any, **named: Any) -> int:
    return cost_of_percent(str(text), named or values)


def _attributed(cost: Cost, place: int) -> Cost:
    """Return a cost that includes walking an attribute's path for every item."""

    def checked(value: Any, *rest: Any, **named: Any) -> int:
        path = named.get("attribute", rest[place] if len(rest) > place else None)
        if isinstance(path, str) and len(path) > _ATTRIBUTE:
            raise BudgetError(f"the template names an attribute by over {_ATTRIBUTE} characters")
        return cost(value, *rest, **named)

    return checked


def _named(cost: Cost, names: str) -> dict[str, Cost]:
    return dict.fromkeys(names.split(), cost)


_ORDER = {
    name: _attributed(_deep, place)
    for name, place in {"groupby": 0, "sort": 2, "unique": 1, "min": 1, "max": 1}.items()
}
FILTERS: Mapping[str, Cost] = {
    **_named(_free, "abs attr count d default first items last length reject safe select"),
    **_named(_deep, "capitalize dictsort e escape filesizeformat float forceescape int lower"),
    **_named(_deep, "string truncate upper urlencode xmlattr"),
    **_named(_pieces, "title wordcount"), **_named(_letters, "list reverse"),
    **_named(_fill, "batch slice"), **_named(_square, "urlize"), **_ORDER,
    "map": _attributed(_free, 99), "selectattr": _attributed(_free, 0),
    "rejectattr": _attributed(_free, 0), "join": _attributed(_join, 1),
    "sum": _attributed(_sum, 0), "center": _wide, "format": _percent, "indent": _indent,
    "pprint": _pretty, "replace": _replace, "round": _round, "striptags": _strip_tags,
    "tojson": _json, "trim": _strip, "wordwrap": _wrap,
}  # fmt: skip
"""Filter -> cost of its arguments. `random` is not here: a prompt is the same each time."""

GATHERS = frozenset({"groupby", "join", "max", "min", "sort", "sum", "unique"})
"""Filters that look at all items: what makes them one by one is made into a list before."""

PASSES = frozenset({"attr", "d", "default", "first", "last", "max", "min"})
"""Filters whose result was there before."""

MAKES_LISTS = frozenset({"batch", "slice"})
"""Filters that make new values one by one."""


def _contained(item: Any, container: Any) -> int:
    return cost_of_comparison("in", item, container)


def _compared(left: Any, right: Any) -> int:
    return cost_of_comparison("eq", left, right)


TESTS: Mapping[str, Cost] = {
    **_named(_free, "boolean callable defined divisibleby escaped even false filter float integer"),
    **_named(_free, "iterable mapping none number odd sameas sequence string test true undefined"),
    **_named(_deep, "lower upper"),
    **_named(_compared, "== eq equalto != ne > gt greaterthan ge >= < lt lessthan <= le"),
    "in": _contained,
}

METHODS: Mapping[type, Mapping[str, Cost]] = {
    str: {
        **_named(_deep, "capitalize casefold count endswith find index isalnum isalpha isascii"),
        **_named(_deep, "isdecimal isdigit isidentifier islower isnumeric isprintable isspace"),
        **_named(_deep, "istitle isupper lower partition removeprefix removesuffix startswith"),
        **_named(_deep, "swapcase title upper"),
        **_named(_wide, "center ljust rjust zfill"),
        **_named(_backwards, "rfind rindex rpartition rsplit"),
        **_named(_strip, "lstrip rstrip strip"),
        "expandtabs": _tabs, "join": lambda text, values: _join(values, text),
        "replace": _replace, "split": _pieces, "splitlines": _letters,
    },
    int: _named(_free, "as_integer_ratio bit_count bit_length conjugate"),
    float: _named(_free, "as_integer_ratio conjugate hex is_integer"),
    dict: {"copy": _shallow, **_named(_free, "items keys values"),
           "get": lambda _, key, *__: measure(key), "fromkeys": _deep},
    list: {"copy": _shallow, **_named(_deep, "count index")},
    tuple: _named(_deep, "count index"),
    range: _named(_free, "count index"), **{view: {} for view in VIEWS},
}  # fmt: skip
"""Type -> method -> cost of the value and the arguments. `format` is wrapped by the sandbox."""

ATTRIBUTES: Mapping[type, frozenset[str]] = {
    int: frozenset({"real", "imag", "numerator", "denominator"}),
    float: frozenset({"real", "imag"}),
    tuple: frozenset({"grouper", "list"}),
    range: frozenset({"start", "stop", "step"}),
}
"""Attributes of values that are no methods."""
