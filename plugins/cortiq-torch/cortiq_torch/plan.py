"""What a batch needs computed: values asked for, and the state that every row must leave behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cortiq.backend.kernel import GivenKernels
from cortiq.ir import Graph, Node, ops
from cortiq.numerics.layouts import Weight
from cortiq_torch.fuse import SharedMatMul, fused, shared_matmul
from cortiq_torch.kernels import KERNELS, LAYERS, MATRICES, prepare

ALL = {**KERNELS, **LAYERS, SharedMatMul: shared_matmul}


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
    """

    def __init__(
        self, graph: Graph, weights: Mapping[str, Weight], device: str, given: GivenKernels
    ) -> None:
        self.graph = graph
        kernels = {**ALL, **{op: kernel.function for op, kernel in given.items()}}
        for_state = _needed(graph.nodes, ())
        prepared: dict[tuple, Any] = {}
        bound = []
        for node in graph.nodes:
            own = {}
            for role, name in node.weights.items():
                # A table that is also the last matrix is uploaded once.
                key = (name, isinstance(node.op, MATRICES), getattr(node.op, "offset", 0))
                if key not in prepared:
                    prepared[key] = prepare(node.op, role, weights[name], name, device)
                own[role] = prepared[key]
            bound.append((node, own))
        needed = [(n, w) for n, w in bound if n.name in for_state]
        always = needed if ops.MatMul in given else list(fused(needed))
        self.steps = [Step(n, kernels[type(n.op)], w, False) for n, w in always]
        self.steps += [
            Step(n, kernels[type(n.op)], w, True) for n, w in bound if n.name not in for_state
        ]
        self.always = {output for node, _ in always for output in node.outputs}
        self.needs = lru_cache(maxsize=256)(self._needs)

    def _needs(self, wanted: frozenset[str]) -> frozenset[str]:
        """Names of the nodes that a row which wants these values depends on."""
        return frozenset(_needed([step.node for step in self.steps], wanted))

    def select(self, wanted: frozenset[str]) -> list[Step]:
        """Steps that a batch needs, in order."""
        needed = self.needs(wanted)
        return [step for step in self.steps if step.node.name in needed]


def _needed(nodes: Iterable[Node], wanted: Iterable[str]) -> set[str]:
    """Names of the nodes that the wanted values, or any write of state, depend on."""
    values, names = set(wanted), set()
    for node in reversed(list(nodes)):
        writes = getattr(node.op, "writes_slots", False)
        if writes or values.intersection(node.outputs):
            names.add(node.name)
            values.update(node.inputs)
    return names
