"""Cutting a program among several executables, once every node has an owner.

Each owner (a *part*) gets one program, so that its weights are uploaded once and its slots live in
one state. The nodes of a graph are cut into *runs*, stretches with one owner; a run is an entry
graph of its owner's program whose extra inputs are the values that cross the cut. Every row of a
batch passes through every run, so all of them see all positions and all ids.

* Values that cross a cut are f32 or i32. A quantised row never crosses: the run that takes one
  quantises the value again, which gives the same bits.
* A part's last run keeps the graph's name, the others are `NAME#INDEX`; a part that has no node of
  the trunk gets a trunk without nodes. So every part has a trunk that sees every row, and
  histories are complete wherever a token is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from cortiq.ir import Graph, Node, Program, Type

Owners = Mapping[tuple[str, str], int]
"""Index of the part that computes a node, by (graph, node)."""
SUPPLIED_BY_ROWS = ("token", "position")
QUANTISED = "q16"


@dataclass(frozen=True)
class Run:
    """Nodes that one part computes without a break.

    Attributes
    ----------
    part : index of the part.
    graph : the nodes as an entry graph of the part's program.
    edges : values that runs of other parts take from this one.
    """

    part: int
    graph: Graph
    edges: tuple[str, ...] = ()


@dataclass(frozen=True)
class Partition:
    """A program cut up: the runs of each graph in order, and each part's program.

    Attributes
    ----------
    whole : the program that the runs add up to: a Quantise may have been repeated or dropped.
    """

    whole: Program
    runs: Mapping[str, tuple[Run, ...]]
    programs: tuple[Program, ...]


def partition(program: Program, owners: Owners, parts: int) -> Partition:
    """Cut every graph of a program into runs, and make a program of each part's runs.

    All nodes that touch a slot must have one owner.
    """
    runs, graphs = {}, {}
    for name, graph in program.graphs.items():
        part_of = {node.name: owners[name, node.name] for node in graph.nodes}
        stretches = _stretches(graph, part_of)
        graphs[name] = _quantise_where_taken(graph, stretches)
        runs[name] = tuple(_named(_runs(graphs[name], stretches)))
    trunk = program.trunk
    absent = set(range(parts)) - {run.part for run in runs["trunk"]}
    runs["trunk"] += tuple(Run(part, _subgraph(trunk, ())) for part in sorted(absent))
    whole = replace(program, graphs=graphs)
    programs = (_program_of(whole, runs, part) for part in range(parts))
    return Partition(whole, runs, tuple(programs))


Stretch = tuple[int, list[Node]]
"""A part, and the nodes it computes without a break."""


def _quantise_where_taken(graph: Graph, stretches: list[Stretch]) -> Graph:
    """Repeat a Quantise in every other stretch that takes its row; changes the stretches too."""
    makers = {o: n for n in graph.nodes for o in n.outputs if graph.values[o].dtype == QUANTISED}
    values = dict(graph.values)
    for index, (_, nodes) in enumerate(stretches):
        here = {value for node in nodes for value in node.outputs}
        foreign = {v: f"{v}@{index}" for n in nodes for v in n.inputs if v in makers.keys() - here}
        values |= {copy: values[value] for value, copy in foreign.items()}
        copies = [
            replace(makers[value], name=f"{makers[value].name}@{index}", outputs=(copy,))
            for value, copy in foreign.items()
        ]
        renamed = (
            replace(node, inputs=tuple(foreign.get(v, v) for v in node.inputs)) for node in nodes
        )
        nodes[:] = [*copies, *renamed]
    taken = {v for _, nodes in stretches for node in nodes for v in node.inputs}
    idle = {maker.name for value, maker in makers.items() if value not in taken}
    for _, nodes in stretches:
        nodes[:] = [node for node in nodes if node.name not in idle]
    stretches[:] = [stretch for stretch in stretches if stretch[1]]
    return replace(graph, nodes=tuple(n for _, nodes in stretches for n in nodes), values=values)


def _stretches(graph: Graph, part_of: Mapping[str, int]) -> list[Stretch]:
    """Order the nodes so that parts alternate seldom: a part computes all it can before the next.

    A node waits for its inputs, and for every earlier node that touches one of its slots.
    """
    waiting, known, result = list(graph.nodes), set(graph.inputs), []
    while waiting:
        part = part_of[waiting[0].name]
        taken: list[Node] = []
        left: list[Node] = []
        busy: set[str] = set()
        for node in waiting:
            slots = set(node.slots.values())
            ready = known.issuperset(node.inputs) and not slots & busy
            if ready and part_of[node.name] == part:
                taken.append(node)
                known.update(node.outputs)
            else:
                left.append(node)
                busy |= slots
        result.append((part, taken))
        waiting = left
    return result


def _runs(graph: Graph, stretches: list[Stretch]) -> list[Run]:
    taken = [{v for node in nodes for v in node.inputs} for _, nodes in stretches]
    runs = []
    for index, (part, nodes) in enumerate(stretches):
        made = [v for node in nodes for v in node.outputs]
        later = set().union(*taken[index + 1 :])
        edges = tuple(v for v in made if v in later)
        kept = dict.fromkeys((*edges, *(v for v in graph.outputs if v in made)))
        runs.append(Run(part, _subgraph(graph, nodes, tuple(kept)), edges))
    return runs


def _subgraph(graph: Graph, nodes: Iterable[Node], outputs: tuple[str, ...] = ()) -> Graph:
    nodes = tuple(nodes)
    made = {v for node in nodes for v in node.outputs}
    always = [v for v in graph.inputs if v in SUPPLIED_BY_ROWS]
    taken = [v for node in nodes for v in node.inputs if v not in made]
    inputs = tuple(dict.fromkeys((*always, *taken)))
    values: dict[str, Type] = {v: graph.values[v] for v in (*inputs, *sorted(made))}
    return Graph(graph.name, inputs, nodes, values, outputs)


def _named(runs: list[Run]) -> Iterable[Run]:
    """Give each run the name of its entry graph."""
    last = {run.part: index for index, run in enumerate(runs)}
    for index, run in enumerate(runs):
        name = run.graph.name if last[run.part] == index else f"{run.graph.name}#{index}"
        yield replace(run, graph=replace(run.graph, name=name))


def _program_of(program: Program, runs: Mapping[str, tuple[Run, ...]], part: int) -> Program:
    graphs = [run.graph for group in runs.values() for run in group if run.part == part]
    nodes = [node for graph in graphs for node in graph.nodes]
    weights = dict.fromkeys(w for node in nodes for w in node.weights.values())
    slots = dict.fromkeys(s for node in nodes for s in node.slots.values())
    return replace(
        program,
        graphs={graph.name: graph for graph in graphs},
        weights={name: program.weights[name] for name in weights},
        slots={name: program.slots[name] for name in slots},
    )
