"""What callers hand over, refused in our words where it is of another kind than is wanted."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import TypeVar

from cortiq.errors import RequestError, shown

Called = TypeVar("Called", bound=Callable[..., object] | None)


def path_of(value: object, where: str) -> Path:
    """A file's path.

    Parameters
    ----------
    where : the argument or method it was given to.

    Raises
    ------
    RequestError : it is neither a text nor a path of text, or no file can be named like it.
    """
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str):
        raise RequestError(
            f"the name of a file is wanted, not {shown(value)}",
            where=where,
            hint="give a text or a pathlib.Path",
        )
    if "\0" in path:
        raise RequestError(f"no file can be named {shown(path)}", where=where)
    return Path(path)


def function_of(value: Called, where: str) -> Called:
    """A function, or None; RequestError for what cannot be called."""
    if value is None or callable(value):
        return value
    hint = "give a function, or leave it out"
    raise RequestError(f"a function is wanted, not {shown(value)}", where=where, hint=hint)


def event_of(value: Event | None) -> Event:
    """The event that cancels, a new one for None; RequestError for what cannot be set and asked."""
    if value is None:
        return Event()
    if callable(getattr(value, "is_set", None)) and callable(getattr(value, "set", None)):
        return value
    hint = "give a threading.Event, and set it to cancel"
    raise RequestError(f"an event is wanted, not {shown(value)}", where="cancel", hint=hint)


def instance_of(value: object, kind: type, where: str) -> None:
    """Refuse a value of another class; RequestError names the one that is wanted."""
    if not isinstance(value, kind):
        raise RequestError(
            f"an instance of {kind.__name__} is wanted, not {shown(value)}", where=where
        )
