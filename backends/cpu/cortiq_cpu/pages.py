"""Key and value rows in the native page layout, and their canonical form.

A page holds `tiles` tiles of 64 positions; for each tile and head lies one block: keys int16
[key_dim/2][64][2], values int16 [32][value_dim][2] (pairs of positions), int8 exponents of the 64
keys and of the 64 values; key_dim is padded to even, value_dim to 16s (`native/args.h`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from cortiq.backend import KVPlanes
from cortiq.ir import KVRows
from cortiq.numerics.quantise import ZERO_ROW_EXPONENT

TILE = 64
LARGEST = 32512
"""Largest |q| of a quantised row."""
PAIR = 2
VALUE_STEP = 16

Bytes = npt.NDArray[np.uint8]
Shorts = npt.NDArray[np.int16]
Exponents = npt.NDArray[np.int8]


@dataclass(frozen=True)
class PageLayout:
    """Where the rows of one slot lie in a page of `tiles` tiles."""

    slot: KVRows
    tiles: int

    @property
    def key_pairs(self) -> int:
        """Pairs of key elements."""
        return -(-self.slot.key_dim // PAIR)

    @property
    def value_width(self) -> int:
        """Value elements, padded."""
        return -(-self.slot.value_dim // VALUE_STEP) * VALUE_STEP

    @property
    def block_bytes(self) -> int:
        """Bytes of one tile of one head."""
        return 2 * TILE * (PAIR * self.key_pairs + self.value_width) + 2 * TILE

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return self.tiles * self.slot.heads * self.block_bytes

    def parts(self, page: Bytes) -> tuple[Shorts, Shorts, Exponents, Exponents]:
        """Views of a page: keys [tiles, heads, pairs, 64, 2], values [tiles, heads, 32, width, 2],
        exponents of keys and of values [tiles, heads, 64].
        """
        blocks = page.reshape(self.tiles, self.slot.heads, self.block_bytes)
        ends = np.cumsum([2 * TILE * PAIR * self.key_pairs, 2 * TILE * self.value_width, TILE])
        keys, values, key_e, value_e = np.split(blocks, ends, axis=-1)
        lead = blocks.shape[:2]
        return (
            keys.view(np.int16).reshape(*lead, self.key_pairs, TILE, PAIR),
            values.view(np.int16).reshape(*lead, TILE // PAIR, self.value_width, PAIR),
            key_e.view(np.int8),
            value_e.view(np.int8),
        )

    def poison(self, page: Bytes) -> None:
        """Fill a page, its padding aside, with large integers under large exponents."""
        keys, values, *exponents = self.parts(page)
        odd = self.slot.key_dim % PAIR
        keys[...] = LARGEST
        if odd:
            keys[:, :, -1, :, 1] = 0
        values[..., : self.slot.value_dim, :] = LARGEST
        for exponent in exponents:
            exponent[...] = 60

    def read(self, pages: list[Bytes], skipped: int, rows: int) -> KVPlanes:
        """Rows as canonical planes; so many before them in the first page are left out."""
        slot = self.slot
        parts = [self._rows_of(page) for page in pages]
        empty = (
            np.empty((0, slot.heads, slot.key_dim), np.int16),
            np.empty((0, slot.heads, slot.value_dim), np.int16),
            np.empty((0, slot.heads), np.int8),
            np.empty((0, slot.heads), np.int8),
        )
        joined = [
            np.concatenate(group)[skipped : skipped + rows]
            for group in zip(empty, *parts, strict=True)
        ]
        keys, values, key_e, value_e = joined
        return KVPlanes(*_planes(keys), key_e, *_planes(values), value_e)

    def _rows_of(self, page: Bytes) -> tuple[Shorts, Shorts, Exponents, Exponents]:
        keys, values, key_e, value_e = self.parts(page)
        slot, rows = self.slot, self.tiles * TILE
        keys = keys.transpose(0, 3, 1, 2, 4).reshape(rows, slot.heads, -1)[..., : slot.key_dim]
        values = values.transpose(0, 2, 4, 1, 3).reshape(rows, slot.heads, self.value_width)
        key_e, value_e = (
            exponent.transpose(0, 2, 1).reshape(rows, slot.heads) for exponent in (key_e, value_e)
        )
        if not slot.value_dim:
            value_e = np.full_like(value_e, ZERO_ROW_EXPONENT)
        return keys, values[..., : slot.value_dim], key_e, value_e

    def write(self, pages: list[Bytes], skipped: int, planes: KVPlanes) -> None:
        """Fill pages from canonical planes, which must have the slot's geometry.

        So many rows before them in the first page become zero.
        """
        planes = _behind(skipped, planes)
        rows, step = len(planes.key_high), self.tiles * TILE
        keys = _whole(planes.key_high, planes.key_low)
        values = _whole(planes.value_high, planes.value_low)
        for index, page in enumerate(pages[: -(-rows // step)]):
            cut = slice(index * step, min((index + 1) * step, rows))
            exponents = planes.key_exponent[cut], planes.value_exponent[cut]
            self._fill(page, keys[cut], values[cut], *exponents)

    def _fill(
        self, page: Bytes, keys: Shorts, values: Shorts, key_e: Exponents, value_e: Exponents
    ) -> None:
        slot = self.slot
        whole = np.zeros((self.tiles * TILE, slot.heads, self.key_pairs * PAIR), np.int16)
        whole[: len(keys), :, : slot.key_dim] = keys
        lead = (self.tiles, TILE, slot.heads)
        placed = self.parts(page)
        placed[0][...] = whole.reshape(*lead, -1, PAIR).transpose(0, 2, 3, 1, 4)
        whole = np.zeros((self.tiles * TILE, slot.heads, self.value_width), np.int16)
        whole[: len(values), :, : slot.value_dim] = values
        pairs = whole.reshape(self.tiles, TILE // PAIR, PAIR, slot.heads, self.value_width)
        placed[1][...] = pairs.transpose(0, 3, 1, 4, 2)
        for view, exponent in zip(placed[2:], (key_e, value_e), strict=True):
            padded = np.zeros((self.tiles * TILE, slot.heads), np.int8)
            padded[: len(exponent)] = exponent
            view[...] = padded.reshape(lead).transpose(0, 2, 1)


def _behind(count: int, planes: KVPlanes) -> KVPlanes:
    """The rows with so many rows of zeros before them."""
    parts = (getattr(planes, field.name) for field in fields(planes))
    return KVPlanes(
        *(np.concatenate([np.zeros_like(p, shape=(count, *p.shape[1:])), p]) for p in parts)
    )


def _planes(q: Shorts) -> tuple[Exponents, Exponents]:
    wide = q.astype(np.int32)
    high = (wide + 128) >> 8
    return high.astype(np.int8), (wide - (high << 8)).astype(np.int8)


def _whole(high: Exponents, low: Exponents) -> Shorts:
    """The 16-bit integers of two planes."""
    return ((high.astype(np.int32) << 8) + low).astype(np.int16)
