"""What a batch of one entry graph needs: a plan, laid-out matrices, and rotary angles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cortiq.backend import Row
from cortiq.backend.plan import Plan as Steps
from cortiq.ir import Graph
from cortiq_mlx.angles import Angles
from cortiq_mlx.matrices import Matrix


class Plan(Steps):
    """One entry graph, ready to run.

    Attributes
    ----------
    angles : of the graph's rotary embeddings.
    """

    def __init__(self, graph: Graph, *given: Any) -> None:
        self.angles = Angles(graph.nodes)
        super().__init__(graph, *given)
        for step in self.steps:
            for weight in step.weights.values():
                if isinstance(weight, Matrix):
                    weight.split()

    def reach(self, rows: Iterable[Row]) -> int:
        """Positions that must be known for these rows."""
        reached = 0
        for row in rows:
            given = [int(row.inputs[name].max()) for name in self.angles.supplied]
            reached = max(reached, row.position + 1, *(at + 1 for at in given))
        return reached
