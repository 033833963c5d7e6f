"""The device's memory for sequences: pages of 64 positions for all slots, a block of the rest.

Kernels reach pages through tables of addresses, so that memory can grow without any launch
changing.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import torch

from cortiq.backend import KVPlanes
from cortiq.backend.extents import MARK, MarkedExtent, ring_rows
from cortiq.backend.paged_layout import PagedLayout
from cortiq.backend.paged_memory import PagedMemory
from cortiq.backend.pages import NoMemoryError, PageGroup
from cortiq.backend.planes import Floats
from cortiq.backend.recurrences import recurrences_of
from cortiq.ir import KVRows, Program, Ring, Slot
from cortiq.numerics.contract import TILE
from cortiq_triton.recurrences import KeptRecurrence, replay

ALIGNMENT = 16
POISON = 0x7B
"""Byte that fills unused memory in tests: large codes, exponents and floats."""


def fixed_shape(slot: Any) -> tuple[int, ...]:
    """Shape of a ring or of a recurrent state."""
    return (ring_rows(slot), slot.width) if isinstance(slot, Ring) else slot.shape


class DeviceBytes:
    """Memory of a page or block, and where it lies."""

    __slots__ = ("address", "memory")

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory, self.address = memory, memory.data_ptr()


class TritonMemory(PagedMemory):
    """Pages and blocks on a device; freed pages are used again before memory is asked for.

    A sequence has pages for the rows that it keeps of a windowed slot and for a tile more. Those of
    a batch's rows beyond that are taken while it is launched, and are free at once afterwards: what
    uses them next is launched behind it.

    Parameters
    ----------
    windows : of slots whose rows are given up behind them.

    Attributes
    ----------
    spare : pages nobody holds, by the number of their group.
    """

    def __init__(
        self, program: Program, device: str, poison: bool, windows: Mapping[str, int]
    ) -> None:
        self._recurrences = recurrences_of(program, KeptRecurrence)
        self.layout = PagedLayout(program, self._slot_bytes, windows=windows, piece_rows=TILE)
        self._device, self._poison = device, poison
        self.spare: list[list[DeviceBytes]] = [[] for _ in self.layout.groups]

    def _slot_bytes(self, name: str, slot: Slot) -> int:
        """Bytes of a slot in a page or in a sequence's block.

        In a page lie planes of keys [heads, 64, dim] and of values [heads, dim, 64], then exponents
        [heads, 64] of both.
        """
        if isinstance(slot, KVRows):
            size = TILE * slot.heads * (2 * (slot.key_dim + slot.value_dim) + 2)
        elif name in self._recurrences:
            size = 4 * self._recurrences[name].words
        else:
            size = 4 * prod(fixed_shape(slot))
        return -(-size // ALIGNMENT) * ALIGNMENT

    @property
    def spare_bytes(self) -> int:
        """Bytes of the pages nobody holds."""
        pairs = zip(self.spare, self.layout.groups, strict=True)
        return sum(len(pages) * group.page_bytes for pages, group in pairs)

    @property
    def windowed_row_bytes(self) -> int:
        """Bytes of a row in the slots whose rows are given up."""
        return sum(g.page_bytes for g in self.layout.groups if g.most is not None) // TILE

    def allocate(self, group: PageGroup) -> DeviceBytes:
        """Return memory of a page or block."""
        if group != self.layout.block and self.spare[group.number]:
            page = self.spare[group.number].pop()
            self.spoil(group, page)
            return page
        try:
            return DeviceBytes(self._fresh(group.page_bytes))
        except torch.OutOfMemoryError as error:
            raise NoMemoryError() from error

    def _fresh(self, size: int) -> torch.Tensor:
        memory = torch.empty(size, dtype=torch.int8, device=self._device)
        return memory.fill_(POISON) if self._poison else memory

    def free(self, group: PageGroup, data: DeviceBytes) -> None:
        """Keep a page for whoever needs one."""
        if group != self.layout.block:
            self.spare[group.number].append(data)

    def spoil(self, group: PageGroup, data: DeviceBytes) -> None:
        """Fill a page that nobody needs with values that show if they are read; only in tests."""
        if self._poison:
            data.memory.fill_(POISON)

    def clear(self) -> None:
        """Give up the pages that nobody holds."""
        for pages in self.spare:
            pages.clear()

    def copy(self, group: PageGroup, source: DeviceBytes, target: DeviceBytes) -> None:
        """Copy what a page or block holds into another of its group."""
        target.memory.copy_(source.memory)

    def _part(self, name: str, slot: Slot, chunk: DeviceBytes) -> torch.Tensor:
        start = self.layout.offsets[name]
        return chunk.memory[start : start + self._slot_bytes(name, slot)]

    def _views(
        self, slot: KVRows, at: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Keys [2, 64, heads, dim], values the same, exponents [2, 64, heads] of a page's part."""
        heads, dk, dv = slot.heads, slot.key_dim, slot.value_dim
        ends = np.cumsum([2 * heads * TILE * width for width in (dk, dv, 1)]).tolist()
        keys, values, exponents, _ = torch.tensor_split(at, ends)
        return (
            keys.view(2, heads, TILE, dk).permute(0, 2, 1, 3),
            values.view(2, heads, dv, TILE).permute(0, 3, 1, 2),
            exponents.view(2, heads, TILE).permute(0, 2, 1),
        )

    def read_page(self, name: str, page: DeviceBytes) -> KVPlanes:
        """Return all rows of a slot in a page."""
        slot = self.layout.kv[name]
        k, v, e = (x.numpy() for x in self._views(slot, self._part(name, slot, page).cpu()))
        return KVPlanes(k[0], k[1], e[0], v[0], v[1], e[1])

    def write_page(self, name: str, page: DeviceBytes, rows: KVPlanes) -> None:
        """Replace all rows of a slot in a page."""
        slot = self.layout.kv[name]
        there = self._part(name, slot, page)
        host = torch.empty_like(there, device="cpu")
        given = (
            (rows.key_high, rows.key_low),
            (rows.value_high, rows.value_low),
            (rows.key_exponent, rows.value_exponent),
        )
        for view, parts in zip(self._views(slot, host), given, strict=True):
            view.copy_(torch.from_numpy(np.stack(parts)))
        there.copy_(host)

    def _floats(self, name: str, block: DeviceBytes, place: int = 0) -> torch.Tensor:
        """A ring, or a recurrent state: the present one, or a mark of it."""
        slot = self.layout.fixed[name]
        shape = fixed_shape(slot)
        count = prod(shape)
        floats = self._part(name, slot, block).view(torch.float32)
        return floats[place * count : (place + 1) * count].view(shape)

    def read(self, name: str, block: DeviceBytes) -> Floats:
        """Return a ring, or a recurrent state."""
        return self._floats(name, block).cpu().numpy().copy()

    def write(self, name: str, block: DeviceBytes, values: Floats, length: int) -> None:
        """Replace a ring or a recurrent state, of which a mark is kept as well."""
        self._floats(name, block).copy_(torch.from_numpy(values))
        if name in self._recurrences:
            mark = self._floats(name, block, 1 + length // MARK % 2)
            mark.copy_(self._floats(name, block))

    def recurrent_extent(self) -> MarkedExtent:
        """Return the extent of an empty recurrent state."""
        return MarkedExtent()

    def rewind_all(self, block: DeviceBytes, extents: Mapping[str, Any]) -> None:
        """Bring recurrent states of a block back to where their extents are now."""
        known = {n: e for n, e in extents.items() if n in self._recurrences and e.length}
        for name in extents.keys() - known.keys():
            self._floats(name, block).zero_()
        replay(block.memory, self._recurrences, self.layout.offsets.__getitem__, known)

    def warm(self, block: DeviceBytes) -> None:
        """Launch what rewinds need, in a block that may be spoilt."""
        self.rewind_all(block, dict.fromkeys(self._recurrences, MarkedExtent(MARK, (MARK,))))
