"""Cosines and sines of rotary embeddings on the host: whole tables, and the rows of a batch.

Tables are computed when a sequence is opened or grows, never while a batch runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cortiq.backend.batch import Row
from cortiq.backend.row_runs import supplied_numbers
from cortiq.ir import Node, ops
from cortiq.numerics.rope import RopeTable, Sections

STEP = 1024
"""Positions that tables grow by."""
Pair = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]


class Turn(NamedTuple):
    """A rotation of heads: a table, the axis of each pair, and the input that has the position."""

    table: RopeTable
    sections: Sections | None
    position: str

    @classmethod
    def of(cls, node: Node) -> Turn:
        """Return the rotation of a `Rope`."""
        op: ops.Rope = node.op  # type: ignore[assignment]
        return cls(op.table, op.sections, node.inputs[1])


def turns_of(nodes: Iterable[Node]) -> list[Turn]:
    """List the different rotations of a graph, in its order."""
    return list(dict.fromkeys(Turn.of(node) for node in nodes if isinstance(node.op, ops.Rope)))


def supplied_positions(turns: Iterable[Turn]) -> tuple[str, ...]:
    """List the inputs whose positions, one for each axis, rows supply."""
    return tuple(sorted({turn.position for turn in turns if turn.sections is not None}))


def reach(rows: Sequence[Row], supplied: Sequence[str]) -> int:
    """Return how many positions tables must have for those that rows supply."""
    given = (int(supplied_numbers(rows, name).max(initial=-1)) for name in supplied)
    return max(given, default=-1) + 1


class RotaryTables:
    """The tables of a graph.

    Attributes
    ----------
    turns : the different rotations. supplied : see `supplied_positions`.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.turns = turns_of(nodes)
        self.supplied = supplied_positions(self.turns)
        self._tables: dict[RopeTable, Pair] = {}
        for table in dict.fromkeys(turn.table for turn in self.turns):
            nothing = np.zeros((0, table.dim // 2), np.float32)
            self._tables[table] = nothing, nothing

    def grow(self, positions: int) -> None:
        """Extend the tables to so many positions."""
        for table, (cos, sin) in self._tables.items():
            if len(cos) < positions:
                more = table.compute(np.arange(len(cos), -(-positions // STEP) * STEP))
                self._tables[table] = np.concatenate([cos, more[0]]), np.concatenate([sin, more[1]])

    def rows(
        self, table: RopeTable, sections: Sections | None, positions: npt.NDArray[np.integer]
    ) -> Pair:
        """Look up cosines and sines of rows, float32 [rows, pairs].

        Parameters
        ----------
        positions : integers [rows], or with sections [rows, axes]; known.
        """
        place: tuple[npt.NDArray, ...] = (positions,)
        if sections is not None:
            place = positions[:, sections.axes], np.arange(len(sections.axes))
        cos, sin = self._tables[table]
        return cos[place], sin[place]
