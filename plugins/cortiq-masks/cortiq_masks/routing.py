"""Programs whose feed-forward parts choose neurons, or tubes of them, by the row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cortiq.errors import UnsupportedError
from cortiq.ir import Graph, Node, Program
from cortiq.ir.decompose import expand
from cortiq_masks.operators import KeepLargest
from cortiq_masks.sites import feed_forward_nodes

SCORES = ("gate", "oracle")


@dataclass(frozen=True)
class NeuronRouting:
    """A choice of neurons by the row.

    Attributes
    ----------
    keep : neurons that stay, or tubes, or blocks of `block` neurons for so many neurons.
    score : what is compared: "gate", the activated gate, known before up and down are computed; or
        "oracle", the activation itself.
    block : neurons of a block; 1 compares each for itself.
    tubes : where tubes begin, by layer; what lies before the first is the core, which stays.
    closed : tubes that a mask closes, by layer.
    """

    keep: int
    score: str = "gate"
    block: int = 1
    tubes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    closed: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        wrong = self.keep < 1 or self.block < 1 or self.score not in SCORES
        if wrong or (self.tubes and self.block > 1):
            what = f"takes keep ≥ 1, block ≥ 1 (without tubes) and one of {', '.join(SCORES)}"
            raise UnsupportedError(what, where="routing")

    def operator(self, layer: int, width: int) -> KeepLargest | None:
        """Return the operator of a layer of this width; None where everything stays."""
        if self.tubes:
            edges = self.tubes.get(layer, ())
            closed = self.closed.get(layer, ())
            return KeepLargest(width, self.keep, edges, closed) if edges else None
        edges = tuple(range(0, width, self.block)) if self.block > 1 else ()
        count = len(edges) if edges else width
        keep = min(-(-self.keep // self.block), count)
        return None if keep == count else KeepLargest(width, keep, edges)

    def facts(self) -> dict[str, Any]:
        """Return what decides the bits."""
        tubes = {str(i): [list(e), list(self.closed.get(i, ()))] for i, e in self.tubes.items()}
        return {"keep": self.keep, "score": self.score, "block": self.block, "tubes": tubes}


def routed_program(program: Program, routing: NeuronRouting) -> Program:
    """Return the program with `KeepLargest` before each `down`.

    Raises
    ------
    UnsupportedError : a part has no value that is compared, or no part is there.
    """
    parts = {node.name: layer for layer, node in feed_forward_nodes(program).items()}
    if not parts:
        raise UnsupportedError("has no feed-forward parts of its own", where="routing")
    widths = {n.name: n.op.inner for n in program.trunk.nodes if n.name in parts}  # type: ignore[attr-defined]
    layouts = {name: spec.layout for name, spec in program.weights.items()}
    trunk = expand(program.trunk, layouts, lambda node: node.name not in parts)
    for name, layer in parts.items():
        op = routing.operator(layer, widths[name])
        if op is not None:
            trunk = _with_choice(trunk, name, op, routing.score)
    return replace(program, graphs={**program.graphs, "trunk": trunk})


def _with_choice(graph: Graph, part: str, op: KeepLargest, score: str) -> Graph:
    """Return the graph with the operator before a part's `down`."""
    down = next(node for node in graph.nodes if node.outputs == (part,))
    value = down.inputs[0]
    source = value if score == "oracle" else f"{part}.activation"
    if source not in graph.values:
        raise UnsupportedError(f"{part} has no activation of a gate", where="routing.score")
    chosen = f"{part}.kept"
    nodes: list[Node] = []
    for node in graph.nodes:
        if node is down:
            nodes.append(Node(f"{part}.kept", op, (value, source), (chosen,)))
            node = replace(node, inputs=(chosen,))
        nodes.append(node)
    values = {**graph.values, chosen: graph.values[value]}
    return replace(graph, nodes=tuple(nodes), values=values)
