"""Canonical rows of keys and values, page by page; and the rows of a ring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

import numpy as np
import numpy.typing as npt

from cortiq.backend.extents import ring_rows
from cortiq.backend.state import KVPlanes
from cortiq.ir import KVRows, Ring

Floats = npt.NDArray[np.float32]
SMALLEST_BITS = (127 - 40) << 23
"""Bits of 2⁻⁴⁰."""
POISON = 2.0**49
"""Fills unused rows of rings: it would show if it were read."""
PARTS = tuple(field.name for field in fields(KVPlanes))


def planes_of(high_low: npt.NDArray[np.int16]) -> tuple[npt.NDArray, npt.NDArray]:
    """Split 16-bit integers into int8 planes."""
    wide = high_low.astype(np.int32)
    high = (wide + 128) >> 8
    return high.astype(np.int8), (wide - (high << 8)).astype(np.int8)


def no_rows(slot: KVRows) -> KVPlanes:
    """Return the planes of a slot without rows."""
    shapes = [(0, slot.heads, width) for width in (slot.key_dim, slot.value_dim)]
    return KVPlanes(
        *(np.zeros(part, np.int8) for whole in shapes for part in (whole, whole, whole[:2]))
    )


def joined(slot: KVRows, pages: Sequence[KVPlanes], skipped: int, rows: int) -> KVPlanes:
    """Join rows of neighbouring pages; so many before them in the first page are left out."""
    known = [no_rows(slot), *pages]
    parts = (np.concatenate([getattr(page, name) for page in known]) for name in PARTS)
    return KVPlanes(*(np.ascontiguousarray(part[skipped : skipped + rows]) for part in parts))


def paged(planes: KVPlanes, skipped: int, page_rows: int) -> Iterator[KVPlanes]:
    """Cut rows into whole pages: zeros stand before the first row, and after the last."""
    count = len(planes.key_high)
    behind = -(count + skipped) % page_rows
    parts = []
    for name in PARTS:
        part = getattr(planes, name)
        ends = [np.zeros((n, *part.shape[1:]), part.dtype) for n in (skipped, behind)]
        parts.append(np.concatenate([ends[0], part, ends[1]]))
    for start in range(0, count + skipped, page_rows):
        yield KVPlanes(*(part[start : start + page_rows] for part in parts))


def last_rows(slot: Ring, ring: Floats | None, length: int) -> Floats:
    """Return the `slot.length` rows of a ring before position `length`; zero where none were."""
    window = np.zeros((slot.length, slot.width), np.float32)
    kept = min(slot.length, length)
    if kept and ring is not None:
        window[-kept:] = ring[np.arange(length - kept, length) % len(ring)]
    return window


def ring_of(slot: Ring, rows: Floats, length: int) -> Floats:
    """Make the ring whose last rows before position `length` are these."""
    ring = np.full((ring_rows(slot), slot.width), POISON, np.float32)
    kept = min(slot.length, length)
    if kept:
        ring[np.arange(length - kept, length) % len(ring)] = rows[len(rows) - kept :]
    return ring


def snapped(values: Floats) -> Floats:
    """Replace values below 2⁻⁴⁰ by zero."""
    values = np.ascontiguousarray(values)
    small = (values.view(np.int32) & np.int32(0x7FFFFFFF)) < SMALLEST_BITS
    return np.where(small, np.float32(0), values)
