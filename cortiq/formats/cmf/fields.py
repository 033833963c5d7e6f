"""Typed objects from the JSON of a header: every field of the right type, or an error by name."""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar

from cortiq.errors import FormatError, shown

MOST = (1 << 63) - 1
Made = TypeVar("Made")


def read_fields(kind: type[Made], given: Any, where: str) -> Made:
    """Return an object of a dataclass from a JSON object; keys that it lacks are left out.

    Raises
    ------
    FormatError : the value is no object, a field is missing, or of another type.
    """
    if not isinstance(given, Mapping):
        raise FormatError(f"is {shown(given)}, not an object", where=where)
    hints = typing.get_type_hints(kind)
    values = {}
    for field in fields(kind):  # type: ignore[arg-type]
        inside = f"{where}.{field.name}"
        if field.name in given:
            values[field.name] = _value(hints[field.name], given[field.name], inside)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise FormatError("is missing", where=inside)
    return kind(**values)


def _value(hint: Any, value: Any, where: str) -> Any:
    """Return a value of a field's type; `FormatError` if it is of another."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        hint = next(kind for kind in hint.__args__ if kind is not type(None))
        origin = typing.get_origin(hint)
    if is_dataclass(hint):
        return read_fields(typing.cast(Any, hint), value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise FormatError(f"is {shown(value)}, not a list", where=where)
        kind = typing.get_args(hint)[0]
        return tuple(_value(kind, one, f"{where}[{i}]") for i, one in enumerate(value))
    if hint is Any or _is(hint, value, origin):
        return float(value) if hint is float else value
    name = getattr(hint, "__name__", str(hint))
    raise FormatError(f"is {shown(value)}, not {name}", where=where)


def _is(hint: Any, value: Any, origin: Any) -> bool:
    if hint is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max
    if hint is int:
        return type(value) is int and 0 <= value <= MOST
    if origin is not None:
        return isinstance(value, Mapping)
    return type(value) is hint
