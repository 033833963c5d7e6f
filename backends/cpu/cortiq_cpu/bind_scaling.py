"""Ops that scale, shift, clamp or select the values of a row: gains, biases, softmax, steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cortiq.backend.lower import LoweredStep
from cortiq.ir import ops
from cortiq.numerics.route import NEVER
from cortiq_cpu import arguments
from cortiq_cpu.arguments import OpKind, address
from cortiq_cpu.binder import OpArgs, OpBinder

F32 = np.float32
HOW = (
    "value", "head", "all", "row", "expert", "bias", "shift", "clamp", "softmax", "every",
    "stochastic", "listed", "keys", "divided", "permuted", "selected",
    "stacked", "windows",
)  # fmt: skip
"""What is done to a part of a row, by the number the native core gives it."""


def bind_l2_norm(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Bind L2_NORM."""
    split, stride = b.split(step.nodes[0].inputs[0]), b.stride(step.outputs[0])
    op: ops.L2Norm = step.op  # type: ignore[assignment]
    norm = arguments.NormArgs(
        x=b.at(step.inputs[0]),
        out=b.at(step.outputs[0]),
        x_stride=stride,
        out_stride=stride,
        eps=F32(op.eps),
        **split,
    )
    return [(OpKind.L2_NORM, norm)]


def bind_scaled(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Bind SCALED."""
    node, out = step.nodes[0], step.outputs[0]
    how, special = _SPECIAL[type(step.op)](b, step)
    source = {}
    if step.inputs[0] != "position":  # which is no value of the arena
        source = {"x": b.at(step.inputs[0]), "x_stride": b.stride(node.inputs[0])}
    args = arguments.ScaledArgs(
        out=b.at(out),
        out_stride=b.stride(out),
        how=HOW.index(how),
        **{**source, **b.split(out), **special},
    )
    return [(OpKind.SCALED, args)]


def bind_own_block(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Bind SCALED: integers, the rows' positions divided by the block."""
    args = arguments.ScaledArgs(
        x=address(b.rows.positions), out=b.at(step.outputs[0]), x_stride=1, out_stride=1,
        inner=1, width=1, how=HOW.index("divided"), step=step.op.block,
    )  # fmt: skip
    return [(OpKind.SCALED, args)]


Special = tuple[str, dict[str, Any]]
"""What is done, and the arguments that it alone has."""


def _gain(b: OpBinder, step: LoweredStep) -> Special:
    op: ops.Gain = step.op  # type: ignore[assignment]
    return op.per, {"factor": b.vector(step.nodes[0], "weight")}


def _scale_rows(b: OpBinder, step: LoweredStep) -> Special:
    factor = step.inputs[1]
    return "row", {"factor": b.at(factor), "factor_stride": b.stride(step.nodes[0].inputs[1])}


def _expert_gain(b: OpBinder, step: LoweredStep) -> Special:
    shape = b.shape(step.nodes[0].inputs[0])
    parts = {"inner": shape[0], "width": shape[1] if len(shape) > 1 else 1}
    factor = b.vector(step.nodes[0], "weight")
    return "expert", {"factor": factor, "index": b.at(step.inputs[1]), **parts}


def _expert_bias(b: OpBinder, step: LoweredStep) -> Special:
    factor = b.vector(step.nodes[0], "bias")
    return "bias", {"factor": factor, "index": b.at(step.inputs[1])}


def _shift(b: OpBinder, step: LoweredStep) -> Special:
    op: ops.Shift = step.op  # type: ignore[assignment]
    return "shift", {"low": F32(op.amount)}


def _clamp(b: OpBinder, step: LoweredStep) -> Special:
    op: ops.Clamp = step.op  # type: ignore[assignment]
    low = -math.inf if op.low is None else F32(op.low)
    return "clamp", {"low": low, "high": math.inf if op.high is None else F32(op.high)}


def _softmax(b: OpBinder, step: LoweredStep) -> Special:
    return "softmax", {}


def _every(b: OpBinder, step: LoweredStep) -> Special:
    op: ops.Slice = step.op  # type: ignore[assignment]
    width = b.shape(step.nodes[0].inputs[0])[-1]
    return "every", {"first": op.start, "step": op.step, "from_width": width}


def _stochastic(b: OpBinder, step: LoweredStep) -> Special:
    op: ops.Sinkhorn = step.op  # type: ignore[assignment]
    one = {"inner": 1, "width": op.streams**2}
    return "stochastic", {"first": op.rounds, "step": op.streams, "low": F32(op.eps), **one}


def _listed(b: OpBinder, step: LoweredStep) -> Special:
    op: ops.KeepListed = step.op  # type: ignore[assignment]
    table, tokens = b.vector(step.nodes[0], "table"), address(b.rows.tokens)
    return "listed", {"factor": table, "index": tokens, "step": op.listed, "low": NEVER}


def _keys(b: OpBinder, step: LoweredStep) -> Special:
    op: ops.ListKeys = step.op  # type: ignore[assignment]
    return "keys", {"index": address(b.rows.positions), "step": op.every}


def _permuted(b: OpBinder, step: LoweredStep) -> Special:
    op: ops.Permute = step.op  # type: ignore[assignment]
    return "permuted", {"index": op.order.columns.ctypes.data}


def _index_selected(b: OpBinder, step: LoweredStep) -> Special:
    op: ops.IndexSelect = step.op  # type: ignore[assignment]
    index = b.vector(step.nodes[0], "index")
    return "selected", {"factor": index, "from_width": op.in_width, "low": NEVER}


def _stacked(b: OpBinder, step: LoweredStep) -> Special:
    index = {} if step.op.every else {"index": b.at(step.inputs[1])}
    return "stacked", {"step": step.op.size, **index}


def _windows(b: OpBinder, step: LoweredStep) -> Special:
    positions = address(b.rows.positions)
    listed = b.shape(step.nodes[0].inputs[0])[-1]
    return "windows", {"index": positions, "step": step.op.every, "from_width": listed}


_SPECIAL: Mapping[type, Callable[[OpBinder, LoweredStep], Special]] = {
    ops.Gain: _gain,
    ops.ScaleRows: _scale_rows,
    ops.ExpertGain: _expert_gain,
    ops.ExpertBias: _expert_bias,
    ops.Shift: _shift,
    ops.Clamp: _clamp,
    ops.Softmax: _softmax,
    ops.Slice: _every,
    ops.Sinkhorn: _stochastic,
    ops.KeepListed: _listed,
    ops.ListKeys: _keys,
    ops.Permute: _permuted,
    ops.IndexSelect: _index_selected,
    ops.StackIndex: _stacked,
    ops.WindowBlocks: _windows,
}
