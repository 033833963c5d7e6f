"""Layers of trunks with residual streams as draft modules have them: over one row."""

from __future__ import annotations

from collections.abc import Sequence

from cortiq.ir import Node
from cortiq.ir.layers import Residual, StreamRead, StreamWrite


def reads_streams(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes of a half layer that read streams with weights of their own."""
    return [node for node in nodes if isinstance(node.op, StreamRead)]


def over_one_row(nodes: Sequence[Node]) -> list[Node]:
    """Return a half layer with one row for streams: its branch reads that, and is added to it."""
    rows = {node.outputs[0]: node.inputs[0] for node in reads_streams(nodes)}
    found = []
    for node in nodes:
        if isinstance(node.op, StreamRead):
            continue
        op, inputs = node.op, tuple(rows.get(name, name) for name in node.inputs)
        if isinstance(op, StreamWrite):
            op, inputs = Residual(), inputs[:2]
        found.append(Node(node.name, op, inputs, node.outputs, node.weights, node.slots))
    return found
