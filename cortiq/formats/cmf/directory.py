"""Envelope and tensor directory of a CMF file: where all lies, checked against its length."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from cortiq.errors import FormatError, UnsupportedError, shown
from cortiq.formats.cmf.dtypes import DTYPES, Dtype

MAGIC, VERSION, ENVELOPE_BYTES = b"CMF\x01", 2, 128
PAGE, UNIT, MAX_AXES = 4096, 64, 6
TENSOR_DIR, BINARY_MASKS, QUANT_2F, LOOP_MASKS, SKILL_FILE = 1, 2, 4, 32, 64
"""Features that a file may require, as bits."""
KNOWN_FEATURES = TENSOR_DIR | BINARY_MASKS | QUANT_2F | LOOP_MASKS | SKILL_FILE
SECTIONS = ("header", "directory", "data", "masks", "vocabulary", "index")
_FORM = struct.Struct("<4s3I12Q2Q")
_RECORD = np.dtype({
    "names": ["name_at", "name_bytes", "dtype", "axes", "shape", "offset", "nbytes", "hash"],
    "formats": ["<u4", "<u2", "u1", "u1", ("<u4", 6), "<u8", "<u8", "<u8"],
    "offsets": [0, 4, 6, 7, 8, 32, 40, 48],
    "itemsize": 56,
})  # fmt: skip


@dataclass(frozen=True)
class Envelope:
    """The first 128 bytes.

    Attributes
    ----------
    features : bits that a reader has to know.
    places : first byte and length of each of `SECTIONS`; 0 for those that are absent.
    header_hash, directory_hash : 0 where they are not recorded.
    """

    features: int
    places: tuple[tuple[int, int], ...]
    header_hash: int = 0
    directory_hash: int = 0

    def place(self, name: str) -> tuple[int, int]:
        """Return the first byte and the length of a section."""
        return self.places[SECTIONS.index(name)]

    def packed(self) -> bytes:
        """Return the bytes of the file's beginning."""
        flat = [number for place in self.places for number in place]
        hashes = (self.header_hash, self.directory_hash)
        return _FORM.pack(MAGIC, VERSION, 0, self.features, *flat, *hashes)


def read_envelope(data: bytes, size: int, where: str) -> Envelope:
    """Return the envelope of a file of `size` bytes; `data` are its first ones.

    Raises
    ------
    FormatError : it is no CMF file, or a section lies outside it.
    UnsupportedError : another version, or features that are not known.
    """
    if data[:4] != MAGIC:
        raise FormatError("is no CMF file: it begins with other bytes", where=where)
    if size < ENVELOPE_BYTES:
        raise FormatError(f"has {size} bytes, less than an envelope's 128", where=where)
    _, version, _, features, *rest = _FORM.unpack(data[:ENVELOPE_BYTES])
    if version != VERSION:
        hint = "convert the model again with the engine it comes from"
        raise UnsupportedError(f"is CMF version {version}, not 2", where=where, hint=hint)
    if features & ~KNOWN_FEATURES:
        unknown = [str(bit) for bit in range(32) if (features & ~KNOWN_FEATURES) >> bit & 1]
        what = f"requires features that are not known: bits {', '.join(unknown)}"
        raise UnsupportedError(what, where=where)
    numbers = rest[:12]
    places = tuple(zip(numbers[::2], numbers[1::2], strict=True))
    for name, (first, length) in zip(SECTIONS, places, strict=True):
        if name in SECTIONS[:2] and not length:
            raise FormatError(f"has no {name}", where=where)
        if length and first + length > size:
            what = f"has its {name} at {first}, of {length} bytes, and ends at {size}"
            raise FormatError(what, where=where)
    envelope = Envelope(features, places, *rest[12:])
    first, length = envelope.place("data")
    if length and first % PAGE:
        raise FormatError(f"has its data at {first}, no multiple of {PAGE}", where=where)
    return envelope


@dataclass(frozen=True)
class Entry:
    """A tensor of the directory; `offset` counts from the data section's first byte."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    hash: int


def read_directory(data: npt.NDArray[np.uint8], where: str, strict: bool = True) -> list[Entry]:
    """Return the entries of a directory, in the file's order.

    Raises
    ------
    FormatError : the directory is truncated, or an entry is malformed.
    UnsupportedError : an encoding that is not known.
    """
    if len(data) < 16:
        raise FormatError(f"has a directory of {len(data)} bytes", where=where)
    count, pool = (int(number) for number in data[:16].view("<u8"))
    if not 16 + count * _RECORD.itemsize <= pool <= len(data):
        what = f"has a directory of {len(data)} bytes, which cannot hold {shown(count)} tensors"
        raise FormatError(what, where=where)
    records = data[16 : 16 + count * _RECORD.itemsize].view(_RECORD)
    names = data[pool:]
    return [_entry(record, names, where, strict) for record in records]


def _entry(record: np.void, names: npt.NDArray[np.uint8], where: str, strict: bool) -> Entry:
    first, size = int(record["name_at"]), int(record["name_bytes"])
    if first + size > len(names):
        raise FormatError("has a tensor whose name lies outside the directory", where=where)
    try:
        name = names[first : first + size].tobytes().decode()
    except UnicodeDecodeError:
        raise FormatError("has a tensor whose name is not UTF-8", where=where) from None
    number, axes = int(record["dtype"]), int(record["axes"])
    if number not in DTYPES:
        what = f"{shown(name)} has the encoding {number}, which is not known"
        raise UnsupportedError(what, where=where)
    sizes = tuple(int(n) for n in record["shape"])
    padded = axes > MAX_AXES or (strict and (not name or not axes or any(sizes[axes:])))
    if padded or (strict and 0 in sizes[:axes]):
        what = f"gives {shown(name)} {axes} axes of the sizes {list(sizes)}"
        raise FormatError(what, where=where)
    place = (int(record["offset"]), int(record["nbytes"]), int(record["hash"]))
    return Entry(name, DTYPES[number], sizes[:axes] or (1,), *place)


def pack_directory(entries: list[Entry]) -> bytes:
    """Return the bytes of a directory, names in a pool behind the records.

    Raises
    ------
    FormatError : a name is used twice, or a number does not fit its field.
    """
    records, pool = np.zeros(len(entries), _RECORD), bytearray()
    seen = set[str]()
    for record, entry in zip(records, entries, strict=True):
        name = entry.name.encode()
        problem = next(_unfit(entry, name, seen, len(pool)), "")
        if problem:
            raise FormatError(problem, where=shown(entry.name))
        seen.add(entry.name)
        record["name_at"], record["name_bytes"] = len(pool), len(name)
        record["dtype"], record["axes"] = entry.dtype.number, len(entry.shape)
        record["shape"][: len(entry.shape)] = entry.shape
        record["offset"], record["nbytes"], record["hash"] = entry.offset, entry.nbytes, entry.hash
        pool += name
    head = struct.pack("<2Q", len(entries), 16 + records.nbytes)
    return head + records.tobytes() + bytes(pool)


def _unfit(entry: Entry, name: bytes, seen: set[str], pool: int) -> Iterator[str]:
    """Yield why an entry has no place in a directory."""
    if entry.name in seen:
        yield "two tensors have this name"
    if not 0 < len(name) < 1 << 16 or pool >= 1 << 32:
        yield f"a name takes 1 to 65,535 bytes, this one {len(name)}"
    if not 0 < len(entry.shape) <= MAX_AXES or not all(0 < n < 1 << 32 for n in entry.shape):
        yield f"a shape has one to six sizes below 2³², not {list(entry.shape)}"
    if prod(entry.shape) >= 1 << 63:
        yield f"has {list(entry.shape)} elements"
