"""Memory of sequences: pages of 64 positions, and blocks of what has one size for a sequence.

A page is a number that every `KVRows` slot has memory for, a block one that every `Ring` and
`Recurrent` slot has memory for. Slots keep them in one buffer each, which doubles when they run
out. Pages are shared while they are only read: `users` counts who holds one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from cortiq.errors import BackendError
from cortiq.ir import KVRows, Program, Recurrent, Ring, Slot

TILE = 64
SLACK = 64
"""Rows of a ring beyond those that the next row looks at: how far it can go back exactly."""
FIRST = 8
"""Pages, or blocks, that there is memory for at first."""
POISON_FLOAT = 2.0**49


def capacity_of(slot: Ring) -> int:
    """Rows of a ring."""
    return slot.length + SLACK


def unit_words(slot: Slot) -> int:
    """Words of a page or a block of a slot."""
    if isinstance(slot, KVRows):
        return slot.heads * head_words(slot)
    if isinstance(slot, Ring):
        return max(1, capacity_of(slot) * slot.width)
    assert isinstance(slot, Recurrent)
    return prod(slot.shape)


def head_words(slot: KVRows) -> int:
    """Words of a page's head: key planes, value planes, exponents."""
    return 2 * TILE * -(-slot.key_dim // 4) + 32 * slot.value_dim + 2 * TILE


@dataclass
class Shelf:
    """Numbers of pages or blocks: free ones, and how many hold each of the others."""

    slots: Mapping[str, Slot]
    most: int
    capacity: int = 0
    free: list[int] = field(default_factory=list)
    users: dict[int, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of one, over all slots."""
        return sum(4 * unit_words(slot) for slot in self.slots.values())

    def drop(self, numbers: list[int]) -> None:
        """What a holder needs no more."""
        for number in numbers:
            self.users[number] -= 1
            if not self.users[number]:
                del self.users[number]
                self.free.append(number)

    def share(self, numbers: list[int]) -> list[int]:
        """The same for one more holder."""
        for number in numbers:
            self.users[number] += 1
        return list(numbers)


class Pools:
    """All slots of a program.

    Attributes
    ----------
    version : changes when a slot's buffer is another one. buffers : by slot.
    """

    def __init__(self, program: Program, gpu: Any, limit: int, poison: bool) -> None:
        self.gpu, self.limit, self.poison = gpu, limit, poison
        rows = {n: s for n, s in program.slots.items() if isinstance(s, KVRows)}
        whole = {n: s for n, s in program.slots.items() if not isinstance(s, KVRows)}
        self.pages, self.blocks = self._shelf(rows), self._shelf(whole)
        self.slots = program.slots
        self.buffers: dict[str, Any] = {}
        self.version = 0
        for shelf in (self.pages, self.blocks):
            self._grow(shelf, min(FIRST, shelf.most))

    def _shelf(self, slots: Mapping[str, Slot]) -> Shelf:
        largest = max((4 * unit_words(slot) for slot in slots.values()), default=1)
        return Shelf(slots, self.limit // largest)

    def held_bytes(self) -> int:
        """What all sequences and snapshots hold, what they share once."""
        return sum(len(shelf.users) * shelf.nbytes for shelf in (self.pages, self.blocks))

    def left_bytes(self) -> int:
        """What there can be beyond that, in buffers that kernels see."""
        return sum(
            (shelf.most - len(shelf.users)) * shelf.nbytes for shelf in (self.pages, self.blocks)
        )

    def new(self, shelf: Shelf, source: int | None = None) -> int:
        """A page or block: with the words of another one if given, else of any."""
        if not shelf.free:
            if shelf.capacity >= shelf.most:
                raise BackendError("no memory is left for sequences", hint="Release another first.")
            self._grow(shelf, min(shelf.most, max(1, 2 * shelf.capacity)))
        number = shelf.free.pop()
        shelf.users[number] = 1
        if source is not None:
            self._copy(shelf, source, number)
        elif self.poison:
            self._poison(shelf, number)
        return number

    def _grow(self, shelf: Shelf, capacity: int) -> None:
        """Have memory for so many, what is there kept."""
        encoder = self.gpu.device.create_command_encoder()
        for name, slot in shelf.slots.items():
            size = 4 * unit_words(slot)
            more = self.gpu.buffer(size * capacity)
            if shelf.capacity:
                old = self.buffers[name]
                encoder.copy_buffer_to_buffer(old, 0, more, 0, size * shelf.capacity)
            self.buffers[name] = more
        self.gpu.device.queue.submit([encoder.finish()])
        shelf.free = [*range(capacity - 1, shelf.capacity - 1, -1), *shelf.free]
        shelf.capacity = capacity
        self.version += 1

    def _copy(self, shelf: Shelf, source: int, number: int) -> None:
        encoder = self.gpu.device.create_command_encoder()
        for name, slot in shelf.slots.items():
            size, buffer = 4 * unit_words(slot), self.buffers[name]
            held = self.gpu.buffer(size)  # a buffer cannot be copied to itself
            encoder.copy_buffer_to_buffer(buffer, source * size, held, 0, size)
            encoder.copy_buffer_to_buffer(held, 0, buffer, number * size, size)
        self.gpu.device.queue.submit([encoder.finish()])

    def _poison(self, shelf: Shelf, number: int) -> None:
        for name, slot in shelf.slots.items():
            size = unit_words(slot)
            if isinstance(slot, KVRows):
                keys, heads = TILE * -(-slot.key_dim // 4), slot.heads
                largest, lows = np.full(keys, 0x7F7F7F7F), np.zeros(keys)
                values = np.full(16 * slot.value_dim, 0x7F7F7F7F), np.zeros(16 * slot.value_dim)
                head = np.concatenate([largest, lows, *values, np.full(2 * TILE, 60)])
                words = np.tile(head.astype(np.uint32), heads)
            else:
                words = np.full(size, POISON_FLOAT, np.float32).view(np.uint32)
            self.gpu.upload(self.buffers[name], 4 * number * size, words)

    def clear(self, number: int) -> None:
        """Zero the recurrent states of a block."""
        for name, slot in self.blocks.slots.items():
            if isinstance(slot, Recurrent):
                words = unit_words(slot)
                self.write(name, number, np.zeros(words, np.uint32))

    def read(self, name: str, number: int) -> np.ndarray:
        """The words of a slot's page or block."""
        size = 4 * unit_words(self.slots[name])
        return self.gpu.download(self.buffers[name], number * size, size)

    def write(self, name: str, number: int, words: np.ndarray) -> None:
        """Replace them."""
        self.gpu.upload(self.buffers[name], 4 * number * unit_words(self.slots[name]), words)
