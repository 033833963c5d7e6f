"""Cosines and sines of rotary embeddings: whole tables, and the rows of a batch.

Tables are computed on the host when a sequence is opened or grows, never while a batch runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from cortiq.ir import Node, ops
from cortiq.numerics.rope import RopeTable, Sections
from cortiq_cpu.rows import RowSet

STEP = 1024
"""Positions that tables grow by."""

Pair = tuple[np.ndarray, np.ndarray]


class Turn(NamedTuple):
    """What turns heads: a table, the axis of each pair, and the input that holds the position."""

    table: RopeTable
    sections: Sections | None
    position: str

    @classmethod
    def of(cls, node: Node) -> Turn:
        """That of a `Rope`."""
        op: ops.Rope = node.op  # type: ignore[assignment]
        return cls(op.table, op.sections, node.inputs[1])


class Angles:
    """Tables of a graph by geometry, and arrays [capacity, pairs] that ops point at.

    Attributes
    ----------
    supplied : inputs whose positions, one for each axis, rows supply.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        turns = {Turn.of(node) for node in nodes if isinstance(node.op, ops.Rope)}
        self._tables: dict[RopeTable, Pair] = {}
        for table, _, _ in turns:
            empty = np.zeros((0, table.dim // 2), np.float32)
            self._tables.setdefault(table, (empty, empty))
        axes = {turn: turn.sections.axes for turn in turns if turn.sections is not None}
        self._axes: dict[Turn, np.ndarray] = axes
        self.supplied = tuple(sorted({turn.position for turn in axes}))
        self._rows: dict[int, dict[Turn, Pair]] = {}

    def grow(self, positions: int) -> None:
        """Know this many positions."""
        for table, (cos, sin) in self._tables.items():
            if len(cos) < positions:
                more = range(len(cos), -(-positions // STEP) * STEP)
                new_cos, new_sin = table.compute(np.arange(more.start, more.stop))
                both = np.concatenate([cos, new_cos]), np.concatenate([sin, new_sin])
                self._tables[table] = both

    def rows(self, node: Node, rows: RowSet) -> tuple[int, int]:
        """Addresses of the cosines and sines that a `Rope` turns a set's rows by."""
        turn, known = Turn.of(node), self._rows.setdefault(id(rows), {})
        if turn not in known:
            shape = (rows.capacity, turn.table.dim // 2)
            known[turn] = (np.zeros(shape, np.float32), np.zeros(shape, np.float32))
        cos, sin = known[turn]
        return cos.ctypes.data, sin.ctypes.data

    def fill(self, rows: RowSet, supplied: Mapping[str, np.ndarray]) -> None:
        """Look up the rows that a set now has.

        Parameters
        ----------
        supplied : for each of `self.supplied` the rows' positions, integers [rows, axes]; known.
        """
        count = int(rows.count[0])
        for turn, (cos, sin) in self._rows.get(id(rows), {}).items():
            place: tuple[np.ndarray, ...] = (rows.positions[:count],)
            if turn in self._axes:
                axes = self._axes[turn]
                place = supplied[turn.position][:, axes], np.arange(len(axes))
            known_cos, known_sin = self._tables[turn.table]
            cos[:count], sin[:count] = known_cos[place], known_sin[place]
