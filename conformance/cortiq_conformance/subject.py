"""The backend under test: programs placed on it alone, without fallback; what it did, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from cortiq.backend import Backend, CompileOptions, Declined, Executable
from cortiq.ir import Graph, Node, Program, expand, primitives_of
from cortiq.numerics.layouts import Weight


class DeclinedNodesError(Exception):
    """The backend declined primitives; `reasons` by the name of the node's operator."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        super().__init__("; ".join(f"{kind}: {reason}" for kind, reason in reasons.items()))


def _stays(declined: set[str], node: Node) -> bool:
    return node.name not in declined


class Subject:
    """A backend with a device.

    Attributes
    ----------
    computed : nodes of compiled programs, by the backend that `placement` says computes them.
    covered : pairs of operator and weight layout that were compiled.
    plugin : the file that brings the backend, if `--plugin` named one.
    """

    def __init__(
        self, backend: Backend, device: str | None = None, plugin: str | None = None
    ) -> None:
        self.plugin = plugin
        self.backend, self.device, self.name = backend, device, backend.name
        self.computed: Counter[str] = Counter()
        self.covered: Counter[tuple[str, str]] = Counter()

    def apart(self) -> Subject:
        """The same backend, counted apart: for runs that look for a cause."""
        return Subject(self.backend, self.device, self.plugin)

    def place(self, program: Program) -> Program:
        """The program with declined layers decomposed; raises when primitives are declined."""
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
                answer = self.backend.supports(node, graph, program)
                if not isinstance(answer, Declined):
                    supported.add(node.name)
                elif node.op.primitive:
                    reasons.setdefault(node.op.kind, answer.reason)
                    supported.add(node.name)
                else:
                    layers.add(node.name)
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
        """An executable of the program, closed at the end."""
        placed = self.place(primitives_of(program) if decomposed else program)
        chosen = CompileOptions(device=self.device, **options)
        executable = self.backend.compile(placed, weights, chosen)
        self._count(placed, executable)
        try:
            yield executable
        finally:
            executable.close()

    def _count(self, placed: Program, executable: Executable) -> None:
        self.computed.update(executable.placement.values())
        for graph in primitives_of(placed).graphs.values():
            for node in graph.nodes:
                layouts = [placed.weights[name].layout or "" for name in node.weights.values()]
                self.covered.update((node.op.kind, layout) for layout in layouts or [""])
