"""What a `Recurrent` slot is kept in: its state, and what is needed to go back a little."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cortiq.backend import KVPlanes
from cortiq.errors import RequestError
from cortiq.ir import Recurrent
from cortiq.numerics.contract import F32, Flags, Floats, snap
from cortiq.numerics.recurrent import StepFunction, in_order

MARK_ROWS = 64
"""The state is kept at positions that are multiples of this; the last `MARKS` of them."""
MARKS = 2
COPIES = MARKS + 1
"""Arrays of the slot's shape that a store may hold."""


class Mark(NamedTuple):
    """The state after `length` rows."""

    length: int
    state: Floats


class RecurrentStore:
    """The state of a `Recurrent` slot, marks of it, and the rows fed since the oldest mark.

    Going back to a length from the oldest mark on takes the state of the nearest mark and the rows
    in between again: exact for the last 64 rows at least. Farther back is the start.
    """

    def __init__(self, slot: Recurrent) -> None:
        self.slot = slot
        self.length = 0
        self._start(Mark(0, np.zeros(slot.shape, F32)))

    def _start(self, mark: Mark) -> None:
        self.length, self.state = mark
        self.marks: list[Mark] = [mark]
        self.rows: tuple[Floats, ...] = ()
        self.step: StepFunction | None = None

    def nbytes(self) -> int:
        """Memory of the state and its marks, which may be fewer yet."""
        return COPIES * self.slot.constant_bytes()

    def advance(self, step: StepFunction, rows: tuple[Floats, ...], faults: Flags) -> Floats:
        """Feed rows [n, ...] in order, and return every row's output."""
        self.step, count = step, len(rows[0])
        outputs, done = [], 0
        while done < count:
            stop = min(count, done + MARK_ROWS - self.length % MARK_ROWS)
            part = tuple(x[done:stop] for x in rows)
            self.state, out = in_order(step, self.state, part, faults[done:stop])
            outputs.append(out)
            self.length, done = self.length + stop - done, stop
            self._remember(part)
        return np.concatenate(outputs)

    def _remember(self, part: tuple[Floats, ...]) -> None:
        old = self.rows or tuple(x[:0] for x in part)
        self.rows = tuple(np.concatenate(pair) for pair in zip(old, part, strict=True))
        if self.length % MARK_ROWS == 0:
            self.marks.append(Mark(self.length, self.state))
        if len(self.marks) > MARKS:
            gone = self.marks[1].length - self.marks[0].length
            del self.marks[0]
            self.rows = tuple(x[gone:].copy() for x in self.rows)

    def rewind(self, length: int) -> int:
        """Go back to a length; to 0 where it lies before the oldest mark."""
        if length >= self.length:
            return self.length
        if length < self.marks[0].length:
            self._start(Mark(0, np.zeros(self.slot.shape, F32)))
            return 0
        first = self.marks[0].length
        self.marks = [mark for mark in self.marks if mark.length <= length]
        nearest = self.marks[-1]
        self.rows = tuple(x[: length - first].copy() for x in self.rows)
        again = tuple(x[nearest.length - first :] for x in self.rows)
        self.length, self.state = length, nearest.state
        if self.step is not None and length > nearest.length:
            self.state, _ = in_order(self.step, nearest.state, again)
        return length

    def export(self) -> Floats:
        """The state."""
        return self.state.copy()

    def load(self, rows: KVPlanes | Floats, length: int) -> None:
        """Become the exported state after `length` rows; there is no way back but to the start."""
        if isinstance(rows, KVPlanes) or rows.shape != self.slot.shape:
            raise RequestError(f"the exported state has another array than {self.slot.shape}")
        self._start(Mark(length, checked(rows)))


def checked(values: Floats) -> Floats:
    """Imported values, if they are in the domain."""
    faults: Flags = np.zeros(1, np.bool_)
    snapped = snap(np.ascontiguousarray(values, F32)[None], faults)[0]
    if faults.any():
        raise RequestError("the exported state holds a value that is not finite or too large")
    return snapped
