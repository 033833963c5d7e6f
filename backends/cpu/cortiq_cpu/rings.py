"""Rows of ring slots."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cortiq.ir import Ring
from cortiq_cpu.native import Pool
from cortiq_cpu.packing import aligned_floats

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
        self.data = aligned_floats(self.rows_of(self.slot), self.slot.width)
        self.data[:] = self.fill
        return True

    def written(self, before: int, after: int) -> None:
        """The rows from `before` to `after` are written now, over the oldest ones."""
        self.floor = max(self.floor, after - self.rows_of(self.slot))

    def rewind(self, length: int, reached: int) -> int:
        """How far back a sequence of `length` rows can go, if not to `reached`."""
        if reached >= length or max(0, reached - self.slot.length) >= self.floor:
            return reached
        return 0

    def go(self, length: int, pool: Pool) -> None:
        """Go back to a length that `rewind` gave."""
        self.floor = min(self.floor, length)

    @property
    def nbytes(self) -> int:
        """Memory when it is open."""
        return 4 * self.rows_of(self.slot) * self.slot.width

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
        other.floor = self.floor
        if len(self.data) and other.open():
            other.data[:] = self.data
        return other


def snapped(values: Floats) -> Floats:
    """Values below 2⁻⁴⁰ as zero."""
    small = (values.view(np.int32) & np.int32(0x7FFFFFFF)) < SMALLEST_BITS
    return np.where(small, np.float32(0), values)
