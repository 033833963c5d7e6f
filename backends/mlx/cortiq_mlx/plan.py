"""What a batch of one entry graph needs: a plan, laid-out matrices, and rotary angles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cortiq.backend import Row
from cortiq.backend.kernel import GivenKernels
from cortiq.backend.plan import Bound, Prepared, joined
from cortiq.backend.plan import Plan as Steps
from cortiq.backend.rotary import RotaryTables, reach
from cortiq.ir import Graph, Node, Op, ops
from cortiq.numerics.attention import scoring
from cortiq.numerics.layouts import Weight
from cortiq_mlx.fuse import Beside, beside, together
from cortiq_mlx.kernels import KERNELS, form, prepare
from cortiq_mlx.library import mx
from cortiq_mlx.matrices import Matrix


class Weights(Prepared):
    """Weights as kernels take them."""

    def of(self, node: Node) -> dict[str, Any]:
        """A node's weights by role; attention has its constants among them."""
        found = super().of(node)
        if isinstance(node.op, ops.Attend):
            found["scoring"] = scoring(node.op.scale, node.op.soft_cap)
        return found


def prepared(weights: Mapping[str, Weight]) -> Weights:
    """Weights of a program, nothing left lazy."""

    def computed(op: Op, role: str, weight: Weight, name: str) -> Any:
        made = prepare(op, role, weight, name)
        if not isinstance(made, Matrix):
            mx.eval(made)
        return made

    return Weights(weights, computed, form)


class Plan(Steps):
    """One entry graph, ready to run.

    Attributes
    ----------
    angles : of the graph's rotary embeddings.
    """

    def __init__(self, graph: Graph, weights: Weights, given: GivenKernels) -> None:
        self.angles = RotaryTables(graph.nodes)

        def rewritten(nodes: list[Bound]) -> list[Bound]:
            return nodes if given else together(joined(nodes), graph)

        theirs = {op: kernel.function for op, kernel in given.items()}
        kernels = {**KERNELS, Beside: beside, **theirs}
        super().__init__(graph, weights.bound(graph), kernels, rewritten)
        for step in self.steps:
            for weight in step.weights.values():
                if isinstance(weight, Matrix):
                    weight.split()

    def reach(self, rows: Sequence[Row]) -> int:
        """Positions that must be known for these rows of a sequence."""
        return max(rows[-1].position + 1, reach(rows, self.angles.supplied))
