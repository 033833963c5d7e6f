"""Argument type checks."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

from cortiq.errors import RequestError, shown

Called = TypeVar("Called", bound=Callable[..., object] | None)


def path_of(value: object, where: str) -> Path:
    """Return a file's path.

    Parameters
    ----------
    where : the argument or method that it was given to.

    Raises
    ------
    RequestError : it is neither a string nor a path, or is no valid file name.
    """
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str):
        raise RequestError(
            f"expected the name of a file, not {shown(value)}",
            where=where,
            hint="give a text or a pathlib.Path",
        )
    if "\0" in path:
        raise RequestError(f"no file can be named {shown(path)}", where=where)
    return Path(path)


def list_of(value: object, where: str, hint: str) -> list[Any]:
    """Return the items of a list or other iterable.

    Raises
    ------
    RequestError : it is a text, bytes, a mapping, or not iterable.
    """
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, bytearray, Mapping)):
        return list(value)
    raise RequestError(f"expected a list, not {shown(value)}", where=where, hint=hint)


def mapping_of(value: Mapping[str, Any] | None, where: str, hint: str) -> dict[str, Any]:
    """Return a mapping as a dictionary, an empty one for None; RequestError for other objects."""
    if value is None or isinstance(value, Mapping):
        return dict(value or {})
    raise RequestError(f"expected a mapping, not {shown(value)}", where=where, hint=hint)


def function_of(value: Called, where: str) -> Called:
    """Return a function or None; raise RequestError for anything that cannot be called."""
    if value is None or callable(value):
        return value
    hint = "give a function, or leave it out"
    raise RequestError(f"expected a function, not {shown(value)}", where=where, hint=hint)


def event_of(value: Event | None) -> Event:
    """Return the event that cancels, a new one for None; raise RequestError for other objects."""
    if value is None:
        return Event()
    if callable(getattr(value, "is_set", None)) and callable(getattr(value, "set", None)):
        return value
    hint = "give a threading.Event, and set it to cancel"
    raise RequestError(f"expected an event, not {shown(value)}", where="cancel", hint=hint)


def instance_of(value: object, kind: type, where: str) -> None:
    """Refuse a value of another class; RequestError names the expected one."""
    if not isinstance(value, kind):
        raise RequestError(
            f"expected an instance of {kind.__name__}, not {shown(value)}", where=where
        )


def is_finite(value: object) -> bool:
    """Return whether a value is a number, not `True`, that float64 has room for."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer of more than 1,024 bits
        return False
