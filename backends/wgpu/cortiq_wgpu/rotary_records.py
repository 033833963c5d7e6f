"""Cosines and sines of the rows of a batch, in their records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from cortiq.backend.rotary import RotaryTables, Turn
from cortiq.ir import Node, ops

FIELDS = 10
"""Words of a row's record before its angles: see `about` in prelude.wgsl."""


class RotaryRecords(RotaryTables):
    """The rotations of a graph.

    Attributes
    ----------
    words : of a row's record.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        super().__init__(nodes)
        widths = [2 * (turn.table.dim // 2) for turn in self.turns]
        *places, self.words = np.cumsum([FIELDS, *widths]).tolist()
        self._places = dict(zip(self.turns, places, strict=True))

    def place(self, op: ops.Rope, position: str) -> int:
        """Return the offset of a `Rope`'s angles in a row's record: cosines, then sines."""
        return self._places[Turn(op.table, op.sections, position)]

    def fill(
        self, records: np.ndarray, positions: np.ndarray, supplied: Mapping[str, np.ndarray]
    ) -> None:
        """Write the angles into rows' records, uint32 [rows, words].

        Parameters
        ----------
        supplied : for each of `self.supplied` the rows' positions, integers [rows, axes]; known.
        """
        for turn, place in self._places.items():
            given = positions if not turn.sections else supplied[turn.position]
            both = np.concatenate(self.rows(turn.table, turn.sections, given), axis=1)
            records[:, place : place + both.shape[1]] = both.view(np.uint32)
