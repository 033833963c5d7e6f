"""The plan of an entry graph, with its matrices split and its rotary tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cortiq.backend import Row
from cortiq.backend.plan import KernelPlan as Steps
from cortiq.backend.rotary import RotaryTables, reach
from cortiq.ir import Graph
from cortiq_mlx.matrices import MlxMatrix


class MlxPlan(Steps):
    """One entry graph, ready to run.

    Attributes
    ----------
    angles : of the graph's rotary embeddings.
    """

    def __init__(self, graph: Graph, *given: Any) -> None:
        self.angles = RotaryTables(graph.nodes)
        super().__init__(graph, *given)
        for step in self.steps:
            for weight in step.weights.values():
                if isinstance(weight, MlxMatrix):
                    weight.split()

    def reach(self, rows: Sequence[Row]) -> int:
        """Return the positions that rotary tables must have for a sequence's rows."""
        return max(rows[-1].position + 1, reach(rows, self.angles.supplied))
