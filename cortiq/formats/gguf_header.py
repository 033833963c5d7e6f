"""Strict GGUF headers: every count, length, offset and type is checked before it is used.

Layout (version 2 and 3, little-endian, no padding before the tensor data):

    "GGUF"  u32 version  u64 tensors  u64 metadata entries
    entry:  string key, u32 type, value         string: u64 bytes, UTF-8
    array:  u32 element type, u64 count, values
    tensor: string name, u32 axes, u64 length of each (innermost first), u32 type, u64 offset
    padding to `general.alignment`, then the tensors; offsets count from there

Source: the GGUF specification in the ggml repository (docs/gguf.md). Nested arrays, which the
specification allows and no model uses, are refused.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.gguf_metadata import (
    ARRAY,
    BOOL,
    SCALARS,
    STRING,
    U64,
    GGUFMetadata,
    MetadataEntry,
    is_utf8,
)
from cortiq.formats.gguf_types import GGML_TYPES, INTEGER_TYPES, UNSUPPORTED_TYPES, told_apart
from cortiq.formats.mapped import TensorInfo, map_file, refuse_overlaps

_MAX_NAME = 65535  # bytes of a key, by the specification; applied to tensor names too
_MAX_AXES = 4
_MAX_ENTRIES = 1 << 16  # so that the tables stay small whatever a file of gigabytes claims
_MAX_TENSORS = 1 << 17
_MIN_ENTRY_BYTES = 8 + 1 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """One file's header and its memory map."""

    path: Path
    buffer: mmap.mmap
    version: int
    metadata: GGUFMetadata
    tensors: dict[str, TensorInfo]


def read_header(path: Path, part: int = 0) -> GGUFHeader:
    """Map a GGUF file and read its header; `part` goes into each TensorInfo.

    Raises
    ------
    FormatError : not a GGUF file, truncated, or inconsistent; the message names the byte.
    UnsupportedError : big-endian, another version, a nested array, or a tensor type without layout.
    """
    return _HeaderReader(path, part).header()


class _HeaderReader:
    """A cursor over the mapped file; every step forward is bounded by the file's end."""

    def __init__(self, path: Path, part: int) -> None:
        self.path, self.part = path, part
        self.buffer = map_file(path)
        self.size = len(self.buffer)
        self.position = 0

    def header(self) -> GGUFHeader:
        """Read the file from its first byte to the end of the tensor table."""
        version = self._version()
        tensor_count = self._number("<Q", "the number of tensors")
        entry_count = self._number("<Q", "the number of metadata entries")
        self._fits(entry_count, _MIN_ENTRY_BYTES, "metadata entries", _MAX_ENTRIES)
        entries: dict[str, MetadataEntry] = {}
        for _ in range(entry_count):
            self._entry(entries)
        metadata = GGUFMetadata(self.path, self.buffer, entries)
        self._fits(tensor_count, _MIN_TENSOR_BYTES, "tensors", _MAX_TENSORS)
        tensors = self._tensors(tensor_count, self._alignment(metadata))
        return GGUFHeader(self.path, self.buffer, version, metadata, tensors)

    def _fail(self, what: str, at: int | None = None) -> NoReturn:
        place = self.position if at is None else at
        raise FormatError(f"{what} (at byte {place})", where=str(self.path))

    def _unsupported(self, what: str, hint: str | None = None) -> NoReturn:
        raise UnsupportedError(what, where=str(self.path), hint=hint)

    def _take(self, count: int, what: str) -> int:
        """Skip `count` bytes; return where they start."""
        if count > self.size - self.position:
            left = self.size - self.position
            self._fail(f"truncated or corrupt: {what} needs {count} bytes, {left} are left")
        start, self.position = self.position, self.position + count
        return start

    def _number(self, form: str, what: str) -> Any:
        start = self._take(struct.calcsize(form), what)
        return struct.unpack_from(form, self.buffer, start)[0]

    def _fits(self, count: int, least: int, what: str, most: int | None = None) -> None:
        """Refuse a count that the rest of the file is too small to hold."""
        if count * least > self.size - self.position:
            self._fail(f"truncated or corrupt: {count} {what} do not fit in {self.size} bytes")
        if most is not None and count > most:
            self._fail(f"{count} {what} are more than the {most} that any model needs")

    def _version(self) -> int:
        start = self._take(4, "the magic number")
        magic = self.buffer[start : self.position]
        if magic != b"GGUF":
            self._fail(f"not a GGUF file: it starts with {magic!r}", start)
        version = self._number("<I", "the version")
        if version & 0xFFFF == 0:
            self._unsupported("is a big-endian GGUF file", "convert it to little-endian")
        if version not in (2, 3):
            self._unsupported(f"is GGUF version {version}", "versions 2 and 3 are supported")
        return version

    def _name(self, what: str) -> str:
        start = self.position
        length = self._number("<Q", f"the length of {what}")
        if not 0 < length <= _MAX_NAME:
            self._fail(f"{what} has {length} bytes, not 1 to {_MAX_NAME}", start)
        first = self._take(length, what)
        try:
            return self.buffer[first : self.position].decode()
        except UnicodeDecodeError:
            self._fail(f"{what} is not valid UTF-8", first)

    def _entry(self, entries: dict[str, MetadataEntry]) -> None:
        start = self.position
        key = self._name(f"the name of metadata entry {len(entries)}")
        if key in entries:
            self._fail(f"metadata {key!r} appears twice", start)
        what = f"metadata {key!r}"
        kind = self._number("<I", f"the type of {what}")
        entries[key] = self._array(what) if kind == ARRAY else self._scalar(kind, what)

    def _scalar(self, kind: int, what: str) -> MetadataEntry:
        start = self.position
        self._values(kind, 1, what)
        if kind == STRING and not is_utf8(self.buffer[start + 8 : self.position]):
            self._fail(f"{what} is not valid UTF-8", start)
        return MetadataEntry(kind, start, self.position)

    def _array(self, what: str) -> MetadataEntry:
        kind = self._number("<I", f"the element type of {what}")
        count = self._number("<Q", f"the length of {what}")
        if kind == ARRAY:
            self._unsupported(f"{what} is an array of arrays")
        start = self.position
        self._values(kind, count, what)
        return MetadataEntry(kind, start, self.position, count)

    def _values(self, kind: int, count: int, what: str) -> None:
        """Step over `count` values of one type."""
        if kind == STRING:
            return self._strings(count, what)
        if not SCALARS.get(kind):
            self._fail(f"{what} has the unknown type {kind}")
        start = self._take(count * struct.calcsize(SCALARS[kind]), what)
        if kind == BOOL and count and np.frombuffer(self.buffer, np.uint8, count, start).max() > 1:
            self._fail(f"{what} holds a truth value that is neither 0 nor 1", start)
        return None

    def _strings(self, count: int, what: str) -> None:
        """Step over strings; a tight loop, because vocabularies have 10⁵ of them."""
        self._fits(count, 8, f"strings of {what}")
        read, buffer, size, position = U64.unpack_from, self.buffer, self.size, self.position
        for index in range(count):
            if size - position < 8:
                self._fail(f"truncated or corrupt: {what}, string {index}", position)
            start = position
            position += 8 + read(buffer, position)[0]
            if position > size:
                self._fail(f"truncated or corrupt: {what}, string {index}", start)
        self.position = position

    def _alignment(self, metadata: GGUFMetadata) -> int:
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            self._fail(f"general.alignment is {alignment!r}, not a power of two")
        return alignment

    def _tensors(self, count: int, alignment: int) -> dict[str, TensorInfo]:
        tensors: dict[str, TensorInfo] = {}
        for _ in range(count):
            start = self.position
            tensor = self._tensor(f"tensor {len(tensors)}", alignment)
            if tensor.name in tensors:
                self._fail(f"tensor {tensor.name!r} appears twice", start)
            tensors[tensor.name] = tensor
        base = -(-self.position // alignment) * alignment
        placed = [replace(tensor, offset=base + tensor.offset) for tensor in tensors.values()]
        placed = told_apart(placed, self.size, alignment, self.path)
        for tensor in placed:
            if tensor.offset + tensor.nbytes > self.size:
                end = tensor.offset + tensor.nbytes
                what = f"truncated: tensor {tensor.name!r} ends at byte {end} of {self.size}"
                self._fail(what, tensor.offset)
        refuse_overlaps(placed, self.path)
        return {tensor.name: tensor for tensor in placed}

    def _tensor(self, place: str, alignment: int) -> TensorInfo:
        """Read one line of the tensor table; its offset still counts from the data section."""
        name = self._name(f"the name of {place}")
        what = f"tensor {name!r}"
        axes = self._number("<I", f"the number of axes of {what}")
        if not 1 <= axes <= _MAX_AXES:
            self._fail(f"{what} has {axes} axes, not 1 to {_MAX_AXES}")
        lengths = [self._number("<Q", f"the shape of {what}") for _ in range(axes)]
        if 0 in lengths:
            self._fail(f"{what} has an axis of length 0")
        number = self._number("<I", f"the type of {what}")
        type_name, elements, block = self._layout(number, what)
        if lengths[0] % elements:
            self._fail(f"{what}: rows of {lengths[0]} are not whole {type_name} blocks")
        offset = self._number("<Q", f"the offset of {what}")
        if offset % alignment:
            self._fail(f"{what}: offset {offset} is not a multiple of {alignment}")
        row_bytes = lengths[0] // elements * block
        nbytes = row_bytes * prod(lengths[1:])
        shape = tuple(reversed(lengths))
        return TensorInfo(name, shape, type_name, self.part, offset, nbytes, row_bytes)

    def _layout(self, number: int, what: str) -> tuple[str, int, int]:
        if number in UNSUPPORTED_TYPES:
            supported = ", ".join(name for name, _, _ in GGML_TYPES.values())
            hint = f"supported: {supported}"
            self._unsupported(f"{what} has type {UNSUPPORTED_TYPES[number]}", hint)
        known = GGML_TYPES | INTEGER_TYPES
        if number not in known:
            self._fail(f"{what} has the unknown type number {number}")
        return known[number]
