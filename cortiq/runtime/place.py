"""Placing a program: who computes each node, and the executable that results.

A backend is asked for layers; a declined layer is decomposed one step and its nodes are asked for
in turn; a declined primitive goes to the fallback, the reference. Splitting layers over several
devices is the same mechanism: every node has a home part, and its backend is asked.

Two rules keep parts apart from each other's storage. Nodes that touch one slot have one owner: the
fallback if it computes any of them, else the first part that touches the slot. And a node that
takes a quantised row goes where one can be made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cortiq.backend import Backend, CompileOptions, Declined, Executable, Supported
from cortiq.errors import BackendError, DeclinedError, GraphError
from cortiq.ir import Graph, Node, Program, expand
from cortiq.numerics.layouts import Weight
from cortiq.plugins import fallback_backend
from cortiq.runtime.chained import ChainExecutable
from cortiq.runtime.partition import QUANTISED, Owners, partition

Assignment = tuple[Backend, CompileOptions]


def place(
    backend: Backend,
    program: Program,
    weights: Mapping[str, Weight],
    options: CompileOptions | None = None,
    *,
    strict: bool = False,
    fallback: Backend | None = None,
) -> Executable:
    """Compile a program on a backend, and on the fallback what the backend declines.

    Parameters
    ----------
    strict : make a decline an error instead.
    fallback : who computes declined nodes; `None` for the reference, found through the plugins.

    Raises
    ------
    DeclinedError : `strict`, and nodes were declined (all are listed with their reasons); or the
        fallback declined one too.
    """
    assignments = [(backend, options or CompileOptions())]
    return place_split(assignments, program, weights, [], strict=strict, fallback=fallback)


def place_split(
    assignments: Sequence[Assignment],
    program: Program,
    weights: Mapping[str, Weight],
    cuts: Sequence[int | str],
    *,
    strict: bool = False,
    fallback: Backend | None = None,
) -> Executable:
    """Compile a program on several backends or devices, a stretch of the trunk on each.

    Parameters
    ----------
    assignments : backend and options of each stretch.
    cuts : where each stretch but the first begins, ascending: index of a node of the trunk, or
        the name of a node or layer (`layers.7` for its first node). Other entry graphs go to the
        last stretch.
    strict, fallback : as for `place`, whose errors it raises.

    Raises
    ------
    GraphError : a cut is not a node of the trunk, or the cuts do not ascend.
    """
    homes = _homes(program, cuts, len(assignments))
    placing = _Placing(program, list(assignments), homes)
    placing.settle()
    if placing.declined and strict:
        raise _declined_error("the backend declines nodes of this model", placing.declined)
    if placing.declined:
        placing.take_fallback(fallback)
    if len(placing.parts) == 1:
        (part,) = placing.parts
        return part[0].compile(placing.placed, weights, part[1])
    return _compile_chain(placing, weights)


def declined_nodes(executable: Executable) -> Mapping[str, str]:
    """Nodes that a backend declined and the fallback computes, each with the reason."""
    return executable.declined if isinstance(executable, ChainExecutable) else {}


def _homes(program: Program, cuts: Sequence[int | str], parts: int) -> dict[tuple[str, str], int]:
    """Home part of each node, by (graph, node)."""
    if len(cuts) != parts - 1:
        raise GraphError(f"{parts} parts need {parts - 1} cuts, got {len(cuts)}")
    names = [node.name for node in program.trunk.nodes]
    starts = [_index_of(cut, names) for cut in cuts]
    if sorted(set(starts)) != starts:
        raise GraphError(f"the cuts {list(cuts)} do not ascend")
    homes = {}
    for graph in program.graphs.values():
        for index, node in enumerate(graph.nodes):
            part = sum(start <= index for start in starts)
            homes[graph.name, node.name] = part if graph.name == "trunk" else parts - 1
    return homes


def _index_of(cut: int | str, names: Sequence[str]) -> int:
    if isinstance(cut, int):
        found = [cut] if 0 < cut < len(names) else []
    else:
        found = [i for i, n in enumerate(names) if n == cut or n.startswith(f"{cut}.")]
    if not found or found[0] == 0:
        raise GraphError(f"the trunk cannot be cut before {cut!r}; it has {len(names)} nodes")
    return found[0]


@dataclass
class _Placing:
    """A program being placed.

    Attributes
    ----------
    program : as given.
    parts : backend and options of each part; the fallback comes last, once it is needed.
    homes : part of each node of the program, by (graph, node).
    slots : parts that slots were moved to, with the reason if it is the fallback.
    placed : the program with declined layers decomposed.
    owners : part of each node of `placed`; `len(parts)` stands for the fallback.
    declined : reason for each node that the fallback computes.
    """

    program: Program
    parts: list[Assignment]
    homes: Mapping[tuple[str, str], int]
    slots: dict[str, tuple[int, str]] = field(default_factory=dict)
    placed: Program = field(init=False)
    owners: dict[tuple[str, str], int] = field(init=False)
    declined: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.fallback = len(self.parts)
        self.layouts = {name: spec.layout for name, spec in self.program.weights.items()}

    def settle(self) -> None:
        """Ask for every node until no slot has two owners."""
        while True:
            self.owners, self.declined = {}, {}
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
            graph = expand(graph, self.layouts, lambda n, layers=layers: n.name not in layers)

    def _ask(self, node: Node, graph: Graph) -> str | None:
        """Note who computes a node; the reason why not its part, if it doesn't."""
        part, reason = self._part_of(node, graph)
        if part != self.fallback:
            reason = _ask(self.parts[part][0], node, graph, self.program)
        if reason is not None:
            part = self.fallback
            if node.op.primitive:
                self.declined[node.name] = reason
        self.owners[graph.name, node.name] = part
        return reason

    def _part_of(self, node: Node, graph: Graph) -> tuple[int, str | None]:
        moved = [self.slots[slot] for slot in node.slots.values() if slot in self.slots]
        if moved:
            part, reason = min(moved, key=self._precedence)
            return part, reason or None
        name = node.name
        while (graph.name, name) not in self.homes:  # a node of a decomposed layer: ask its layer
            name = name.rpartition(".")[0]
        return self.homes[graph.name, name], None

    def _follow_quantised_rows(self, graph: Graph) -> None:
        """Move nodes that take a quantised row which their own part declines to make."""
        makers = {o: n for n in graph.nodes for o in n.outputs}
        for node in graph.nodes:
            part = self.owners[graph.name, node.name]
            rows = [v for v in node.inputs if graph.values[v].dtype == QUANTISED]
            for maker in (makers[v] for v in rows if part != self.fallback):
                reason = _ask(self.parts[part][0], maker, graph, self.program)
                if reason is not None:
                    self.owners[graph.name, node.name] = self.fallback
                    self.declined[node.name] = f"takes {maker.outputs[0]!r}, which is declined"

    def _torn_slots(self) -> dict[str, tuple[int, str]]:
        touched: dict[str, list[tuple[int, str]]] = {}
        for graph in self.placed.graphs.values():
            for node in graph.nodes:
                for slot in node.slots.values():
                    owner = self.owners[graph.name, node.name]
                    touched.setdefault(slot, []).append((owner, node.name))
        return {slot: self._one_owner(slot, by) for slot, by in touched.items() if _torn(by)}

    def _one_owner(self, slot: str, touched: Sequence[tuple[int, str]]) -> tuple[int, str]:
        owner, name = min(touched, key=self._precedence)
        if owner != self.fallback:
            return owner, ""
        return owner, f"shares the slot {slot!r} with {name!r}, which is declined"

    def _precedence(self, owner: tuple[int, str]) -> int:
        """The fallback goes before all parts: slots only ever move forward in this order."""
        return -1 if owner[0] == self.fallback else owner[0]

    def _forget_decomposed(self) -> None:
        nodes = {(g.name, n.name) for g in self.placed.graphs.values() for n in g.nodes}
        self.owners = {node: part for node, part in self.owners.items() if node in nodes}
        names = {name for _, name in nodes}
        self.declined = {name: why for name, why in self.declined.items() if name in names}

    def take_fallback(self, fallback: Backend | None) -> None:
        """Add the fallback as the last part, if it takes every declined node."""
        backend = fallback or fallback_backend()
        refused = {}
        for graph in self.placed.graphs.values():
            for node in graph.nodes:
                if self.owners[graph.name, node.name] == self.fallback:
                    reason = _ask(backend, node, graph, self.program)
                    if reason is not None:
                        refused[node.name] = f"{self.declined[node.name]}; {backend.name}: {reason}"
        if refused:
            raise _declined_error("nobody computes some nodes of this model", refused)
        options = replace(self.parts[0][1], device=None, extra={})
        self.parts.append((backend, options))

    def drop_idle_parts(self) -> Owners:
        """Leave out parts that own nothing; the owners by the indices that remain."""
        busy = sorted(set(self.owners.values()))
        self.parts = [self.parts[part] for part in busy]
        return {node: busy.index(part) for node, part in self.owners.items()}


def _torn(touched: Sequence[tuple[int, str]]) -> bool:
    return len({owner for owner, _ in touched}) > 1


def _ask(backend: Backend, node: Node, graph: Graph, program: Program) -> str | None:
    """Why a backend declines a node; `None` if it takes it."""
    answer = backend.supports(node, graph, program)
    if isinstance(answer, Declined):
        return answer.reason
    if isinstance(answer, Supported):
        return None
    raise BackendError(
        f"supports() of the backend {backend.name!r} returned {answer!r}",
        where=node.name,
        hint="It returns Supported() or Declined(reason).",
    )


def _declined_error(what: str, declined: Mapping[str, str]) -> DeclinedError:
    lines = [f"{name}: {reason}" for name, reason in declined.items()]
    return DeclinedError(what, hint="\n  ".join(lines))


def _compile_chain(placing: _Placing, weights: Mapping[str, Weight]) -> Executable:
    owners = placing.drop_idle_parts()
    cut = partition(placing.placed, owners, len(placing.parts))
    executables: list[Executable] = []
    try:
        for index, (backend, options) in enumerate(placing.parts):
            program = cut.programs[index]
            mine = {name: weights[name] for name in program.weights}
            share = _share_of_memory(placing.placed, program, options)
            executables.append(backend.compile(program, mine, share))
    except BaseException:
        for executable in executables:
            executable.close()
        raise
    names = [backend.name for backend, _ in placing.parts]
    return ChainExecutable(placing.placed, cut, executables, names, placing.declined)


def _share_of_memory(whole: Program, part: Program, options: CompileOptions) -> CompileOptions:
    """Give a part the share of the memory limit that its slots take of a row."""
    if options.memory_limit is None:
        return options
    total = sum(slot.bytes_per_row() for slot in whole.slots.values())
    mine = sum(slot.bytes_per_row() for slot in part.slots.values())
    return replace(options, memory_limit=options.memory_limit * mine // total) if mine else options
