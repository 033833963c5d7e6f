"""Level 1: inputs of layers over several copies of a row, and outputs of those that have two."""

from __future__ import annotations

import math

from cortiq.ir import Builder, Op, Type
from cortiq.ir.graph import Value
from cortiq.ir.layers import (
    AltUpAdd,
    AltUpCorrect,
    AltUpExit,
    AltUpPredict,
    AttentionResidual,
    CompressedAttention,
    Embedding,
    GatedStreamRead,
    GatedStreamWrite,
    KeyIndexer,
    LightningAttention,
    Mamba1,
    PerLayerInputs,
    Rope,
    RWKV7TimeMix,
    StreamMean,
    StreamNGrams,
    StreamRead,
    StreamWrite,
    WindowIndexer,
)
from cortiq.ir.ops import Concat, Reshape

SEVERAL = AltUpPredict | AltUpCorrect | RWKV7TimeMix | Mamba1 | GatedStreamRead | StreamRead
"""Layers that may have several outputs, which a probe joins in one row."""
READS = StreamRead | StreamMean | GatedStreamRead | StreamNGrams
"""Layers that take streams, and no branch's output."""


def stream_inputs(op: Op) -> dict[str, Type] | None:
    """Return the inputs of a layer over copies of a row, or of RWKV-7's; None for another one."""
    if isinstance(op, RWKV7TimeMix):
        values = {"values": Type((op.inner,))} if op.value_rank else {}
        return {"x": Type((op.width,)), **values}
    if isinstance(op, AttentionResidual):
        return {f"row{n}": Type((op.width,)) for n in range(op.rows)}
    if isinstance(op, AltUpPredict | AltUpCorrect | AltUpAdd | AltUpExit):
        given = {"x": Type((op.streams, op.width))}
        row = {"row": Type((op.width,))} if isinstance(op, AltUpCorrect | AltUpAdd) else {}
        return given | row
    if not isinstance(op, READS | StreamWrite | GatedStreamWrite):
        return None
    n, given = op.streams, {"x": Type((op.streams, op.width))}
    branch = {"branch": Type((op.width,)), "post": Type((n, 1))}
    mixes = isinstance(op, StreamWrite) and not op.identity
    branch |= {"mix": Type((n, n))} if mixes else {}
    return given if isinstance(op, READS) else given | branch


def with_own(op: Op, taken: list[Value], token: Value, position: Value) -> list[Value]:
    """Return a layer's inputs with the row's token or position, where it takes one."""
    first = [token] if isinstance(op, Embedding | PerLayerInputs) else []
    placed = isinstance(op, KeyIndexer | WindowIndexer | CompressedAttention | Rope)
    placed = placed or (isinstance(op, LightningAttention) and op.rope is not None)
    second = [position] if placed or "kv" in op.slot_kinds() else []
    second += [token] if isinstance(op, StreamNGrams) else []
    return [*first, *taken[:1], *second, *taken[1:]]


def joined(b: Builder, outputs: tuple[Value, ...], name: str) -> str:
    """Write all outputs of a layer in one row; return its name."""
    flat = [
        b.add(Reshape((math.prod(value.type.shape),)), value, name=f"{value.name}.flat")
        for value in outputs
    ]
    b.add(Concat(), *flat, name=name)
    return name
