"""Ops on single rows: elementwise functions, norms, quantised rows, copies."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from cortiq.backend.fuse import FusedElementwise, NormChain
from cortiq.backend.lower import LoweredStep
from cortiq.ir import ops
from cortiq.numerics import scalar
from cortiq_cpu import arguments
from cortiq_cpu.arguments import OpKind, address
from cortiq_cpu.bind_scaling import bind_scaled
from cortiq_cpu.binder import FLOAT_BYTES, OpArgs, OpBinder, fields, row_bytes

F32 = np.float32
ACTIVATIONS = tuple(scalar.ACTIVATIONS)
"""By the number the native core gives them."""


def bind_gather(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Bind COPY of the tail's rows."""
    (source,), (out,) = step.inputs, step.outputs
    floats = row_bytes(b.lowered.types[out]) // FLOAT_BYTES
    copy = arguments.CopyArgs(
        x=b.at(source),
        out=b.at(out),
        from_rows=address(b.rows.source),
        x_stride=floats,
        out_stride=floats,
        width=floats,
    )
    return [(OpKind.COPY, copy)]


def bind_admit(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Bind COPY in place, through `snap`."""
    (name,) = step.inputs
    floats = b.stride(name)
    place = b.at(name)
    copy = arguments.CopyArgs(
        x=place, out=place, x_stride=floats, out_stride=floats, width=floats, snapped=1
    )
    return [(OpKind.COPY, copy)]


def bind_quantise(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Bind QUANTISE."""
    (x,), (record,) = step.inputs, step.outputs
    split = b.split(record)
    whole = prod(split.values())
    args = arguments.QuantiseArgs(x=b.at(x), record=b.at(record), x_stride=whole, **split)
    return [(OpKind.QUANTISE, args)]


ELEMENTWISE_KINDS: Mapping[type, OpKind] = {
    ops.Add: OpKind.ADD,
    ops.Multiply: OpKind.MULTIPLY,
    ops.Scale: OpKind.SCALE,
    ops.Bias: OpKind.BIAS,
    ops.Activation: OpKind.ACTIVATION,
    ops.SoftCap: OpKind.SOFT_CAP,
}


def bind_elementwise(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Bind an elementwise op, perhaps with a gate or a quantised row."""
    wise: FusedElementwise = step.op  # type: ignore[assignment]
    node = wise.gate or wise.node
    shape = wise.node.outputs[0]
    stride = b.stride(shape)
    args = arguments.ElementwiseArgs(
        a=b.at(step.inputs[0]),
        out=b.at(wise.out),
        record=b.at(wise.record),
        a_stride=stride,
        b_stride=stride,
        out_stride=stride,
        **b.split(shape),
    )
    if len(step.inputs) > 1:
        args.b = b.at(step.inputs[1])
    op = node.op
    if isinstance(op, ops.Bias):
        args.b = b.vector(node, "bias")
    elif isinstance(op, ops.Activation):
        args.function = ACTIVATIONS.index(op.function)
    elif isinstance(op, ops.Scale):
        args.factor = F32(op.factor)
    elif isinstance(op, ops.SoftCap):
        args.factor, args.inverse = F32(op.cap), F32(1) / F32(op.cap)
    return [(ELEMENTWISE_KINDS[type(op)], args)]


def bind_norm(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Bind a norm with the residual sum and the quantised row around it."""
    chain: NormChain = step.op  # type: ignore[assignment]
    node = chain.norm
    split = b.split(node.inputs[0] if node else step.inputs[0])
    stride = prod(split.values())
    args = arguments.NormArgs(
        x=b.at(chain.x),
        residual=b.at(chain.residual),
        sum=b.at(chain.total),
        out=b.at(chain.out),
        record=b.at(chain.record),
        weight=b.vector(node, "weight"),
        bias=b.vector(node, "bias"),
        after_weight=b.vector(chain.after, "weight"),
        x_stride=stride,
        residual_stride=stride,
        sum_stride=stride,
        out_stride=stride,
        after=chain.after is not None,
        inverse_width=F32(1) / F32(split["width"]),
        **split,
    )
    if node is not None:
        args.eps = F32(fields(node).eps)
    if chain.after is not None:
        args.after_eps = F32(fields(chain.after).eps)
    layer = node is not None and isinstance(node.op, ops.LayerNorm)
    return [(OpKind.LAYER_NORM if layer else OpKind.RMS_NORM, args)]


def bind_slice(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Bind COPY of a stretch of each vector."""
    op: ops.Slice = step.op  # type: ignore[assignment]
    if op.step != 1:
        return bind_scaled(b, step)
    *lead, width = b.shape(step.nodes[0].inputs[0])
    pieces = [(step.inputs[0], op.start, 0)]
    return _copies(b, step.outputs[0], pieces, prod(lead), width, op.stop - op.start)


Piece = tuple[str, int, int]
"""A source, the first element taken of it, and where it goes."""


def _copies(
    b: OpBinder, out: str, pieces: list[Piece], inner: int, width: int, taken: int
) -> OpArgs:
    whole = b.stride(out)
    step = whole // inner
    return [
        (
            OpKind.COPY,
            arguments.CopyArgs(
                x=b.at(source) + FLOAT_BYTES * (i * width + start),
                out=b.at(out) + FLOAT_BYTES * (i * step + to),
                x_stride=inner * width,
                out_stride=whole,
                width=taken,
            ),
        )
        for source, start, to in pieces
        for i in range(inner)
    ]


def bind_concat(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Bind COPY of each part."""
    bound: OpArgs = []
    to = 0
    for source, declared in zip(step.inputs, step.nodes[0].inputs, strict=True):
        *lead, width = b.shape(declared)
        bound += _copies(b, step.outputs[0], [(source, 0, to)], prod(lead), width, width)
        to += width
    return bound
