"""Cosines and sines of a batch's rows, in arrays that ops point at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from cortiq.backend.rotary import Pair, RotaryTables, Turn
from cortiq.ir import Node
from cortiq_cpu.row_arrays import RowArrays


class RotaryArrays(RotaryTables):
    """Tables of a graph, and arrays [capacity, pairs] that ops point at."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        super().__init__(nodes)
        self._rows: dict[int, dict[Turn, Pair]] = {}

    def forget(self) -> None:
        """Drop the arrays of sets of rows that are no longer used."""
        self._rows = {}

    def place(self, node: Node, rows: RowArrays) -> tuple[int, int]:
        """Return the addresses of the cosines and sines that a `Rope` turns a set's rows by."""
        turn, known = Turn.of(node), self._rows.setdefault(id(rows), {})
        if turn not in known:
            shape = (rows.capacity, turn.table.dim // 2)
            known[turn] = (np.zeros(shape, np.float32), np.zeros(shape, np.float32))
        cos, sin = known[turn]
        return cos.ctypes.data, sin.ctypes.data

    def fill(self, rows: RowArrays, supplied: Mapping[str, np.ndarray]) -> None:
        """Look up the angles of a set's rows.

        Parameters
        ----------
        supplied : for each of `self.supplied` the rows' positions, integers [rows, axes]; known.
        """
        count = int(rows.count[0])
        for turn, (cos, sin) in self._rows.get(id(rows), {}).items():
            given = rows.positions[:count] if not turn.sections else supplied[turn.position]
            cos[:count], sin[:count] = self.rows(turn.table, turn.sections, given)
