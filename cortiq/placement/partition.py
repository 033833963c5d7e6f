"""Partition of a program among several executables, once every node is assigned to a part.

Each part gets one program, so that its weights are uploaded once and its slots live in one state.
The nodes of a graph are cut into *segments* of one part each; a segment is an entry graph of its
part's program whose extra inputs are the values that cross the cut. Every row of a batch passes
through every segment, so all of them see all positions and all ids.

* Values that cross a cut are f32 or i32. A quantised row never crosses: the segment that takes one
  quantises the value again, which gives the same bits.
* A part's last segment keeps the graph's name, the others are `NAME#INDEX`; a part that has no
  node of the trunk gets a trunk without nodes. So every part has a trunk that sees every row, and
  histories are complete wherever a token is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from cortiq.ir import Graph, Node, Program, Type

NodeParts = Mapping[tuple[str, str], int]
"""Index of the part that computes a node, by (graph, node)."""
SUPPLIED_BY_ROWS = ("token", "position")
QUANTISED = "q16"


@dataclass(frozen=True)
class GraphSegment:
    """Nodes that one part computes in a row.

    Attributes
    ----------
    part : index of the part.
    graph : the nodes as an entry graph of the part's program.
    edges : values that segments of other parts take from this one.
    """

    part: int
    graph: Graph
    edges: tuple[str, ...] = ()


@dataclass(frozen=True)
class Partition:
    """A program cut up: the segments of each graph in order, and each part's program.

    Attributes
    ----------
    whole : the program that the segments add up to: a Quantise may have been repeated or dropped.
    """

    whole: Program
    segments: Mapping[str, tuple[GraphSegment, ...]]
    programs: tuple[Program, ...]


def partition(program: Program, part_of: NodeParts, parts: int) -> Partition:
    """Cut every graph of a program into segments, and make a program of each part's segments.

    All nodes that touch a slot must be in one part.
    """
    segments, graphs = {}, {}
    for name, graph in program.graphs.items():
        by_name = {node.name: part_of[name, node.name] for node in graph.nodes}
        stretches = _stretches(graph, by_name)
        graphs[name] = _quantise_where_taken(graph, stretches)
        segments[name] = tuple(_named(_segments(graphs[name], stretches)))
    trunk = program.trunk
    absent = set(range(parts)) - {segment.part for segment in segments["trunk"]}
    segments["trunk"] += tuple(GraphSegment(part, _subgraph(trunk, ())) for part in sorted(absent))
    whole = replace(program, graphs=graphs)
    programs = (_program_of(whole, segments, part) for part in range(parts))
    return Partition(whole, segments, tuple(programs))


Stretch = tuple[int, list[Node]]
"""A part, and the nodes it computes in a row."""


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


def _segments(graph: Graph, stretches: list[Stretch]) -> list[GraphSegment]:
    taken = [{v for node in nodes for v in node.inputs} for _, nodes in stretches]
    segments = []
    for index, (part, nodes) in enumerate(stretches):
        made = [v for node in nodes for v in node.outputs]
        later = set().union(*taken[index + 1 :])
        edges = tuple(v for v in made if v in later)
        kept = dict.fromkeys((*edges, *(v for v in graph.outputs if v in made)))
        segments.append(GraphSegment(part, _subgraph(graph, nodes, tuple(kept)), edges))
    return segments


def _subgraph(graph: Graph, nodes: Iterable[Node], outputs: tuple[str, ...] = ()) -> Graph:
    nodes = tuple(nodes)
    made = {v for node in nodes for v in node.outputs}
    always = [v for v in graph.inputs if v in SUPPLIED_BY_ROWS]
    taken = [v for node in nodes for v in node.inputs if v not in made]
    inputs = tuple(dict.fromkeys((*always, *taken)))
    values: dict[str, Type] = {v: graph.values[v] for v in (*inputs, *sorted(made))}
    return Graph(graph.name, inputs, nodes, values, outputs)


def _named(segments: list[GraphSegment]) -> Iterable[GraphSegment]:
    """Give each segment the name of its entry graph."""
    last = {segment.part: index for index, segment in enumerate(segments)}
    for index, segment in enumerate(segments):
        name = (
            segment.graph.name if last[segment.part] == index else f"{segment.graph.name}#{index}"
        )
        yield replace(segment, graph=replace(segment.graph, name=name))


def _program_of(
    program: Program, segments: Mapping[str, tuple[GraphSegment, ...]], part: int
) -> Program:
    graphs = [
        segment.graph for group in segments.values() for segment in group if segment.part == part
    ]
    nodes = [node for graph in graphs for node in graph.nodes]
    weights = dict.fromkeys(w for node in nodes for w in node.weights.values())
    slots = dict.fromkeys(s for node in nodes for s in node.slots.values())
    return replace(
        program,
        graphs={graph.name: graph for graph in graphs},
        weights={name: program.weights[name] for name in weights},
        slots={name: program.slots[name] for name in slots},
    )
