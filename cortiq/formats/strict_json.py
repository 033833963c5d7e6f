"""JSON from untrusted files: bounded size, no duplicate keys, only errors of our own."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

from cortiq.errors import FormatError
from cortiq.formats.lfs import MAX_POINTER_BYTES, refuse_pointer

MAX_BYTES = 64 << 20
"""Largest JSON or text file that is read; the largest tokenizer.json known has 35 MB."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_object(data: bytes, where: str, most_levels: int | None = None) -> dict[str, Any]:
    """Parse one JSON object; raise FormatError for anything else.

    Parameters
    ----------
    most_levels : levels of objects and lists it may have, itself included; more are refused.
    """
    try:
        value = json.loads(data.decode(), object_pairs_hook=_unique)
        if _SURROGATE.search(data):
            json.dumps(value, ensure_ascii=False).encode()  # fails on half of a surrogate pair
    except RecursionError:
        raise FormatError("is nested too deeply", where=where) from None
    except ValueError as error:  # includes JSONDecodeError and errors of decode and encode
        raise FormatError(f"is not valid JSON: {error}", where=where) from None
    if not isinstance(value, dict):
        raise FormatError("is not a JSON object", where=where)
    if most_levels is not None and nesting_depth(value) > most_levels:
        raise FormatError(f"is nested more than {most_levels} levels deep", where=where)
    return value


def nesting_depth(value: Any) -> int:
    """Return the depth of nested objects and lists, without recursion."""
    found, inner = 0, [value]
    while inner := [item for item in inner if isinstance(item, (dict, list))]:
        found += 1
        inner = [v for i in inner for v in (i.values() if isinstance(i, dict) else i)]
    return found


def read_object(path: Path) -> dict[str, Any]:
    """Parse a file that holds one JSON object."""
    return parse_object(read_bytes(path), str(path))


def read_optional(path: Path) -> dict[str, Any]:
    """Read an optional JSON object; empty without the file, but a dangling link is an error."""
    return read_object(path) if os.path.lexists(path) else {}


def read_text(path: Path) -> str:
    """Read a UTF-8 text file."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"is not valid UTF-8: {error}", where=str(path)) from None


def read_bytes(path: Path) -> bytes:
    """Read a regular file of at most MOST_BYTES."""
    try:
        if not path.is_file():
            raise FormatError("is missing or not a regular file", where=str(path))
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise FormatError(f"has {size} bytes, more than {MAX_BYTES}", where=str(path))
        data = path.read_bytes()
        refuse_pointer(path, data[:MAX_POINTER_BYTES])
        return data
    except OSError as error:
        raise FormatError(f"cannot be read: {error}", where=str(path)) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"the key {counts.most_common(1)[0][0]!r} appears twice")
    return mapping
