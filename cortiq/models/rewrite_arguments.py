"""Arguments of rewritings: `key=value` pairs with commas between, and which layers they name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cortiq.errors import RequestError

Reader = Callable[[str], Any]
DEEP = re.compile(r"deep([1-9]\d{0,5})")
LISTED = re.compile(r"\d{1,6}(\+\d{1,6})*")


def whole(least: int) -> Reader:
    """Return a reader of integers from `least` on."""

    def read(text: str) -> int:
        if not re.fullmatch(r"\d{1,9}", text) or int(text) < least:
            raise ValueError(f"an integer from {least} on")
        return int(text)

    return read


def number(text: str) -> float:
    """Read a decimal number that is not negative, below a million."""
    if not re.fullmatch(r"\d{1,6}(\.\d{1,9})?", text):
        raise ValueError("a decimal number from 0 on")
    return float(text)


def choice(*names: str) -> Reader:
    """Return a reader of one of these words."""

    def read(text: str) -> str:
        if text not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return text

    return read


def layers(text: str) -> str:
    """Read which layers are meant: `all`, `deepN` (the last N) or indices with + between."""
    if text != "all" and not DEEP.fullmatch(text) and not LISTED.fullmatch(text):
        raise ValueError("all, deepN for the last N layers, or indices as 0+2+5")
    return text


def chosen_layers(text: str, count: int) -> set[int]:
    """Return the indices, of so many layers, that a text for `layers` names.

    Raises
    ------
    RequestError : it names a layer that is not there.
    """
    if text == "all":
        return set(range(count))
    if deep := DEEP.fullmatch(text):
        return set(range(max(0, count - int(deep[1])), count))
    found = set(map(int, text.split("+")))
    if beyond := sorted(found - set(range(count))):
        hint = f"there are layers 0 to {count - 1}"
        raise RequestError(f"there is no layer {beyond[0]}", where="layers", hint=hint)
    return found


def read_arguments(
    text: str, readers: Mapping[str, Reader], defaults: Mapping[str, Any], name: str
) -> dict[str, Any]:
    """Return the values of an argument, those that it does not name from `defaults`.

    Raises
    ------
    RequestError : an unknown key, one named twice, a value that is none, or one that is missing.
    """
    found: dict[str, Any] = {}
    hint = f"{name} takes {', '.join(readers)}"
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if key not in readers or not equals or key in found:
            what = f"{part!r} is no option of {name}" if key not in found else f"{key} twice"
            raise RequestError(what, where="rewrite", hint=f"{hint}, each as KEY=VALUE")
        try:
            found[key] = readers[key](value)
        except ValueError as reason:
            raise RequestError(f"{key} is {value!r}", where="rewrite", hint=str(reason)) from None
    values = {**defaults, **found}
    if missing := [key for key in readers if key not in values]:
        raise RequestError(f"{missing[0]} is missing", where="rewrite", hint=hint)
    return values


def file_path(text: str) -> Path:
    """Read the path of a file that is there."""
    path = Path(text)
    if not path.is_file():
        raise ValueError("there is no such file")
    return path


def as_facts(values: Mapping[str, Any], files: Sequence[str] = ()) -> dict[str, Any]:
    """Return values as JSON can hold them; files by their hashes."""
    from cortiq.formats.digest import file_sha256

    facts = {key: value for key, value in values.items() if key not in files}
    return facts | {key: file_sha256(values[key]) for key in files if values.get(key)}
