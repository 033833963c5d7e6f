"""Memory of sequences: pages of 64 positions, and blocks of what has one size for a sequence.

A page is a number that every `KVRows` slot has memory for, a block one that every `Ring` and
`Recurrent` slot has memory for. Slots keep them in one buffer each, which doubles when they run
out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from cortiq.backend import KVPlanes
from cortiq.backend.extents import MARK, MarkedExtent, ring_rows
from cortiq.backend.paged_layout import PagedLayout
from cortiq.backend.paged_memory import PagedMemory
from cortiq.backend.pages import NoMemoryError, PageGroup
from cortiq.backend.planes import POISON, Floats
from cortiq.backend.recurrences import recurrences_of
from cortiq.ir import KVRows, Program, Recurrent, Ring, Slot
from cortiq.numerics.contract import TILE
from cortiq_wgpu import page_layout
from cortiq_wgpu.recurrent_memory import RecurrentReplay, RecurrentRows

FIRST = 8
"""Pages, or blocks, that there is memory for at first, unless they are large."""
FIRST_BYTES = 1 << 26
"""Memory for pages, or blocks, at first, unless one has more."""


@dataclass
class PageNumbers:
    """Numbers of pages or blocks: their limit, their count, and those that are free."""

    most: int
    capacity: int = 0
    free: list[int] = field(default_factory=list)


class WgpuStateMemory(PagedMemory):
    """Memory of all slots of a program.

    Attributes
    ----------
    version : changes when a slot's buffer is another one. buffers : by slot.
    """

    def __init__(
        self, program: Program, gpu: Any, limit: int, poison: bool, windows: Mapping[str, int]
    ) -> None:
        self.gpu, self.limit, self.poison = gpu, limit, poison
        self.slots, self.recurrences = program.slots, recurrences_of(program, RecurrentRows)
        self.layout = PagedLayout(program, lambda name, _: 4 * self._words(name), windows=windows)
        self.buffers: dict[str, Any] = {}
        self._replay = RecurrentReplay(gpu, self.buffers)
        self.version = 0
        self._shelves: dict[PageGroup, PageNumbers] = {}
        for group in (*self.layout.groups, self.layout.block):
            largest = max((4 * self._words(name) for name, _ in self._slots(group)), default=1)
            shelf = self._shelves[group] = PageNumbers(limit // largest)
            first = max(1, min(FIRST, FIRST_BYTES // max(1, group.page_bytes)))
            self._grow(group, min(first, shelf.most))

    def _words(self, name: str) -> int:
        """Count the words of a page or a block of a slot."""
        slot = self.slots[name]
        if isinstance(slot, KVRows):
            return slot.heads * page_layout.head_words(slot)
        if isinstance(slot, Ring):
            return max(1, ring_rows(slot) * slot.width)
        assert isinstance(slot, Recurrent)
        return self.recurrences[name].words if name in self.recurrences else prod(slot.shape)

    def _slots(self, group: PageGroup) -> Iterator[tuple[str, Slot]]:
        layout = self.layout
        if group == layout.block:
            yield from layout.fixed.items()
        else:
            yield from ((n, s) for n, s in layout.kv.items() if layout.group_of[n] == group.number)

    def left_bytes(self) -> int:
        """Return the bytes there can be beyond those in use, in buffers that kernels see."""
        shelves = self._shelves.items()
        return sum((s.most - s.capacity + len(s.free)) * g.page_bytes for g, s in shelves)

    def allocate(self, group: PageGroup) -> int:
        """Return the number of a page or block."""
        shelf = self._shelves[group]
        if not shelf.free:
            if shelf.capacity >= shelf.most:
                raise NoMemoryError()
            self._grow(group, min(shelf.most, max(1, 2 * shelf.capacity)))
        number = shelf.free.pop()
        self.spoil(group, number)
        return number

    def free(self, group: PageGroup, data: int) -> None:
        """Mark a number as free."""
        self._shelves[group].free.append(data)

    def spoil(self, group: PageGroup, data: int) -> None:
        """Fill a page or block with values that show up in results if they are read."""
        for name, slot in self._slots(group) if self.poison else ():
            self._write(name, data, _poison(slot, self._words(name)))

    def _grow(self, group: PageGroup, capacity: int) -> None:
        """Grow the memory to so many, its contents kept."""
        encoder, shelf = self.gpu.device.create_command_encoder(), self._shelves[group]
        for name, _ in self._slots(group):
            size = 4 * self._words(name)
            more = self.gpu.buffer(size * capacity)
            if shelf.capacity:
                old = self.buffers[name]
                encoder.copy_buffer_to_buffer(old, 0, more, 0, size * shelf.capacity)
            self.buffers[name] = more
        self.gpu.device.queue.submit([encoder.finish()])
        shelf.free = [*range(capacity - 1, shelf.capacity - 1, -1), *shelf.free]
        shelf.capacity = capacity
        self.version += 1

    def copy(self, group: PageGroup, source: int, target: int) -> None:
        """Copy what a page or block holds into another one."""
        encoder = self.gpu.device.create_command_encoder()
        for name, _ in self._slots(group):
            size, buffer = 4 * self._words(name), self.buffers[name]
            held = self.gpu.buffer(size)  # a buffer cannot be copied to itself
            encoder.copy_buffer_to_buffer(buffer, source * size, held, 0, size)
            encoder.copy_buffer_to_buffer(held, 0, buffer, target * size, size)
        self.gpu.device.queue.submit([encoder.finish()])

    def _read(self, name: str, number: int) -> np.ndarray:
        size = 4 * self._words(name)
        return self.gpu.download(self.buffers[name], number * size, size)

    def _write(self, name: str, number: int, words: np.ndarray) -> None:
        self.gpu.upload(self.buffers[name], 4 * number * self._words(name), words)

    def read_page(self, name: str, page: int) -> KVPlanes:
        """Return all rows of a slot in a page."""
        return page_layout.planes_of(self.layout.kv[name], self._read(name, page))

    def write_page(self, name: str, page: int, rows: KVPlanes) -> None:
        """Replace all rows of a slot in a page."""
        self._write(name, page, page_layout.words_of(self.layout.kv[name], rows))

    def read(self, name: str, block: int) -> Floats:
        """Return a ring, or a recurrent state."""
        slot: Any = self.layout.fixed[name]
        shape = (ring_rows(slot), slot.width) if isinstance(slot, Ring) else slot.shape
        return self._read(name, block)[: prod(shape)].view(np.float32).reshape(shape)

    def write(self, name: str, block: int, values: Floats, length: int) -> None:
        """Replace a ring or a recurrent state, of which a mark is kept as well."""
        words = np.ascontiguousarray(values).reshape(-1).view(np.uint32)
        self._write(name, block, words)
        if name in self.recurrences:
            start = 4 * (block * self._words(name) + len(words) * (1 + length // MARK % 2))
            self.gpu.upload(self.buffers[name], start, words)

    def recurrent_extent(self) -> MarkedExtent:
        """Return the extent of an empty recurrent state."""
        return MarkedExtent()

    def rewind(self, name: str, block: int, extent: Any) -> None:
        """Bring a recurrent state back to where its extent is now."""
        if name in self.recurrences:
            self._replay.rewind(name, self.recurrences[name], block, extent)
        else:
            super().rewind(name, block, extent)


def _poison(slot: Slot, words: int) -> np.ndarray:
    """Return words that show up in results if they are read."""
    if not isinstance(slot, KVRows):
        return np.full(words, POISON, np.float32).view(np.uint32)
    keys = TILE * -(-slot.key_dim // 4)
    largest, lows = np.full(keys, 0x7F7F7F7F), np.zeros(keys)
    values = np.full(16 * slot.value_dim, 0x7F7F7F7F), np.zeros(16 * slot.value_dim)
    head = np.concatenate([largest, lows, *values, np.full(2 * TILE, 60)])
    return np.tile(head.astype(np.uint32), slot.heads)
