"""Metadata of a GGUF file: a mapping whose values are decoded on access.

A vocabulary of 262,144 tokens is one entry; building its Python strings takes longer than opening
the rest of the file, and most commands never look at it.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cortiq.errors import FormatError

BOOL, STRING, ARRAY = 7, 8, 9
"""Value types that need care; the others are in SCALARS."""

SCALARS: dict[int, str] = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
"""Value type -> struct format, which is also the name of the NumPy dtype except for bool."""

U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class MetadataEntry:
    """A metadata value still in the file: `count` is None for a scalar."""

    kind: int
    start: int
    end: int
    count: int | None = None


class GGUFMetadata(Mapping[str, Any]):
    """Metadata of a GGUF file; values are decoded on access.

    Scalars are int, float, bool or str. Arrays of numbers are NumPy arrays, arrays of strings
    lists of str. Invalid UTF-8 in an array is found on access, so that a tokenizer which knows
    what to do with such tokens can have them through `byte_strings`.
    """

    def __init__(self, path: Path, buffer: mmap.mmap, entries: dict[str, MetadataEntry]) -> None:
        self._path, self._buffer, self._entries = path, buffer, entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __getitem__(self, key: str) -> Any:
        entry = self._entries[key]
        if entry.kind == STRING:
            return self._text(key) if entry.count is None else self._texts(key)
        if entry.count is None:
            return struct.unpack_from(SCALARS[entry.kind], self._buffer, entry.start)[0]
        values = self._buffer[entry.start : entry.end]
        return np.frombuffer(values, "?" if entry.kind == BOOL else SCALARS[entry.kind])

    def encoded(self, key: str) -> bytes:
        """Return an entry as a file has it: its key, its type and the bytes of its value."""
        entry, name = self._entries[key], key.encode()
        head = U64.pack(len(name)) + name
        if entry.count is None:
            head += struct.pack("<I", entry.kind)
        else:
            head += struct.pack("<IIQ", ARRAY, entry.kind, entry.count)
        return head + self._buffer[entry.start : entry.end]

    def byte_strings(self, key: str) -> list[bytes]:
        """Return the raw elements of a string array, valid UTF-8 or not."""
        entry = self._entries[key]
        if entry.kind != STRING or entry.count is None:
            raise FormatError(f"metadata {key!r} is not an array of strings", where=str(self._path))
        block, strings, position = self._buffer[entry.start : entry.end], [], 0
        for _ in range(entry.count):
            start = position + 8
            position = start + U64.unpack_from(block, position)[0]
            strings.append(block[start:position])
        return strings

    def _text(self, key: str) -> str:
        entry = self._entries[key]
        return self._buffer[entry.start + 8 : entry.end].decode()

    def _texts(self, key: str) -> list[str]:
        strings = self.byte_strings(key)
        try:
            return [string.decode() for string in strings]
        except UnicodeDecodeError:
            bad = next(i for i, string in enumerate(strings) if not is_utf8(string))
            message = f"metadata {key!r}: element {bad} is not valid UTF-8"
            raise FormatError(message, where=str(self._path)) from None


def is_utf8(string: bytes) -> bool:
    """Return whether the bytes are valid UTF-8."""
    try:
        string.decode()
    except UnicodeDecodeError:
        return False
    return True
