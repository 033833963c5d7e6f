"""Assignment of each node of a program to a backend.

A backend is asked for layers; a declined layer is decomposed one step and its nodes are asked for
in turn; a declined primitive goes to the fallback. Two rules keep parts apart from each other's
storage. Nodes that touch one slot are in one part: the fallback if it computes any of them, else
the first part that touches the slot. And a node that takes a quantised row goes to a part that can
make one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cortiq.backend import Backend, CompileOptions, Declined
from cortiq.backend.error_attribution import attributed_to
from cortiq.backend.seam import support_of
from cortiq.errors import DeclinedError
from cortiq.ir import Graph, Node, Program, expand
from cortiq.placement.partition import QUANTISED, NodeParts
from cortiq.plugins import fallback_backend

PartTarget = tuple[Backend, CompileOptions]
"""A part of a placement: its backend, and the options it is compiled with."""


@dataclass
class PlacementSolver:
    """Assigns every node of a program to a part.

    Attributes
    ----------
    program : as given.
    parts : backend and options of each part; the fallback comes last, once it is needed.
    homes : part of each node of the program, by (graph, node).
    slots : parts that slots were moved to, with the reason if it is the fallback.
    placed : the program with declined layers decomposed.
    part_of : part of each node of `placed`; `len(parts)` stands for the fallback.
    declined : reason for each node that the fallback computes.
    """

    program: Program
    parts: list[PartTarget]
    homes: Mapping[tuple[str, str], int]
    slots: dict[str, tuple[int, str]] = field(default_factory=dict)
    placed: Program = field(init=False)
    part_of: dict[tuple[str, str], int] = field(init=False)
    declined: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.fallback = len(self.parts)
        self.layouts = {name: spec.layout for name, spec in self.program.weights.items()}

    def settle(self) -> None:
        """Ask for every node until no slot is in two parts."""
        while True:
            self.part_of, self.declined = {}, {}
            graphs = {name: self._place(graph) for name, graph in self.program.graphs.items()}
            self.placed = replace(self.program, graphs=graphs)
            self._forget_decomposed()
            for graph in graphs.values():
                self._follow_quantised_rows(graph)
            torn = self._torn_slots()
            if not torn:
                return
            self.slots |= torn

    def _place(self, graph: Graph) -> Graph:
        """Ask for each node; decompose declined layers until only primitives are declined."""
        asked: set[str] = set()
        while True:
            layers = set()
            for node in graph.nodes:
                if node.name not in asked:
                    asked.add(node.name)
                    reason = self._ask(node, graph)
                    if reason is not None and not node.op.primitive:
                        layers.add(node.name)
            if not layers:
                return graph
            graph = _decomposed(graph, layers, self.layouts)

    def _ask(self, node: Node, graph: Graph) -> str | None:
        """Assign a node to a part; return the reason if its own part declines it."""
        part, reason = self._home_of(node, graph), None
        moved = [self.slots[slot] for slot in node.slots.values() if slot in self.slots]
        if moved:
            target, reason = min(moved, key=self._precedence)
            part = part if target == self.fallback else target
        reason = _ask(self.parts[part][0], node, graph, self.program) or reason or None
        self.part_of[graph.name, node.name] = part if reason is None else self.fallback
        if reason is not None and node.op.primitive:
            self.declined[node.name] = reason
        return reason

    def _home_of(self, node: Node, graph: Graph) -> int:
        name = node.name
        while (graph.name, name) not in self.homes:  # a node of a decomposed layer: ask its layer
            name = name.rpartition(".")[0]
        return self.homes[graph.name, name]

    def _follow_quantised_rows(self, graph: Graph) -> None:
        """Move nodes that take a quantised row which their own part declines to make."""
        makers = {o: n for n in graph.nodes for o in n.outputs}
        for node in graph.nodes:
            part = self.part_of[graph.name, node.name]
            rows = [v for v in node.inputs if graph.values[v].dtype == QUANTISED]
            for maker in (makers[v] for v in rows if part != self.fallback):
                reason = _ask(self.parts[part][0], maker, graph, self.program)
                if reason is not None:
                    self.part_of[graph.name, node.name] = self.fallback
                    self.declined[node.name] = f"takes {maker.outputs[0]!r}, which is declined"

    def _torn_slots(self) -> dict[str, tuple[int, str]]:
        touched: dict[str, list[tuple[int, str]]] = {}
        for graph in self.placed.graphs.values():
            for node in graph.nodes:
                for slot in node.slots.values():
                    owner = self.part_of[graph.name, node.name]
                    touched.setdefault(slot, []).append((owner, node.name))
        return {slot: self._one_owner(slot, by) for slot, by in touched.items() if _torn(by)}

    def _one_owner(self, slot: str, touched: Sequence[tuple[int, str]]) -> tuple[int, str]:
        owner, name = min(touched, key=self._precedence)
        if owner != self.fallback:
            return owner, ""
        return owner, f"shares the slot {slot!r} with {name!r}, which is declined"

    def _precedence(self, owner: tuple[int, str]) -> int:
        """Order the fallback before all parts: slots only ever move forward in this order."""
        return -1 if owner[0] == self.fallback else owner[0]

    def _forget_decomposed(self) -> None:
        nodes = {(g.name, n.name) for g in self.placed.graphs.values() for n in g.nodes}
        self.part_of = {node: part for node, part in self.part_of.items() if node in nodes}
        names = {name for _, name in nodes}
        self.declined = {name: why for name, why in self.declined.items() if name in names}

    def take_fallback(self, fallback: Backend | None) -> None:
        """Add the fallback as the last part, if it takes every declined node."""
        backend = fallback or fallback_backend()
        refused = {}
        for graph in self.placed.graphs.values():
            for node in graph.nodes:
                if self.part_of[graph.name, node.name] == self.fallback:
                    reason = _ask(backend, node, graph, self.program)
                    if reason is not None:
                        refused[node.name] = f"{self.declined[node.name]}; {backend.name}: {reason}"
        if refused:
            raise declined_error("nobody computes some nodes of this model", refused)
        options = replace(self.parts[0][1], device=None, extra={})
        self.parts.append((backend, options))

    def drop_idle_parts(self) -> NodeParts:
        """Drop parts without nodes; return the part of each node by the remaining indices."""
        busy = sorted(set(self.part_of.values()))
        self.parts = [self.parts[part] for part in busy]
        return {node: busy.index(part) for node, part in self.part_of.items()}


def _decomposed(graph: Graph, layers: set[str], layouts: Mapping[str, str | None]) -> Graph:
    """Decompose these layers one step."""
    return expand(graph, layouts, lambda node: node.name not in layers)


def _torn(touched: Sequence[tuple[int, str]]) -> bool:
    return len({owner for owner, _ in touched}) > 1


def _ask(backend: Backend, node: Node, graph: Graph, program: Program) -> str | None:
    """Return why a backend declines a node; `None` if it takes it."""
    with attributed_to(backend.name):
        answer = support_of(backend, node, graph, program)
    return answer.reason if isinstance(answer, Declined) else None


def declined_error(what: str, declined: Mapping[str, str]) -> DeclinedError:
    """Make the error that lists nodes with the reasons for which all decline them."""
    lines = [f"{name}: {reason}" for name, reason in declined.items()]
    return DeclinedError(what, hint="\n  ".join(lines))
