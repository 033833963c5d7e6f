"""States of recurrent slots: what they are now, what they were, and the rows since.

A state lies in memory as `cortiq_recurrence` (native/args.h) says: in blocks of some columns, whose
rows are in the order in which a canonical sum meets them.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from functools import cache
from math import prod

import numpy as np

from cortiq.ir import Graph, Node, Recurrent, ops
from cortiq_cpu import arguments
from cortiq_cpu.arguments import SEGMENT, Kind, address
from cortiq_cpu.native import Op, Pool, op_list
from cortiq_cpu.packing import aligned_floats
from cortiq_cpu.rings import Floats, snapped

MARK = 64
"""The state is kept at lengths that this divides, the last two of them."""
KEPT = 128
"""Rows kept to be read again: a sequence can go back at least `MARK` rows exactly."""
COPIES = 3
"""The state, and two marks."""
COLUMNS = 32
"""Columns of a block."""
LANES, RUN = 256, 16
"""Lanes of a canonical sum, and those apart that meet first."""
SPARE = 1
"""Released sequences whose memory the next ones take: fresh pages cost more than a short prompt."""


@cache
def row_order(rows: int) -> tuple[int, ...]:
    """The rows of a state in the order of memory."""
    met = [int(f"{m:04b}"[::-1], 2) for m in range(RUN)]
    starts = (i + RUN * m for i in range(RUN) for m in met)
    return tuple(at for start in starts for at in range(start, rows, LANES))


@dataclass(frozen=True)
class Recurrences:
    """The slot of an op, and how the op reads its rows.

    Attributes
    ----------
    groups, per_channel, delta : as in `cortiq_recurrence`.
    spare : memory of released sequences.
    """

    slot: Recurrent
    groups: int
    per_channel: bool
    delta: bool
    spare: list[Floats] = field(default_factory=list, compare=False, repr=False)

    @property
    def widths(self) -> tuple[int, ...]:
        """Values of a row's q, k, v, α and β."""
        heads, rows, columns = self.slot.shape
        keys = self.groups * rows
        return keys, keys, heads * columns, heads * (rows if self.per_channel else 1), heads

    @property
    def size(self) -> int:
        """Values of the state, its marks and the rows."""
        return COPIES * prod(self.slot.shape) + KEPT * sum(self.widths)

    def take(self) -> Floats:
        """Memory of a sequence, [1, size]; what is in it means nothing."""
        if self.spare:
            return self.spare.pop()
        return aligned_floats(1, self.size)

    @property
    def spare_bytes(self) -> int:
        """Memory that waits for sequences."""
        return sum(data.nbytes for data in self.spare)

    def give(self, data: Floats) -> None:
        """Take memory back."""
        if len(data) and len(self.spare) < SPARE:
            self.spare.append(data)

    def blocks(self, memory: Floats) -> list[tuple[slice, Floats]]:
        """Columns of every block and its values, float32 [heads, rows, columns], of a state."""
        heads, rows, columns = self.slot.shape
        each = memory.reshape(heads, rows * columns)
        starts = range(0, columns, COLUMNS)
        parts = [slice(start, min(start + COLUMNS, columns)) for start in starts]
        return [
            (p, each[:, rows * p.start : rows * p.stop].reshape(heads, rows, -1)) for p in parts
        ]

    def args(self, keep: bool = True) -> arguments.Recurrence:
        """The op's arguments but for its addresses."""
        heads, rows, columns = self.slot.shape
        return arguments.Recurrence(
            heads=heads, groups=self.groups, state_rows=rows, columns=columns,
            per_channel=self.per_channel, delta=self.delta, keep=keep,
        )  # fmt: skip


def recurrences_of(node: Node, graph: Graph) -> Recurrences:
    """What a node keeps in its slot."""
    op = node.op
    assert isinstance(op, ops.DeltaRule | ops.StateSpace)
    slot = op.slot_kinds()["state"]
    assert isinstance(slot, Recurrent)
    per_channel = len(graph.values[node.inputs[3]].shape) > 1
    return Recurrences(slot, op.groups, per_channel, isinstance(op, ops.DeltaRule))


class Whole:
    """A sequence's state in one slot, which every row replaces.

    Attributes
    ----------
    data : float32 [1, size], or no row before there is memory: the state, what it was at two
        marks, and rows, as `cortiq_recurrence` says.
    marks : lengths at which the state is known, ascending; m is at 1 + m // MARK % 2.
    """

    def __init__(self, layout: Recurrences) -> None:
        self.layout = layout
        self.data: Floats = np.zeros((0, layout.size), np.float32)
        self.marks = [0]

    @property
    def nbytes(self) -> int:
        """Memory when it is open."""
        return 4 * self.layout.size

    @property
    def _states(self) -> Floats:
        return self.data[0, : COPIES * prod(self.layout.slot.shape)].reshape(COPIES, -1)

    def open(self) -> bool:
        """Have memory; whether it is new."""
        if len(self.data):
            return False
        self.data = self.layout.take()
        self._states[0] = 0
        return True

    def __del__(self) -> None:
        self.layout.give(self.data)

    def written(self, before: int, after: int) -> None:
        """Rows `before` … `after` − 1 are computed, and marks taken on the way."""
        first = before // MARK + 1
        self.marks = (self.marks + [m * MARK for m in range(first, after // MARK + 1)])[-2:]

    def rewind(self, length: int, reached: int) -> int:
        """How far back a sequence of `length` rows can go, if not to `reached`."""
        return reached if reached >= min(length, self.marks[0]) else 0

    def go(self, length: int, pool: Pool) -> None:
        """Go back to a length that `rewind` gave: to a mark, and through the rows behind it."""
        self.marks = [mark for mark in self.marks if mark <= length] or [0]
        if not len(self.data):
            return
        mark = self.marks[-1]
        states = self._states
        if mark == 0:
            states[1] = 0
        states[0] = states[1 + mark // MARK % 2]
        if length > mark:
            self._again(mark, length, pool)

    def _again(self, start: int, stop: int, pool: Pool) -> None:
        widths, count = self.layout.widths, stop - start
        kept = self.data[0, self._states.size :].reshape(KEPT, -1)
        rows = kept[np.arange(start, stop) % KEPT]
        parts = np.split(rows, np.cumsum(widths)[:-1], axis=1)
        q, k, v, alpha, beta = (np.ascontiguousarray(part) for part in parts)
        out, faults = np.empty_like(v), np.zeros(count, np.uint8)
        state = np.array([self.data.ctypes.data], np.uint64)
        segments, numbers = np.array([(0, count, start)], SEGMENT), np.array([1, count], np.int32)
        args = self.layout.args(keep=False)
        args.q, args.k, args.v, args.alpha, args.beta, args.out = map(
            address, (q, k, v, alpha, beta, out)
        )
        args.states, args.segments, args.segment_count = map(address, (state, segments, numbers))
        op = Op(
            int(Kind.GATED_DELTA), 0, address(numbers[1:]), address(faults),
            ctypes.addressof(args), 0,
        )  # fmt: skip
        pool.run(op_list([op]), 1)

    def last(self, length: int) -> Floats:
        """The state, in the slot's shape."""
        values = np.zeros(self.layout.slot.shape, np.float32)
        if len(self.data):
            order = row_order(values.shape[1])
            for columns, block in self.layout.blocks(self._states[0]):
                values[:, order, columns] = block
        return values

    def load(self, values: Floats, length: int) -> None:
        """Become the state after `length` rows; values below 2⁻⁴⁰ count as zero."""
        states = self._states
        ordered = snapped(values)[:, row_order(values.shape[1])]
        for columns, block in self.layout.blocks(states[0]):
            block[:] = ordered[..., columns]
        states[1 + length // MARK % 2] = states[0]
        self.marks = [length]

    def copy(self) -> Whole:
        """Another one that knows the same ways back."""
        other = Whole(self.layout)
        if len(self.data):
            other.data = self.layout.take()
            other.data[:] = self.data
        other.marks = list(self.marks)
        return other
