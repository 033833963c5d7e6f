"""Memory of recurrent slots: the state, its checkpoints, and the rows fed since.

A state lies in memory as `cortiq_recurrence` (native/args.h) says: in blocks of some columns, whose
rows are in the order in which a canonical sum meets them.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from math import prod

import numpy as np

from cortiq.backend.extents import KEPT, MARK, MarkedExtent
from cortiq.backend.planes import Floats
from cortiq.ir import Graph, Node, Recurrent, ops
from cortiq_cpu import arguments
from cortiq_cpu.arguments import SEGMENT, OpKind, address
from cortiq_cpu.native import NativeOp, ThreadPool, op_list

COPIES = 3
"""The state, and two marks."""
COLUMNS = 32
"""Columns of a block."""
LANES, RUN = 256, 16
"""Lanes of a canonical sum, and those apart that meet first."""


@cache
def row_order(rows: int) -> tuple[int, ...]:
    """Return the rows of a state in the order of memory."""
    met = [int(f"{m:04b}"[::-1], 2) for m in range(RUN)]
    starts = (i + RUN * m for i in range(RUN) for m in met)
    return tuple(at for start in starts for at in range(start, rows, LANES))


@dataclass(frozen=True)
class StateMemory(ABC):
    """Memory of a recurrent slot: the state, two marks, and rows fed since, as it is written."""

    slot: Recurrent

    @property
    @abstractmethod
    def widths(self) -> tuple[int, ...]:
        """Values of each part of a kept row."""

    @property
    def size(self) -> int:
        """Values of the state, its marks and the rows."""
        return COPIES * prod(self.slot.shape) + KEPT * sum(self.widths)

    def states(self, data: Floats) -> Floats:
        """Return the state and its two marks, of a sequence's memory [size]."""
        return data[: COPIES * prod(self.slot.shape)].reshape(COPIES, -1)

    def read(self, data: Floats) -> Floats:
        """Return the state in the slot's shape."""
        return self.states(data)[0].reshape(self.slot.shape).copy()

    def write(self, data: Floats, values: Floats, length: int) -> None:
        """Replace the state by one after `length` rows."""
        states = self.states(data)
        states[0] = values.reshape(-1)
        states[1 + length // MARK % 2] = states[0]

    def rewind(self, data: Floats, extent: MarkedExtent, pool: ThreadPool) -> None:
        """Go back to where an extent is now: to its last mark, and through the rows behind it."""
        states, mark = self.states(data), extent.marks[-1]
        if mark == 0:
            states[1] = 0
        states[0] = states[1 + mark // MARK % 2]
        if extent.length > mark:
            kept = data[states.size :].reshape(KEPT, -1)
            rows = kept[np.arange(mark, extent.length) % KEPT]
            parts = np.split(rows, np.cumsum(self.widths)[:-1], axis=1)
            self.replay(data, [np.ascontiguousarray(part) for part in parts], mark, pool)

    @abstractmethod
    def replay(self, data: Floats, parts: list[Floats], start: int, pool: ThreadPool) -> None:
        """Feed kept rows from a position on to the state."""

    def run(self, kind: OpKind, args: ctypes.Structure, rows: int, pool: ThreadPool) -> None:
        """Run one op over rows."""
        number, faults = np.array([rows], np.int32), np.zeros(rows, np.uint8)
        op = NativeOp(int(kind), 0, address(number), address(faults), ctypes.addressof(args), 0)
        pool.run(op_list([op]), 1)


@dataclass(frozen=True)
class RecurrentLayout(StateMemory):
    """Memory layout of a recurrence of the catalogue.

    Attributes
    ----------
    groups, per_channel, delta : as in `cortiq_recurrence`.
    diagonal : whether rows have kappa, and a beta a channel.
    """

    groups: int
    per_channel: bool
    delta: bool
    diagonal: bool = False

    @property
    def widths(self) -> tuple[int, ...]:
        """Values of a row's q, k, v, α and β, and κ."""
        heads, rows, columns = self.slot.shape
        keys = self.groups * rows
        if self.diagonal:
            return keys, keys, heads * columns, keys, keys, keys
        return keys, keys, heads * columns, heads * (rows if self.per_channel else 1), heads

    def blocks(self, memory: Floats) -> list[tuple[slice, Floats]]:
        """Return each block's columns and its values, float32 [heads, rows, columns]."""
        heads, rows, columns = self.slot.shape
        each = memory.reshape(heads, rows * columns)
        starts = range(0, columns, COLUMNS)
        parts = [slice(start, min(start + COLUMNS, columns)) for start in starts]
        return [
            (p, each[:, rows * p.start : rows * p.stop].reshape(heads, rows, -1)) for p in parts
        ]

    def args(self, keep: bool = True) -> arguments.RecurrenceArgs:
        """Return the op's arguments without its addresses."""
        heads, rows, columns = self.slot.shape
        return arguments.RecurrenceArgs(
            heads=heads,
            groups=self.groups,
            state_rows=rows,
            columns=columns,
            per_channel=self.per_channel,
            delta=self.delta,
            keep=keep,
        )

    def read(self, data: Floats) -> Floats:
        """Return the state in the slot's shape."""
        values = np.zeros(self.slot.shape, np.float32)
        order = row_order(values.shape[1])
        for columns, block in self.blocks(self.states(data)[0]):
            values[:, order, columns] = block
        return values

    def write(self, data: Floats, values: Floats, length: int) -> None:
        """Replace the state by one after `length` rows."""
        states = self.states(data)
        ordered = values[:, row_order(values.shape[1])]
        for columns, block in self.blocks(states[0]):
            block[:] = ordered[..., columns]
        states[1 + length // MARK % 2] = states[0]

    def replay(self, data: Floats, parts: list[Floats], start: int, pool: ThreadPool) -> None:
        """Feed kept rows from a position on to the state."""
        q, k, v, alpha, beta, *kappa = parts
        count, out = len(q), np.empty_like(v)
        state = np.array([data.ctypes.data], np.uint64)
        segments, one = np.array([(0, count, start)], SEGMENT), np.ones(1, np.int32)
        args = self.args(keep=False)
        args.q, args.k, args.v, args.alpha, args.beta, args.out = map(
            address, (q, k, v, alpha, beta, out)
        )
        if kappa:
            args.kappa = address(kappa[0])
        args.states, args.segments, args.segment_count = map(address, (state, segments, one))
        self.run(OpKind.GATED_DELTA, args, count, pool)


def recurrent_layout(node: Node, graph: Graph) -> RecurrentLayout:
    """Return the layout of a node's slot."""
    op = node.op
    assert isinstance(op, ops.DeltaRule | ops.DiagonalDeltaRule | ops.StateSpace)
    slot = op.slot_kinds()["state"]
    assert isinstance(slot, Recurrent)
    if isinstance(op, ops.DiagonalDeltaRule):
        return RecurrentLayout(slot, op.heads, True, True, True)
    per_channel = len(graph.values[node.inputs[3]].shape) > 1
    return RecurrentLayout(slot, op.groups, per_channel, isinstance(op, ops.DeltaRule))
