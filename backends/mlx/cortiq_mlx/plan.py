"""What a batch of one entry graph needs: prepared weights, and steps in order.

A batch computes what was asked for, and the state that every row must leave behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cortiq.backend import Row
from cortiq.backend.kernel import GivenKernels
from cortiq.ir import Graph, Node, Op, ops
from cortiq.numerics.attention import scoring
from cortiq.numerics.layouts import Weight
from cortiq_mlx.angles import Angles
from cortiq_mlx.fuse import Beside, SharedMatMul, beside, fused, shared_matmul, together
from cortiq_mlx.kernels import KERNELS, MATRICES, Kernel, prepare, stack_of
from cortiq_mlx.library import mx
from cortiq_mlx.matrices import Matrix

ALL: Mapping[type[Op], Kernel] = {**KERNELS, SharedMatMul: shared_matmul, Beside: beside}


@dataclass(frozen=True)
class Step:
    """A node with its kernel and prepared weights.

    `wanted_only`: no state depends on it, so that only rows that want a value of it are computed.
    """

    node: Node
    kernel: Callable[..., Any]
    weights: Mapping[str, Any]
    wanted_only: bool


class Plan:
    """One entry graph, ready to run.

    Attributes
    ----------
    always : values that state depends on; they have all rows of a batch.
    angles : of the graph's rotary embeddings.
    """

    def __init__(
        self, graph: Graph, weights: Mapping[str, Weight], given: GivenKernels, known: dict
    ) -> None:
        self.graph, self.angles = graph, Angles(graph.nodes)
        kernels = {**ALL, **{op: kernel.function for op, kernel in given.items()}}
        for_state = _needed(graph.nodes, ())
        bound = [(node, _weights_of(node, weights, known)) for node in graph.nodes]
        needed = [(n, w) for n, w in bound if n.name in for_state]
        always = needed if given else together(list(fused(needed)), graph)
        self.steps = [Step(n, kernels[type(n.op)], w, False) for n, w in always]
        self.steps += [
            Step(n, kernels[type(n.op)], w, True) for n, w in bound if n.name not in for_state
        ]
        for step in self.steps:
            for weight in step.weights.values():
                if isinstance(weight, Matrix):
                    weight.split()
        self.always = {output for node, _ in always for output in node.outputs}
        self.needs = lru_cache(maxsize=256)(self._needs)

    def _needs(self, wanted: frozenset[str]) -> frozenset[str]:
        """Names of the nodes that a row which wants these values depends on."""
        return frozenset(_needed([step.node for step in self.steps], wanted))

    def select(self, wanted: frozenset[str]) -> list[Step]:
        """Steps that a batch needs, in order."""
        needed = self.needs(wanted)
        return [step for step in self.steps if step.node.name in needed]

    def reach(self, rows: Iterable[Row]) -> int:
        """Positions that must be known for these rows."""
        reached = 0
        for row in rows:
            given = [int(row.inputs[name].max()) for name in self.angles.supplied]
            reached = max(reached, row.position + 1, *(at + 1 for at in given))
        return reached


def _weights_of(node: Node, weights: Mapping[str, Weight], known: dict) -> dict[str, Any]:
    """The node's weights; a table that is also the last matrix is uploaded once."""
    found: dict[str, Any] = {}
    if isinstance(node.op, ops.Attend):
        found["scoring"] = scoring(node.op.scale, node.op.soft_cap)
    for role, name in node.weights.items():
        op = node.op
        key: tuple = (name, stack_of(op)) if isinstance(op, MATRICES) else (name, op, role)
        if key not in known:
            known[key] = prepare(op, role, weights[name], name)
            if not isinstance(known[key], Matrix):
                mx.eval(known[key])
        found[role] = known[key]
    return found


def _needed(nodes: Iterable[Node], wanted: Iterable[str]) -> set[str]:
    """Names of the nodes that the wanted values, or any write of state, depend on."""
    values, names = set(wanted), set()
    for node in reversed(list(nodes)):
        writes = getattr(node.op, "writes_slots", False)
        if writes or values.intersection(node.outputs):
            names.add(node.name)
            values.update(node.inputs)
    return names
