"""Cutting a program among several executables, once every node has an owner.

Each owner (a *part*) gets one program, so that its weights are uploaded once and its slots live in
one state. The nodes of a graph are cut into *runs*, stretches with one owner; a run is an entry
graph of its owner's program whose extra inputs are the values that cross the cut. Every row of a
batch passes through every run, so all of them see all positions and all ids.

* Values that cross a cut are f32 or i32. A quantised row never crosses: the part that takes one
  quantises the value again, which gives the same bits.
* A part's run that computes the logits (else its last run) keeps the graph's name, the others are
  `NAME#INDEX`; a part that has no node of the trunk gets a trunk without nodes. So every part has
  a trunk that sees every row, and histories are complete wherever a token is drawn.
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
    """A program cut up: the runs of each graph in order, and each part's program."""

    runs: Mapping[str, tuple[Run, ...]]
    programs: tuple[Program, ...]


def partition(program: Program, owners: Owners, parts: int) -> Partition:
    """Cut every graph of a program into runs, and make a program of each part's runs.

    All nodes that touch a slot must have one owner.
    """
    runs = {}
    for name, graph in program.graphs.items():
        part_of = {node.name: owners[name, node.name] for node in graph.nodes}
        local = _quantise_where_taken(graph, part_of)
        stretches = _stretches(local, part_of)
        runs[name] = tuple(_named(_runs(local, stretches)))
    trunk = program.trunk
    absent = set(range(parts)) - {run.part for run in runs["trunk"]}
    runs["trunk"] += tuple(Run(part, _subgraph(trunk, ())) for part in sorted(absent))
    programs = (_program_of(program, runs, part) for part in range(parts))
    return Partition(runs, tuple(programs))


def _quantise_where_taken(graph: Graph, part_of: dict[str, int]) -> Graph:
    """Repeat a Quantise in every other part that takes its row; `part_of` learns the new nodes."""
    makers = {o: n for n in graph.nodes for o in n.outputs if graph.values[o].dtype == QUANTISED}
    values, nodes, repeated = dict(graph.values), [], set()
    for node in graph.nodes:
        part = part_of[node.name]
        names = {}
        for value in node.inputs:
            if value in makers and part_of[makers[value].name] != part:
                names[value] = f"{value}@{part}"
                if (value, part) not in repeated:
                    repeated.add((value, part))
                    values[names[value]] = values[value]
                    copy = _renamed(makers[value], part, value)
                    part_of[copy.name] = part
                    nodes.append(copy)
        nodes.append(replace(node, inputs=tuple(names.get(v, v) for v in node.inputs)))
    taken = {v for node in nodes for v in node.inputs} | set(graph.outputs)
    idle = {m.name for value, m in makers.items() if value not in taken}
    return replace(graph, nodes=tuple(n for n in nodes if n.name not in idle), values=values)


def _renamed(node: Node, part: int, output: str) -> Node:
    return replace(node, name=f"{node.name}@{part}", outputs=(f"{output}@{part}",))


def _stretches(graph: Graph, part_of: Mapping[str, int]) -> list[tuple[int, list[Node]]]:
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


def _runs(graph: Graph, stretches: list[tuple[int, list[Node]]]) -> list[Run]:
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
    main = {run.part: index for index, run in enumerate(runs)}
    main |= {run.part: i for i, run in enumerate(runs) if _computes(run.graph, "logits")}
    for index, run in enumerate(runs):
        name = run.graph.name if main[run.part] == index else f"{run.graph.name}#{index}"
        yield replace(run, graph=replace(run.graph, name=name))


def _computes(graph: Graph, value: str) -> bool:
    return any(value in node.outputs for node in graph.nodes)


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
