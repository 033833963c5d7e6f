"""The backend under test: programs placed on it alone, without fallback, and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from cortiq.backend import Backend, CompileOptions, Declined, Executable
from cortiq.backend.compiling import CheckedWeights, compile_checked
from cortiq.backend.seam import support_of
from cortiq.ir import Graph, Node, Program, expand, primitives_of
from cortiq.numerics.layouts import Weight
from cortiq_conformance.requirements import of_node, unmet


class DeclinedNodesError(Exception):
    """The backend declined primitives; `reasons` by the name of the node's operator."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        super().__init__("; ".join(f"{kind}: {reason}" for kind, reason in reasons.items()))


def _stays(declined: set[str], node: Node) -> bool:
    return node.name not in declined


Covered = tuple[str, str, str, str]
"""Operator, type of its first input, layout of a weight, and who computes it."""


@dataclass
class CompileCounts:
    """Counts from compiling the programs of a case.

    Attributes
    ----------
    computed : nodes, by the backend that `placement` says computes them.
    covered : primitives, with type, layout, and who computes them.
    required : names of what the programs require (`requirements`).
    declined : names of what was declined, with the reason.
    decomposed : layers that were declined as a whole, by operator, with the reason.
    """

    computed: Counter[str] = field(default_factory=Counter)
    covered: Counter[Covered] = field(default_factory=Counter)
    required: set[str] = field(default_factory=set)
    declined: dict[str, str] = field(default_factory=dict)
    decomposed: dict[str, str] = field(default_factory=dict)


def owner_of(name: str, placement: Mapping[str, str]) -> str:
    """Return the owner of a node, or of the layer that it belongs to."""
    while name not in placement and "." in name:
        name = name.rpartition(".")[0]
    return placement.get(name, "")


class Subject:
    """A backend with a device.

    Attributes
    ----------
    computed, covered, required, declined, decomposed : see `CompileCounts`.
    plugin, source : the file that brings the backend, if `--plugin` named one; file, or
        distribution and version.
    split : how several devices divide the programs, in words; empty for one.
    """

    def __init__(
        self,
        backend: Backend,
        device: str | None = None,
        plugin: str | None = None,
        source: str = "",
        split: str = "",
    ) -> None:
        self.plugin, self.source, self.split = plugin, source, split
        self.backend, self.device, self.name = backend, device, backend.name
        self.begin()

    def begin(self) -> None:
        """Reset the counts: another case begins."""
        self.computed: Counter[str] = Counter()
        self.covered: Counter[Covered] = Counter()
        self.decomposed: dict[str, str] = {}
        self.required: set[str] = set()
        self.declined: dict[str, str] = {}

    def account(self) -> CompileCounts:
        """Return the counts since the last `begin`."""
        return CompileCounts(
            self.computed, self.covered, self.required, self.declined, self.decomposed
        )

    def apart(self) -> Subject:
        """Return a copy with separate counts, for runs that look for a cause."""
        return Subject(self.backend, self.device, self.plugin, self.source, self.split)

    def place(self, program: Program) -> Program:
        """Return the program with declined layers decomposed; raise for declined primitives."""
        layouts = {name: spec.layout for name, spec in program.weights.items()}
        reasons: dict[str, str] = {}
        graphs = {
            name: self._place(graph, program, layouts, reasons)
            for name, graph in program.graphs.items()
        }
        if reasons:
            raise DeclinedNodesError(reasons)
        return replace(program, graphs=graphs)

    def _place(
        self, graph: Graph, program: Program, layouts: Mapping, reasons: dict[str, str]
    ) -> Graph:
        supported: set[str] = set()
        while True:
            layers = set()
            for node in graph.nodes:
                if node.name in supported:
                    continue
                answer = support_of(self.backend, node, graph, program)
                if isinstance(answer, Declined) and not node.op.primitive:
                    self.decomposed.setdefault(node.op.kind, answer.reason)
                    layers.add(node.name)
                    continue
                supported.add(node.name)
                if isinstance(answer, Declined):
                    reasons.setdefault(node.op.kind, answer.reason)
                    self.declined.setdefault(unmet(node, program, answer), answer.reason)
            if not layers:
                return graph
            graph = expand(graph, layouts, partial(_stays, layers))

    @contextmanager
    def compiled(
        self,
        program: Program,
        weights: Mapping[str, Weight],
        *,
        decomposed: bool = False,
        **options: Any,
    ) -> Iterator[Executable]:
        """Compile an executable of the program, and close it at the end."""
        placed = self.place(primitives_of(program) if decomposed else program)
        chosen = CompileOptions(device=self.device, **options)
        checked = CheckedWeights(placed, weights)
        executable = compile_checked(self.backend, placed, checked, chosen)
        self._count(placed, executable)
        try:
            yield executable
        finally:
            executable.close()

    def _count(self, placed: Program, executable: Executable) -> None:
        placement = executable.placement
        self.computed.update(placement.values())
        for graph in primitives_of(placed).graphs.values():
            for node in graph.nodes:
                layouts = [placed.weights[name].layout or "" for name in node.weights.values()]
                dtype = graph.values[node.inputs[0]].dtype
                owner = owner_of(node.name, placement)
                kinds = ((node.op.kind, dtype, layout, owner) for layout in layouts or [""])
                self.covered.update(kinds)
                self.required.update(of_node(node, placed))
