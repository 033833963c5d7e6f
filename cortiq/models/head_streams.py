"""Draft modules of trunks with residual streams: over one row, or over streams of their own."""

from __future__ import annotations

from collections.abc import Sequence

from cortiq.errors import RequestError, UnsupportedError
from cortiq.ir import Builder, Graph, Node, Value, ops
from cortiq.ir.layers import (
    GatedStreamRead,
    Linear,
    Residual,
    RMSNorm,
    StreamEntry,
    StreamRead,
    StreamWrite,
)


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


def check_source(trunk: Graph, source: str, of_streams: bool) -> None:
    """Raise RequestError unless the rows that a trunk keeps are those that modules are made for.

    Parameters
    ----------
    source : the value that is kept. of_streams : modules take all residual streams.
    """
    if of_streams != (len(trunk.values[source].shape) > 1):
        taken = "all residual streams" if of_streams else "one row a token"
        hint = "heads='auto' gives it the rows that it was made for"
        raise RequestError(f"the draft head takes {taken}, not {source}", where="heads", hint=hint)


def stream_count(trunk: Graph) -> int:
    """Return the gated streams of a trunk; 1 where it has none."""
    found = (node.op.streams for node in trunk.nodes if isinstance(node.op, GatedStreamRead))
    return next(found, 1)


def weights_of_last(last: Node, prefix: str) -> dict[str, str]:
    """Return the weights of a module's last norm, or of its last reading of streams, by role."""
    if isinstance(last.op, GatedStreamRead):
        return {role: f"{prefix}.{name.split('.', 2)[2]}" for role, name in last.weights.items()}
    return {role: f"{prefix}.{role}" for role in last.op.weight_shapes()}


def add_streams(
    b: Builder,
    embedded: Value,
    given: Value,
    entry: str,
    norms: tuple[str, str],
    matrices: tuple[str, str],
    last: Node,
) -> None:
    """Write a module's input: W·RMSNorm(embedding) + V·RMSNorm(stream) in every stream.

    Norms have weights of 1 + w, a value each of all streams. Source: Qwen3.8-Flash-Next's `mtp`.

    Raises
    ------
    UnsupportedError : the trunk has no such streams.

    Parameters
    ----------
    given : the streams, one after the other. last : the trunk's last reading of streams.
    norms, matrices : of the embedding and of the streams, without `.weight`.
    """
    op, (width,) = last.op, embedded.type.shape
    if not isinstance(op, GatedStreamRead):
        what = "a draft module with residual streams, of a model that has none that are gated"
        raise UnsupportedError(what, where=matrices[0], hint="heads='off' loads the model alone")

    def add(op: ops.Op, x: Value, name: str, tensor: str = "") -> Value:
        weights = {"weight": f"{tensor}.weight"} if tensor else {}
        return b.add(op, x, name=f"{entry}.{name}", weights=weights)

    e = add(RMSNorm(width, op.eps, 1.0), embedded, "embed_norm", norms[0])
    e = add(Linear(width, width), e, "embed_input", matrices[0])
    copies = add(StreamEntry(op.streams, width), e, "embed_streams")
    x = add(ops.Reshape((op.streams, width)), given, "given_streams")
    x = add(RMSNorm(width, op.eps, weighted=False), x, "given_unit")
    x = add(ops.Reshape((op.streams * width,)), x, "given_flat")
    x = add(ops.Gain(op.streams * width), x, "given_norm", norms[1])
    x = add(ops.Reshape((op.streams, width)), x, "given_rows")
    x = add(Linear(width, width), x, "given_input", matrices[1])
    b.add(Residual(), copies, x, name=f"{entry}.input")
