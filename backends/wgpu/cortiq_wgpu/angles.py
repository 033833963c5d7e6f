"""Cosines and sines of rotary embeddings: whole tables on the host, a row's in its record.

Tables are computed when a sequence is opened or grows, never while a batch runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from cortiq.ir import Node, ops
from cortiq.numerics.rope import RopeTable, Sections

STEP = 1024
"""Positions that tables grow by."""
FIELDS = 9
"""Words of a row's record before its angles: see `about` in prelude.wgsl."""


@dataclass(frozen=True)
class Turn:
    """What turns heads: a table, the axis of each pair, and the input that holds the position."""

    table: RopeTable
    sections: Sections | None
    position: str


class Turns:
    """The rotations of a graph.

    Attributes
    ----------
    words : of a row's record. supplied : inputs whose positions, one for each axis, rows supply.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._places: dict[Turn, int] = {}
        self.words = FIELDS
        for node in nodes:
            if isinstance(node.op, ops.Rope):
                turn = Turn(node.op.table, node.op.sections, node.inputs[1])
                if turn not in self._places:
                    self._places[turn] = self.words
                    self.words += 2 * (node.op.table.dim // 2)
        self._axes = {t: t.sections.axes for t in self._places if t.sections is not None}
        self.supplied = tuple(sorted({turn.position for turn in self._axes}))
        self._tables: dict[RopeTable, np.ndarray] = {}
        for turn in self._places:
            width = turn.table.dim // 2
            self._tables.setdefault(turn.table, np.zeros((2, 0, width), np.float32))

    def place(self, op: ops.Rope, position: str) -> int:
        """Where in a row's record the angles of a `Rope` begin: cosines, then sines."""
        return self._places[Turn(op.table, op.sections, position)]

    def grow(self, positions: int) -> None:
        """Know this many positions."""
        for table, known in self._tables.items():
            count = known.shape[1]
            if count < positions:
                more = np.arange(count, -(-positions // STEP) * STEP)
                self._tables[table] = np.concatenate([known, np.stack(table.compute(more))], axis=1)

    def fill(
        self, records: np.ndarray, positions: np.ndarray, supplied: Mapping[str, np.ndarray]
    ) -> None:
        """Write the angles into rows' records, uint32 [rows, words].

        Parameters
        ----------
        supplied : for each of `self.supplied` the rows' positions, integers [rows, axes]; known.
        """
        for turn, place in self._places.items():
            at: tuple[np.ndarray, ...] = (positions,)
            if turn in self._axes:
                axes = self._axes[turn]
                at = supplied[turn.position][:, axes], np.arange(len(axes))
            width = turn.table.dim // 2
            for part in range(2):
                values = self._tables[turn.table][part][at]
                start = place + part * width
                records[:, start : start + width] = values.view(np.uint32)
