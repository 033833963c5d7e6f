"""Who computes what: a backend built on the reference claims the nodes of its own kernels only."""

from __future__ import annotations

from dataclasses import replace

from cortiq.backend.kernel import NO_KERNELS, GivenKernels
from cortiq.backend.plan import Kernels
from cortiq.ir import Graph, Node, Op, Program, expand
from cortiq_reference.kernels import KERNELS

REFERENCE = "reference"


def placement_of(
    program: Program, kernels: Kernels, name: str, given: GivenKernels = NO_KERNELS
) -> dict[str, str]:
    """By node name: `name` where a kernel computes it that is not the reference's.

    A layer is its own only if all its primitives are. Where kernels of others compute some of
    them, the layer is theirs and the reference's together.
    """
    own = {op for op, kernel in kernels.items() if kernel is not KERNELS.get(op)}
    layouts = {weight: spec.layout for weight, spec in program.weights.items()}

    def owner(op: Op) -> str:
        if type(op) in given:
            return given[type(op)].owner
        return name if type(op) in own else REFERENCE

    def owners(node: Node, graph: Graph) -> str:
        if node.op.primitive or not (own or given):
            return owner(node.op)
        parts = expand(replace(graph, nodes=(node,)), layouts, lambda _: False).nodes
        found = {owner(part.op) for part in parts}
        return _joint(found)

    return {
        node.name: owners(node, graph) for graph in program.graphs.values() for node in graph.nodes
    }


def _joint(owners: set[str]) -> str:
    """Who computes a node whose parts these compute; the reference where backends share it."""
    if len(owners) == 1:
        return next(iter(owners))
    given = any("/" in owner for owner in owners)
    return "+".join(sorted(owners)) if given else REFERENCE
