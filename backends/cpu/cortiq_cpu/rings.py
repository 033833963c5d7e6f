"""Rows of ring slots."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cortiq.ir import Ring

POISON = 2.0**49
"""What unused rows of rings hold in tests."""
SMALLEST_BITS = (127 - 40) << 23
"""Bits of 2⁻⁴⁰."""

Floats = npt.NDArray[np.float32]


class Rows:
    """Rows of a ring slot. All since `base` are kept, at their positions, so that going back is
    exact.
    """

    def __init__(self, slot: Ring, fill: float = 0.0) -> None:
        self.slot, self.fill = slot, fill
        self.base = 0
        self.data: Floats = np.zeros((0, slot.width), np.float32)

    def grow(self, rows: int) -> None:
        """Make room for positions 0 … rows − 1."""
        if rows > len(self.data):
            grown = np.full((rows, self.slot.width), self.fill, np.float32)
            grown[: len(self.data)] = self.data
            self.data = grown

    def rewind(self, length: int, reached: int) -> int:
        """How far back a sequence of `length` rows can go, if not to `reached`."""
        if reached >= length or self.base == 0 or reached - self.slot.length >= self.base:
            return reached
        self.base = 0
        return 0

    def last(self, length: int) -> Floats:
        """The `slot.length` rows before position `length`; zero where there were none."""
        window = np.zeros((self.slot.length, self.slot.width), np.float32)
        kept = min(self.slot.length, length - self.base)
        if kept:
            window[-kept:] = self.data[length - kept : length]
        return window

    def load(self, rows: Floats, length: int) -> None:
        """Become the last rows before position `length`; values below 2⁻⁴⁰ count as zero."""
        kept = min(self.slot.length, length)
        self.base = length - kept
        small = (rows.view(np.int32) & np.int32(0x7FFFFFFF)) < SMALLEST_BITS
        snapped = np.where(small, np.float32(0), rows)
        self.data[self.base : length] = snapped[len(rows) - kept :]

    def copy(self) -> Rows:
        """Another one with the same rows."""
        other = Rows(self.slot, self.fill)
        other.base, other.data = self.base, self.data.copy()
        return other
