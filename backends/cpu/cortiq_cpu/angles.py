"""Cosines and sines of rotary embeddings: whole tables, and the rows of a batch.

Tables are computed on the host when a sequence is opened, never while a batch runs.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from cortiq.numerics.rope import RopeTable
from cortiq_cpu.rows import RowSet

STEP = 1024
"""Positions that tables grow by."""

Pair = tuple[np.ndarray, np.ndarray]


class Angles:
    """Tables of a graph by geometry, and arrays [capacity, pairs] that ops point at."""

    def __init__(self, tables: Iterable[RopeTable]) -> None:
        self._tables: dict[RopeTable, Pair] = {}
        for table in tables:
            empty = np.zeros((0, table.dim // 2), np.float32)
            self._tables.setdefault(table, (empty, empty))
        self._rows: dict[tuple[RopeTable, int], Pair] = {}

    def grow(self, positions: int) -> None:
        """Know this many positions."""
        for table, (cos, sin) in self._tables.items():
            if len(cos) < positions:
                more = range(len(cos), -(-positions // STEP) * STEP)
                new_cos, new_sin = table.compute(np.arange(more.start, more.stop))
                both = np.concatenate([cos, new_cos]), np.concatenate([sin, new_sin])
                self._tables[table] = both

    def rows(self, table: RopeTable, rows: RowSet) -> tuple[int, int]:
        """Addresses of the cosines and sines of a set's rows."""
        key = (table, id(rows))
        if key not in self._rows:
            shape = (rows.capacity, table.dim // 2)
            self._rows[key] = (np.zeros(shape, np.float32), np.zeros(shape, np.float32))
        cos, sin = self._rows[key]
        return cos.ctypes.data, sin.ctypes.data

    def fill(self, rows: RowSet) -> None:
        """Look up the rows that a set now has."""
        count = int(rows.count[0])
        positions = rows.positions[:count]
        for table, (cos, sin) in self._tables.items():
            found = self._rows.get((table, id(rows)))
            if found is not None:
                found[0][:count] = cos[positions]
                found[1][:count] = sin[positions]
