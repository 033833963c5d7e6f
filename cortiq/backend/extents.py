"""Extents of rings and recurrent states: rows written, and how far back they can go."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.backend.windows import ROLLBACK_ROWS
from cortiq.ir import Ring

MARK = 64
"""A recurrent state is kept at lengths that this divides, the last two of them."""
KEPT = 128
"""Rows of a recurrence kept to be read again: a sequence can go back `MARK` rows exactly."""


def ring_rows(slot: Ring) -> int:
    """Count the rows that a ring keeps: those that the next row sees, and as many to go back."""
    return slot.length + ROLLBACK_ROWS


@dataclass
class RecurrentExtent:
    """A state that every row replaces: it is known after `length` rows, and before the first."""

    length: int = 0

    def written(self, length: int) -> None:
        """Count the rows up to so many as computed."""
        self.length = length

    def reaches(self, length: int) -> bool:
        """Check whether the slot can become what it was at this length, which is not 0."""
        return length >= self.length

    def rewind(self, length: int) -> int:
        """Forget the rows from `length` on, where `reaches` says so or it is 0."""
        self.length = min(self.length, length)
        return self.length

    def begin(self, length: int, base: int = 0) -> None:
        """Begin at what was imported, of a sequence of this many rows."""
        self.length = length


@dataclass
class MarkedExtent(RecurrentExtent):
    """A state that can go back to its marks, and from there through the rows that were kept.

    Attributes
    ----------
    marks : lengths at which the state is known, ascending; m is at 1 + m // MARK % 2.
    """

    marks: tuple[int, ...] = (0,)

    def written(self, length: int) -> None:
        """Count the rows up to so many as computed, and marks taken on the way."""
        first, last = self.length // MARK + 1, length // MARK
        self.marks = (*self.marks, *(m * MARK for m in range(first, last + 1)))[-2:]
        self.length = length

    def reaches(self, length: int) -> bool:
        """Check whether there is a mark before it."""
        return length >= min(self.length, self.marks[0])

    def rewind(self, length: int) -> int:
        """Forget the rows from `length` on, and marks behind it."""
        self.marks = tuple(mark for mark in self.marks if mark <= length) or (0,)
        return super().rewind(length)

    def begin(self, length: int, base: int = 0) -> None:
        """Start from an imported state of a sequence of this many rows."""
        self.length, self.marks = length, (length,)


@dataclass
class RingExtent(RecurrentExtent):
    """The last rows of a ring, each in place `position % ring_rows(slot)`.

    Attributes
    ----------
    window : rows that the next row looks at. floor : the first position whose row is there.
    """

    window: int = 0
    floor: int = 0

    def written(self, length: int) -> None:
        """Count the rows up to so many as written, over the oldest ones."""
        self.length = length
        self.floor = max(self.floor, length - self.window - ROLLBACK_ROWS)

    def reaches(self, length: int) -> bool:
        """Check whether all is there that the row at position `length` looks at."""
        return length >= self.length or max(0, length - self.window) >= self.floor

    def rewind(self, length: int) -> int:
        """Forget the rows from `length` on."""
        self.floor = min(self.floor, length)
        return super().rewind(length)

    def begin(self, length: int, base: int = 0) -> None:
        """Begin at what was imported, of a sequence of this many rows."""
        self.length, self.floor = length, max(0, length - self.window)
