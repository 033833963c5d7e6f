"""What a batch needs computed: values asked for, and the state that every row must leave behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cortiq.ir import Graph, Node
from cortiq.numerics.layouts import Weight
from cortiq_reference.kernels import Call, Kernels, prepare
from cortiq_reference.matrix import Pool


@dataclass(frozen=True)
class Step:
    """A node with its kernel and prepared weights.

    `wanted_only`: nothing that state depends on needs its output, so that only rows that want a
    value that does are computed.
    """

    node: Node
    kernel: Callable[..., Any]
    weights: Mapping[str, Any]
    wanted_only: bool

    def run(self, call: Call, inputs: list[Any]) -> tuple[Any, ...]:
        """The node's outputs."""
        result = self.kernel(call, *inputs)
        return result if len(self.node.outputs) != 1 else (result,)


class Plan:
    """One entry graph of primitives, ready to run."""

    def __init__(
        self, graph: Graph, weights: Mapping[str, Weight], pool: Pool, kernels: Kernels
    ) -> None:
        self.graph = graph
        for_state = _needed(graph, frozenset())
        prepared: dict[tuple, Any] = {}
        self.steps = []
        for node in graph.nodes:
            bound = {}
            for role, name in node.weights.items():
                how = (getattr(node.op, "offset", 0), getattr(node.op, "form", ""))
                key = (name, type(node.op), how)
                if key not in prepared:
                    prepared[key] = prepare(node.op, role, weights[name], name, pool)
                bound[role] = prepared[key]
            kernel = kernels[type(node.op)]
            self.steps.append(Step(node, kernel, bound, node.name not in for_state))
        self.always = {o for s in self.steps if not s.wanted_only for o in s.node.outputs}
        self.select = lru_cache(maxsize=256)(self._select)
        self.needs = lru_cache(maxsize=256)(self._needs)

    def _needs(self, wanted: frozenset[str]) -> frozenset[str]:
        """Names of the nodes that a row which wants these values depends on."""
        return frozenset(_needed(self.graph, wanted))

    def _select(self, wanted: frozenset[str]) -> tuple[tuple[Step, tuple[str, ...]], ...]:
        """Steps that are needed, each with the values that nothing needs once it has run."""
        needed = self.needs(wanted)
        steps = [step for step in self.steps if step.node.name in needed]
        kept, chosen = set(wanted), []
        for step in reversed(steps):
            names = {*step.node.inputs, *step.node.outputs}
            chosen.append((step, tuple(names - kept)))
            kept |= names
        return tuple(reversed(chosen))


def _needed(graph: Graph, wanted: frozenset[str]) -> set[str]:
    """Names of the nodes that the wanted values, or any write of state, depend on."""
    values, names = set(wanted), set()
    for node in reversed(graph.nodes):
        writes = getattr(node.op, "writes_slots", False)
        if writes or values.intersection(node.outputs):
            names.add(node.name)
            values.update(node.inputs)
    return names
