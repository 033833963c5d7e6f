"""The host's memory for sequences."""

from __future__ import annotations

from typing import Any

import numpy as np

from cortiq.backend import KVPlanes
from cortiq.backend.extents import MarkedExtent, ring_rows
from cortiq.backend.paged_memory import PagedMemory
from cortiq.backend.pages import PageGroup
from cortiq.backend.planes import POISON, Floats
from cortiq.ir import Ring
from cortiq_cpu.arena import LINE
from cortiq_cpu.native import ThreadPool
from cortiq_cpu.pages import Bytes
from cortiq_cpu.state_layout import StateLayout

SPARE = 1
"""Released blocks that the next sequences take: fresh memory costs more than a short prompt."""


class AlignedBytes:
    """Bytes at a multiple of 64, and the address of the first."""

    __slots__ = ("address", "bytes")

    def __init__(self, size: int) -> None:
        block = np.zeros(size + LINE, np.uint8)
        skip = -block.ctypes.data % LINE
        self.bytes: Bytes = block[skip : skip + size]
        self.address: int = self.bytes.ctypes.data


class CpuStateMemory(PagedMemory):
    """Pages and blocks in the layout of the native kernels.

    Parameters
    ----------
    pool : threads that replay the rows of a recurrence. poison : whether unused memory is spoilt.
    """

    layout: StateLayout

    def __init__(self, layout: StateLayout, pool: ThreadPool, poison: bool) -> None:
        self.layout, self._pool, self._poison = layout, pool, poison
        self.spare: list[AlignedBytes] = []

    @property
    def spare_bytes(self) -> int:
        """Return the bytes that wait for sequences."""
        return len(self.spare) * self.layout.block.page_bytes

    def allocate(self, group: PageGroup) -> AlignedBytes:
        """Return memory of a page or block."""
        if group == self.layout.block and self.spare:
            return self.spare.pop()
        chunk = AlignedBytes(group.page_bytes)
        self.spoil(group, chunk)
        return chunk

    def free(self, group: PageGroup, data: AlignedBytes) -> None:
        """Keep a block for the next sequence."""
        if group == self.layout.block and len(self.spare) < SPARE:
            self.spare.append(data)

    def copy(self, group: PageGroup, source: AlignedBytes, target: AlignedBytes) -> None:
        """Copy what a page or block holds into another of its group."""
        target.bytes[:] = source.bytes

    def spoil(self, group: PageGroup, data: AlignedBytes) -> None:
        """Fill memory with values that show up in results if they are read; only in tests."""
        if not self._poison:
            return
        for name, number in self.layout.group_of.items():
            if number == group.number:
                self.layout.rows[name].poison(self._rows(name, data))
        if group == self.layout.block:
            data.bytes.view(np.float32)[:] = POISON

    def _rows(self, name: str, page: AlignedBytes) -> Bytes:
        start = self.layout.offsets[name]
        return page.bytes[start : start + self.layout.rows[name].page_bytes]

    def read_page(self, name: str, page: AlignedBytes) -> KVPlanes:
        """Return all rows of a slot in a page."""
        return self.layout.rows[name].read(self._rows(name, page))

    def write_page(self, name: str, page: AlignedBytes, rows: KVPlanes) -> None:
        """Replace all rows of a slot in a page."""
        self.layout.rows[name].write(self._rows(name, page), rows)

    def _floats(self, name: str, block: AlignedBytes) -> Floats:
        slot, start = self.layout.fixed[name], self.layout.offsets[name]
        if isinstance(slot, Ring):
            shape: tuple[int, ...] = ring_rows(slot), slot.width
        else:
            shape = (self.layout.recurrences[name].size,)
        stop = start + 4 * int(np.prod(shape))
        return block.bytes[start:stop].view(np.float32).reshape(shape)

    def read(self, name: str, block: AlignedBytes) -> Floats:
        """Return a ring, or a recurrent state."""
        data, recurrence = self._floats(name, block), self.layout.recurrences.get(name)
        return data if recurrence is None else recurrence.read(data)

    def write(self, name: str, block: AlignedBytes, values: Floats, length: int) -> None:
        """Replace a ring or a recurrent state by that of a sequence of so many rows."""
        data, recurrence = self._floats(name, block), self.layout.recurrences.get(name)
        if recurrence is None:
            data[:] = values
        else:
            recurrence.write(data, values, length)

    def recurrent_extent(self) -> MarkedExtent:
        """Return the extent of an empty recurrent state."""
        return MarkedExtent()

    def rewind(self, name: str, block: AlignedBytes, extent: Any) -> None:
        """Bring a recurrent state back to where its extent is now."""
        self.layout.recurrences[name].rewind(self._floats(name, block), extent, self._pool)
