"""Store of a `Recurrent` slot: its state, and checkpoints to go back a little."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cortiq.backend.stored import SlotStore
from cortiq.ir import Recurrent
from cortiq.numerics.contract import F32, Flags, Floats, snap
from cortiq.numerics.recurrent import StepFunction, in_order

MARK_ROWS = 64
"""The state is kept at positions that are multiples of this; the last `MARKS` of them."""
MARKS = 2
COPIES = MARKS + 1
"""Arrays of the slot's shape that a store may hold."""


class StateCheckpoint(NamedTuple):
    """The state after `length` rows."""

    length: int
    state: Floats


class FedRows(NamedTuple):
    """Rows [n, ...] that were fed after `length` others, none of them across a mark."""

    length: int
    rows: tuple[Floats, ...]

    def cut(self, length: int) -> FedRows:
        """Return those of the first `length` rows of the sequence."""
        return FedRows(self.length, tuple(x[: length - self.length] for x in self.rows))


class CheckpointedStore(SlotStore):
    """The state of a `Recurrent` slot, marks of it, and the rows fed since the oldest mark.

    Going back to a length from the oldest mark on takes the state of the nearest mark and the rows
    in between again: exact for the last 64 rows at least. Farther back is the start.
    """

    def __init__(self, slot: Recurrent) -> None:
        self.slot = slot
        self._start(StateCheckpoint(0, np.zeros(slot.shape, F32)))

    def _start(self, mark: StateCheckpoint) -> None:
        self.length, self.state = mark
        self.marks: list[StateCheckpoint] = [mark]
        self.parts: list[FedRows] = []
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
            part = FedRows(self.length, tuple(x[done:stop].copy() for x in rows))
            self.state, out = in_order(step, self.state, part.rows, faults[done:stop])
            outputs.append(out)
            self.length, done = self.length + stop - done, stop
            self.parts.append(part)
            self._mark()
        return np.concatenate(outputs)

    def _mark(self) -> None:
        if self.length % MARK_ROWS:
            return
        self.marks = [*self.marks, StateCheckpoint(self.length, self.state)][-MARKS:]
        self.parts = [part for part in self.parts if part.length >= self.marks[0].length]

    def rewind(self, length: int) -> int:
        """Go back to a length; to 0 where it lies before the oldest mark."""
        if length >= self.length:
            return self.length
        if length < self.marks[0].length:
            self._start(StateCheckpoint(0, np.zeros(self.slot.shape, F32)))
            return 0
        self.marks = [mark for mark in self.marks if mark.length <= length]
        self.parts = [part.cut(length) for part in self.parts if part.length < length]
        self.length, self.state = length, self.marks[-1].state
        for part in self.parts:
            if self.step is not None and part.length >= self.marks[-1].length:
                self.state, _ = in_order(self.step, self.state, part.rows)
        return length

    def export(self) -> Floats:
        """Return the state."""
        return self.state.copy()

    def load(self, rows: Floats, length: int) -> None:
        """Replace the state by the exported one after `length` rows; only 0 can be gone back to."""
        self._start(StateCheckpoint(length, snap(np.array(rows, F32))))
