"""Cosines and sines of rotary embeddings: whole tables on the host, and the rows of a batch.

Tables are computed when a sequence is opened or rows are let in, never while a batch runs.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from cortiq.ir import Node, ops
from cortiq.numerics.rope import RopeTable, Sections

STEP = 1024
"""Positions that tables grow by."""
Pair = tuple[np.ndarray, np.ndarray]


class Angles:
    """Tables of a graph, by geometry.

    Attributes
    ----------
    supplied : inputs whose positions, one for each axis, rows supply.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        turned = [node for node in nodes if isinstance(node.op, ops.Rope)]
        self._tables: dict[RopeTable, Pair] = {}
        self._axes: dict[Sections, np.ndarray] = {}
        supplied = set()
        for node in turned:
            op: ops.Rope = node.op  # type: ignore[assignment]
            nothing = np.zeros((0, op.table.dim // 2), np.float32)
            self._tables.setdefault(op.table, (nothing, nothing))
            if op.sections:
                self._axes[op.sections] = op.sections.axes
                supplied.add(node.inputs[1])
        self.supplied = tuple(sorted(supplied))

    def grow(self, positions: int) -> None:
        """Know this many positions."""
        for table, (cos, sin) in self._tables.items():
            if len(cos) < positions:
                more = np.arange(len(cos), -(-positions // STEP) * STEP)
                new_cos, new_sin = table.compute(more)
                both = np.concatenate([cos, new_cos]), np.concatenate([sin, new_sin])
                self._tables[table] = both

    def rows(self, op: ops.Rope, positions: np.ndarray) -> Pair:
        """Those of rows, float32 [rows, pairs].

        Parameters
        ----------
        positions : integers [rows], or [rows, axes] for an op with sections.
        """
        cos, sin = self._tables[op.table]
        if not op.sections:
            return cos[positions], sin[positions]
        axes = self._axes[op.sections]
        place = positions[:, axes], np.arange(len(axes))
        return cos[place], sin[place]
