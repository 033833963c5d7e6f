"""What a batch needs computed: values asked for, and the state that every row must leave behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from cortiq.backend import Row
from cortiq.backend.plan import Step, needed
from cortiq.ir import Graph, Node, ops
from cortiq.numerics.layouts import Weight
from cortiq.numerics.rope import RopeTable
from cortiq_triton.attend import factors_of
from cortiq_triton.fuse import Fuser
from cortiq_triton.kernels import KERNELS, MATRICES, prepare
from cortiq_triton.steps import Joined
from cortiq_triton.weights import first_rows


class Prepared:
    """Weights of all entry graphs, uploaded once each for each form they are needed in."""

    def __init__(self, weights: Mapping[str, Weight], device: str) -> None:
        self._weights, self._device = weights, device
        self._done: dict[tuple[Any, ...], Any] = {}

    def of(self, node: Node) -> dict[str, Any]:
        """A node's weights by role; a table that is also the last matrix is uploaded once."""
        found = {}
        for role, name in node.weights.items():
            matrix = isinstance(node.op, MATRICES)
            key = (name, matrix, getattr(node.op, "offset", 0), getattr(node.op, "form", ""))
            if key not in self._done:
                self._done[key] = self._made(node, role, name, key)
            found[role] = self._done[key]
        return found

    def _made(self, node: Node, role: str, name: str, key: tuple[Any, ...]) -> Any:
        """What is uploaded; the first rows of a matrix that is there are a part of that."""
        weight = self._weights[name]
        whole = next((n for n, w in self._weights.items() if w is weight.whole), None)
        there = self._done.get((whole, *key[1:]))
        if there is not None and isinstance(node.op, MATRICES):
            return first_rows(there, weight.shape[0])
        return prepare(node.op, role, weight, name, self._device)


class Plan:
    """One entry graph, ready to run.

    Attributes
    ----------
    joined : weights that are rows of one; None where nothing is to be fused.
    always : values that state depends on; they have all rows of a batch.
    tables : rotary tables of its nodes. supplied : inputs that are positions of other axes.
    """

    def __init__(self, graph: Graph, prepared: Prepared, fuses: bool = True) -> None:
        self.graph = graph
        for_state = needed(graph.nodes)
        self.steps = [
            Step(node, KERNELS[type(node.op)], prepared.of(node), node.name not in for_state)
            for node in graph.nodes
        ]
        self.joined = Joined(self.steps) if fuses else None
        self.always = {o for step in self.steps if not step.late for o in step.node.outputs}
        for node in graph.nodes:
            if isinstance(node.op, ops.Attend):
                factors_of(node.op.scale, node.op.soft_cap)
        turns = [node for node in graph.nodes if isinstance(node.op, ops.Rope)]
        self.tables: set[RopeTable] = {node.op.table for node in turns}  # type: ignore[attr-defined]
        self.supplied = {n.inputs[1] for n in turns if n.inputs[1] != "position"}
        self.needs = lru_cache(maxsize=256)(self._needs)
        self.fused = lru_cache(maxsize=256)(self._fused)

    def _needs(self, wanted: frozenset[str]) -> frozenset[str]:
        """Names of the nodes that a row which wants these values depends on."""
        return frozenset(needed([step.node for step in self.steps], wanted))

    def _fused(self, wanted: frozenset[str], supplied: frozenset[str]) -> list[Step]:
        """Steps for rows that all want these values and supply those, fused where they can be."""
        steps = self.select(wanted)
        if self.joined is None:
            return steps
        return Fuser(steps, wanted | supplied, self.joined, self.graph).fuse()

    def reach(self, rows: Sequence[Row]) -> int:
        """Positions that tables must have for what rows supply."""
        given = (int(np.max(row.inputs[name])) for name in self.supplied for row in rows)
        return max(given, default=-1) + 1

    def select(self, wanted: frozenset[str]) -> list[Step]:
        """Steps that a batch needs, in order."""
        names = self.needs(wanted)
        return [step for step in self.steps if step.node.name in names]
