"""Who computes what: a backend built on the reference claims the nodes of its own kernels only."""

from __future__ import annotations

from dataclasses import replace

from cortiq.ir import Graph, Node, Program, expand
from cortiq_reference.kernels import KERNELS, Kernels

REFERENCE = "reference"


def placement_of(program: Program, kernels: Kernels, name: str) -> dict[str, str]:
    """By node name: `name` where a kernel computes it that is not the reference's.

    A layer is its own only if all its primitives are.
    """
    own = {op for op, kernel in kernels.items() if kernel is not KERNELS.get(op)}
    layouts = {weight: spec.layout for weight, spec in program.weights.items()}

    def is_own(node: Node, graph: Graph) -> bool:
        if node.op.primitive or not own:
            return type(node.op) in own
        parts = expand(replace(graph, nodes=(node,)), layouts, lambda _: False).nodes
        return all(type(part.op) in own for part in parts)

    return {
        node.name: name if is_own(node, graph) else REFERENCE
        for graph in program.graphs.values()
        for node in graph.nodes
    }
