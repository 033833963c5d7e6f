"""Key and value rows in the native page layout, and their canonical form.

A page holds `tiles` tiles of 64 positions; for each tile and head lies one block: keys int16
[key_dim/2][64][2], values int16 [32][value_dim][2] (pairs of positions), int8 exponents of the 64
keys and of the 64 values; key_dim is padded to even, value_dim to 16s (`native/args.h`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cortiq.backend import KVPlanes
from cortiq.backend.planes import planes_of
from cortiq.ir import KVRows
from cortiq.numerics.contract import TILE
from cortiq.numerics.quantise import LARGEST_CODE, ZERO_ROW_EXPONENT, from_planes

PAIR = 2
VALUE_STEP = 16

Bytes = npt.NDArray[np.uint8]
Shorts = npt.NDArray[np.int16]
Exponents = npt.NDArray[np.int8]


@dataclass(frozen=True)
class PageLayout:
    """Layout of the rows of one slot in a page of `tiles` tiles."""

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
        keys[...] = LARGEST_CODE
        if odd:
            keys[:, :, -1, :, 1] = 0
        values[..., : self.slot.value_dim, :] = LARGEST_CODE
        for exponent in exponents:
            exponent[...] = 60

    def read(self, page: Bytes) -> KVPlanes:
        """Return all rows of a page as canonical planes."""
        keys, values, key_e, value_e = self.parts(page)
        slot, rows = self.slot, self.tiles * TILE
        keys = keys.transpose(0, 3, 1, 2, 4).reshape(rows, slot.heads, -1)[..., : slot.key_dim]
        values = values.transpose(0, 2, 4, 1, 3).reshape(rows, slot.heads, self.value_width)
        key_e, value_e = (
            exponent.transpose(0, 2, 1).reshape(rows, slot.heads) for exponent in (key_e, value_e)
        )
        if not slot.value_dim:
            value_e = np.full_like(value_e, ZERO_ROW_EXPONENT)
        values = values[..., : slot.value_dim]
        return KVPlanes(*planes_of(keys), key_e, *planes_of(values), value_e)

    def write(self, page: Bytes, planes: KVPlanes) -> None:
        """Fill a page from canonical planes of all its rows."""
        slot, lead = self.slot, (self.tiles, TILE, self.slot.heads)
        keys, values, *exponents = self.parts(page)
        whole = np.zeros((self.tiles * TILE, slot.heads, self.key_pairs * PAIR), np.int16)
        whole[..., : slot.key_dim] = from_planes(planes.key_high, planes.key_low)
        keys[...] = whole.reshape(*lead, -1, PAIR).transpose(0, 2, 3, 1, 4)
        whole = np.zeros((self.tiles * TILE, slot.heads, self.value_width), np.int16)
        whole[..., : slot.value_dim] = from_planes(planes.value_high, planes.value_low)
        pairs = whole.reshape(self.tiles, TILE // PAIR, PAIR, slot.heads, self.value_width)
        values[...] = pairs.transpose(0, 3, 1, 4, 2)
        for view, e in zip(exponents, (planes.key_exponent, planes.value_exponent), strict=True):
            view[...] = e.reshape(lead).transpose(0, 2, 1)
