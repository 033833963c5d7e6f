"""A fused pattern: the heads of q, k and v are rotated, and quantised, in one operation.

A pattern is a rewriting of nodes when a program is compiled. Every value keeps its name and its
bits: heads depend on themselves only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from cortiq.backend.kernel_walk import KernelCall as Call
from cortiq.backend.plan import Bound
from cortiq.ir import Graph, Node, Op, ops
from cortiq_mlx.kernels import KERNELS
from cortiq_mlx.library import mx
from cortiq_mlx.quantised_rows import MlxRows


@dataclass(frozen=True)
class JoinedHeads(Op):
    """One primitive for the concatenated heads of several values [heads, dim]: q, k and v."""

    inner: Op
    heads: tuple[int, ...]


def joined_heads(call: Call, *inputs: mx.array) -> tuple[Any, ...]:
    """Compute the primitive once for all heads, and split its output by input."""
    count = len(call.op.heads)
    whole = mx.concatenate([*inputs[:count]], axis=1)
    inner = replace(call, op=call.op.inner)
    y = KERNELS[type(call.op.inner)](inner, whole, *inputs[count:])
    cuts = list(accumulate(call.op.heads))[:-1]
    if isinstance(y, MlxRows):
        parts = zip(*(mx.split(part, cuts, axis=1) for part in y), strict=True)
        return tuple(MlxRows(*part) for part in parts)
    return tuple(mx.split(y, cuts, axis=1))


def join_heads(nodes: Sequence[Bound], graph: Graph) -> list[Bound]:
    """Join the `Rope`s, and the `Quantise`s, of q, k and v."""
    found = list(nodes)
    for kind in (ops.Rope, ops.Quantise):
        groups: dict[object, list[Bound]] = {}
        for bound in found:
            if isinstance(bound[0].op, kind) and len(graph.values[bound[0].inputs[0]].shape) == 2:
                groups.setdefault(_kin(bound[0], graph), []).append(bound)
        for group in groups.values():
            found = _beside(found, group, graph)
    return found


def _kin(node: Node, graph: Graph) -> object:
    """Return the key of nodes that may be joined: layer by name, operator, inputs, dim."""
    layer = node.name.rsplit(".", 2)[0]
    return layer, node.op, node.inputs[1:], graph.values[node.inputs[0]].shape[-1]


def _beside(nodes: list[Bound], group: list[Bound], graph: Graph) -> list[Bound]:
    """Replace a group by one node, between its last input and the first use of an output."""
    members = [node for node, _ in group]
    inputs = {node.inputs[0] for node in members}
    outputs = {node.outputs[0] for node in members}
    made = [i for i, (node, _) in enumerate(nodes) if inputs.intersection(node.outputs)]
    read = [i for i, (node, _) in enumerate(nodes) if outputs.intersection(node.inputs)]
    place = max(made, default=-1) + 1
    if len(members) < 2 or place > min(read, default=len(nodes)):
        return nodes
    first = members[0]
    op = JoinedHeads(first.op, tuple(graph.values[node.inputs[0]].shape[0] for node in members))
    names = tuple(node.inputs[0] for node in members)
    node = Node(first.name, op, (*names, *first.inputs[1:]), tuple(n.outputs[0] for n in members))
    kept = [bound for bound in nodes[:place] if bound not in group]
    return [*kept, (node, {}), *(bound for bound in nodes[place:] if bound not in group)]
