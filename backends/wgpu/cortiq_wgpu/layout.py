"""Pages and rings as words, and back to the canonical layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from cortiq.backend import KVPlanes
from cortiq.ir import KVRows, Ring
from cortiq.numerics.quantise import ZERO_ROW_EXPONENT
from cortiq_wgpu.pools import POISON_FLOAT, TILE, capacity_of, head_words

SMALLEST_BITS = (127 - 40) << 23
Part = tuple[np.ndarray, np.ndarray, np.ndarray]
"""High plane, low plane, exponents of rows [n, heads, …]."""


def _parts(slot: KVRows, page: np.ndarray) -> tuple[Part, Part]:
    """Keys and values of a page's 64 rows."""
    heads, words = page.reshape(slot.heads, head_words(slot)), -(-slot.key_dim // 4)
    keys, values, exponents = np.split(heads, [2 * TILE * words, heads.shape[1] - 2 * TILE], axis=1)
    keys = keys.reshape(slot.heads, 2, words, TILE).transpose(3, 1, 0, 2)
    keys = np.ascontiguousarray(keys).view(np.int8)[..., : slot.key_dim]
    values = values.reshape(slot.heads, 2, 16, slot.value_dim)
    bytes_ = np.ascontiguousarray(values)[..., None].view(np.int8)  # [heads, 2, 16, channels, 4]
    values = bytes_.transpose(2, 4, 1, 0, 3).reshape(TILE, 2, slot.heads, slot.value_dim)
    e = exponents.view(np.int32).astype(np.int8).reshape(slot.heads, 2, TILE).transpose(2, 1, 0)
    value_e = e[:, 1] if slot.value_dim else np.full_like(e[:, 1], ZERO_ROW_EXPONENT)
    return (keys[:, 0], keys[:, 1], e[:, 0]), (values[:, 0], values[:, 1], value_e)


def planes_of(slot: KVRows, pages: Sequence[np.ndarray], rows: int) -> KVPlanes:
    """The first rows of some pages."""
    nothing = np.zeros(slot.heads * head_words(slot), np.uint32)
    found = [_parts(slot, page) for page in pages] or [_parts(slot, nothing)]
    joined = [
        np.ascontiguousarray(np.concatenate([page[side][part] for page in found])[:rows])
        for side in range(2)
        for part in range(3)
    ]
    return KVPlanes(*joined)


def pages_of(slot: KVRows, planes: KVPlanes) -> Iterator[np.ndarray]:
    """Words of the pages that hold these rows."""
    words, rows = -(-slot.key_dim // 4), len(planes.key_high)
    for start in range(0, rows, TILE):
        cut = slice(start, start + TILE)
        count = min(TILE, rows - start)
        keys = np.zeros((TILE, 2, slot.heads, 4 * words), np.int8)
        values = np.zeros((TILE, 2, slot.heads, slot.value_dim), np.int8)
        e = np.zeros((TILE, 2, slot.heads), np.int32)
        for plane, name in enumerate(("high", "low")):
            keys[:count, plane, :, : slot.key_dim] = getattr(planes, f"key_{name}")[cut]
            values[:count, plane] = getattr(planes, f"value_{name}")[cut]
        e[:count, 0], e[:count, 1] = planes.key_exponent[cut], planes.value_exponent[cut]
        key_words = np.ascontiguousarray(keys).view(np.uint32).transpose(2, 1, 3, 0)
        fours = values.reshape(16, 4, 2, slot.heads, slot.value_dim).transpose(3, 2, 0, 4, 1)
        value_words = np.ascontiguousarray(fours).view(np.uint32)
        parts = (key_words, value_words, e.view(np.uint32).transpose(2, 1, 0))
        yield np.concatenate([part.reshape(slot.heads, -1) for part in parts], axis=1).reshape(-1)


def ring_rows(slot: Ring, words: np.ndarray | None, length: int) -> np.ndarray:
    """The last `slot.length` rows before position `length`, zero where there were none."""
    window = np.zeros((slot.length, slot.width), np.float32)
    kept = min(slot.length, length)
    if kept and words is not None:
        rows = words.view(np.float32)[: capacity_of(slot) * slot.width].reshape(-1, slot.width)
        window[-kept:] = rows[np.arange(length - kept, length) % len(rows)]
    return window


def ring_words(slot: Ring, rows: np.ndarray, length: int) -> np.ndarray:
    """The words of a ring whose last rows before position `length` are these."""
    ring = np.full((capacity_of(slot), slot.width), POISON_FLOAT, np.float32)
    kept = min(slot.length, length)
    if kept:
        ring[np.arange(length - kept, length) % len(ring)] = snapped(rows)[len(rows) - kept :]
    return ring.reshape(-1).view(np.uint32)


def snapped(values: np.ndarray) -> np.ndarray:
    """Values below 2⁻⁴⁰ as zero."""
    values = np.ascontiguousarray(values)
    small = (values.view(np.int32) & np.int32(0x7FFFFFFF)) < SMALLEST_BITS
    return np.where(small, np.float32(0), values)
