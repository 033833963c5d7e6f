"""CMF files written: where tensors lie, the bytes before them, and whole small files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cortiq.formats.cmf.directory import (
    BINARY_MASKS,
    ENVELOPE_BYTES,
    LOOP_MASKS,
    PAGE,
    QUANT_2F,
    SKILL_FILE,
    TENSOR_DIR,
    UNIT,
    Entry,
    Envelope,
    pack_directory,
)
from cortiq.formats.cmf.dtypes import BY_NAME, RAISES_QUANT_2F
from cortiq.formats.cmf.hash64 import hash64

LARGE = 1 << 14
"""Bytes from which a tensor begins a page."""


@dataclass(frozen=True)
class TrailingSections:
    """Sections behind the tensors."""

    vocabulary: bytes = b""
    masks: bytes = b""
    index: bytes = b""

    @property
    def joined(self) -> bytes:
        """All of them, as the file has them."""
        return self.masks + self.vocabulary + self.index


def lay_out(tensors: Sequence[tuple[str, str, tuple[int, ...], int]]) -> tuple[list[Entry], int]:
    """Return the entries of tensors, hashes 0, and the bytes of all data.

    Parameters
    ----------
    tensors : name, encoding, shape and bytes of each, in the order they are to lie in.
    """
    entries, at = [], 0
    for name, dtype, shape, nbytes in tensors:
        unit = PAGE if nbytes >= LARGE else UNIT
        at = -(-at // unit) * unit
        entries.append(Entry(name, BY_NAME[dtype], shape, at, nbytes, 0))
        at += nbytes
    return entries, at


def canonical_json(value: Any) -> bytes:
    """Return JSON with sorted keys and no spaces."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.encode()


def features_of(header: Mapping[str, Any], entries: Sequence[Entry], masks: bool) -> int:
    """Return what a reader of a file has to know."""
    found = TENSOR_DIR
    if any(entry.dtype.name in RAISES_QUANT_2F for entry in entries):
        found |= QUANT_2F
    if masks:
        found |= BINARY_MASKS
        found |= LOOP_MASKS if header["arch"].get("num_loops", 1) > 1 else 0
    if any(skill.get("base_dir_hash") for skill in header.get("skills", [])):
        found |= SKILL_FILE
    return found


def head_bytes(
    header: Mapping[str, Any],
    entries: list[Entry],
    size: int,
    sections: TrailingSections = TrailingSections(),
) -> bytes:
    """Return all bytes before the tensors: envelope, header, directory, zeros up to a page.

    The length depends on the header's and the directory's lengths only, not on hashes.

    Parameters
    ----------
    size : bytes of all data, behind which the sections lie.
    """
    behind = {"masks": sections.masks, "vocab": sections.vocabulary, "index": sections.index}
    hashes = {name: f"{hash64(data):016x}" for name, data in behind.items() if data}
    if hashes:
        header = {**header, "section_hashes": hashes}
    text, directory = canonical_json(header), pack_directory(entries)
    second = ENVELOPE_BYTES + len(text)
    first = -(-(second + len(directory)) // PAGE) * PAGE
    places = [(ENVELOPE_BYTES, len(text)), (second, len(directory)), (first, size)]
    at = first + size
    for data in (sections.masks, sections.vocabulary, sections.index):
        places.append((at if data else 0, len(data)))
        at += len(data)
    features = features_of(header, entries, bool(sections.masks))
    envelope = Envelope(features, tuple(places), hash64(text), hash64(directory))
    return (envelope.packed() + text + directory).ljust(first, b"\0")


def file_parts(
    header: Mapping[str, Any],
    tensors: Sequence[tuple[str, str, tuple[int, ...], bytes]],
    sections: TrailingSections = TrailingSections(),
) -> Iterator[bytes]:
    """Yield the bytes of a file whose tensors, name, encoding, shape and bytes, are in memory."""
    entries, size = lay_out([(*tensor[:3], len(tensor[3])) for tensor in tensors])
    hashed = [
        replace(entry, hash=hash64(tensor[3]))
        for entry, tensor in zip(entries, tensors, strict=True)
    ]
    yield head_bytes(header, hashed, size, sections)
    at = 0
    for entry, tensor in zip(entries, tensors, strict=True):
        yield bytes(entry.offset - at) + tensor[3]
        at = entry.offset + entry.nbytes
    yield sections.joined
