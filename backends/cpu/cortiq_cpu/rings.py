"""Rows of ring slots, and the arrays of recurrent ones."""

from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt

from cortiq.ir import Recurrent, Ring

POISON = 2.0**49
"""What unused rows of rings hold in tests."""
SMALLEST_BITS = (127 - 40) << 23
"""Bits of 2⁻⁴⁰."""
SLACK = 64
"""Rows kept beyond those that the next row looks at: how far a sequence can go back exactly."""

Floats = npt.NDArray[np.float32]


class Rows:
    """Rows of a ring slot, each in place `position % capacity`.

    Attributes
    ----------
    floor : the first position whose row is still there.
    """

    def __init__(self, slot: Ring, fill: float = 0.0) -> None:
        self.slot, self.fill = slot, fill
        self.floor = 0
        self.data: Floats = np.zeros((0, slot.width), np.float32)

    @staticmethod
    def rows_of(slot: Ring) -> int:
        """Rows that are kept."""
        return slot.length + SLACK

    def open(self) -> bool:
        """Have memory; whether it is new."""
        if len(self.data):
            return False
        self.data = np.full((self.rows_of(self.slot), self.slot.width), self.fill, np.float32)
        return True

    def written(self, length: int) -> None:
        """The rows before `length` are written now, over the oldest ones."""
        self.floor = max(self.floor, length - self.rows_of(self.slot))

    def rewind(self, length: int, reached: int) -> int:
        """How far back a sequence of `length` rows can go, if not to `reached`."""
        if reached >= length or max(0, reached - self.slot.length) >= self.floor:
            return reached
        return 0

    def restart(self) -> None:
        """Be as at the start of a sequence."""
        self.floor = 0

    def _places(self, start: int, stop: int) -> npt.NDArray[np.intp]:
        return np.arange(start, stop) % max(1, len(self.data))

    def last(self, length: int) -> Floats:
        """The `slot.length` rows before position `length`; zero where there were none."""
        window = np.zeros((self.slot.length, self.slot.width), np.float32)
        kept = min(self.slot.length, length - self.floor)
        if kept:
            window[-kept:] = self.data[self._places(length - kept, length)]
        return window

    def load(self, rows: Floats, length: int) -> None:
        """Become the last rows before position `length`; values below 2⁻⁴⁰ count as zero."""
        kept = min(self.slot.length, length)
        self.floor = length - kept
        self.data[self._places(self.floor, length)] = snapped(rows)[len(rows) - kept :]

    def copy(self) -> Rows:
        """Another one with the same rows."""
        other = Rows(self.slot, self.fill)
        other.floor, other.data = self.floor, self.data.copy()
        return other


def snapped(values: Floats) -> Floats:
    """Values below 2⁻⁴⁰ as zero."""
    small = (values.view(np.int32) & np.int32(0x7FFFFFFF)) < SMALLEST_BITS
    return np.where(small, np.float32(0), values)


class Whole:
    """The array of a recurrent slot: every row replaces it, so that it goes back to its start only.

    Attributes
    ----------
    data : float32 [1, values], or no row before there is memory.
    """

    def __init__(self, slot: Recurrent) -> None:
        self.slot = slot
        self.data: Floats = np.zeros((0, prod(slot.shape)), np.float32)

    def open(self) -> bool:
        """Have memory; whether it is new."""
        if len(self.data):
            return False
        self.data = np.zeros((1, self.data.shape[1]), np.float32)
        return True

    def written(self, length: int) -> None:
        """There is nothing to count."""

    def rewind(self, length: int, reached: int) -> int:
        """How far back a sequence of `length` rows can go: not at all, or to its start."""
        return reached if reached >= length else 0

    def restart(self) -> None:
        """Be as at the start of a sequence."""
        self.data[...] = 0

    def last(self, length: int) -> Floats:
        """The state, in the slot's shape."""
        values = self.data if len(self.data) else np.zeros((1, self.data.shape[1]), np.float32)
        return values.reshape(self.slot.shape).copy()

    def load(self, values: Floats, length: int) -> None:
        """Become a state; values below 2⁻⁴⁰ count as zero."""
        self.data[0] = snapped(values).reshape(-1)

    def copy(self) -> Whole:
        """Another one with the same values."""
        other = Whole(self.slot)
        other.data = self.data.copy()
        return other


def store_of(slot: Ring | Recurrent, fill: float) -> Rows | Whole:
    """What a sequence keeps a slot in; `fill` is what unused rows hold."""
    return Rows(slot, fill) if isinstance(slot, Ring) else Whole(slot)


def bytes_of(slot: Ring | Recurrent) -> int:
    """Memory of a slot, however long its sequence is."""
    values = Rows.rows_of(slot) * slot.width if isinstance(slot, Ring) else prod(slot.shape)
    return 4 * values
