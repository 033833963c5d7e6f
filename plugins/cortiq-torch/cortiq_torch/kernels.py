"""One function a primitive, and one layer as a whole: (call, *inputs) → output(s)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cortiq.ir import Op, layers, ops
from cortiq.numerics.attention import scoring
from cortiq.numerics.contract import F32
from cortiq.numerics.layouts import Weight
from cortiq_torch import arithmetic as a
from cortiq_torch.arithmetic import Rows, snap
from cortiq_torch.attention import Geometry, attend
from cortiq_torch.matrices import Matrix, stacked
from cortiq_torch.routing import combined, routed
from cortiq_torch.state import TorchState

QUERY_ROWS = 64
"""Query rows attended to at a time: bounds the scores held in memory."""
MATRICES = (ops.EmbedRows, ops.MatMul, ops.HeadMatMul, ops.ExpertMatMul)


@dataclass(frozen=True)
class Segment:
    """Rows start…stop−1 of what a kernel is given are these positions of a sequence."""

    state: TorchState
    start: int
    stop: int
    positions: Sequence[int]


@dataclass
class Call:
    """What a kernel is called with besides its inputs.

    Attributes
    ----------
    op : the operator. weights : prepared by `prepare`, by role. slots : names of slots, by role.
    segments : whose rows these are. faults : a flag a row, set in place by `snap`.
    """

    op: Any
    weights: Mapping[str, Any]
    slots: Mapping[str, str]
    segments: Sequence[Segment]
    faults: Tensor


def prepare(op: Op, role: str, weight: Weight, name: str, device: str) -> Any:
    """A weight as the kernel of `op` takes it: a `Matrix`, or a tensor of floats."""
    matrix = Matrix(weight, name, device)
    if isinstance(op, MATRICES) or (isinstance(op, layers.GatedMLP) and "bias" not in role):
        return matrix
    values = matrix.values
    if isinstance(op, ops.RMSNorm):
        whole = values[0] + float(F32(op.offset))
        return snap(whole[None], torch.zeros(1, dtype=torch.bool, device=device))[0]
    return values if isinstance(op, ops.CausalConv) and role == "weight" else values[0]


def _matmul(call: Call, x: Rows | Tensor) -> Tensor:
    return product(call.weights["weight"], x, call.faults)


def product(matrix: Matrix, x: Rows | Tensor, faults: Tensor) -> Tensor:
    """Rows [rows, ..., K] times a matrix."""
    shape = (x.q if isinstance(x, Rows) else x).shape
    flat = x.flatten(0, -2) if isinstance(x, Tensor) else Rows(x.q.flatten(0, -2), x.e.flatten())
    flags = torch.zeros(shape[:-1].numel(), dtype=torch.bool, device=faults.device)
    y = matrix.multiply(flat, flags)
    faults |= flags.reshape(len(faults), -1).any(dim=1)
    return y.reshape(*shape[:-1], -1)


def _head_matmul(call: Call, x: Rows | Tensor) -> Tensor:
    rows, heads = len(call.faults), call.op.heads
    choice = torch.arange(heads, device=call.faults.device).expand(rows, heads)
    return stacked(call.weights["weight"], heads, x, choice, call.faults)


def _expert_matmul(call: Call, x: Rows | Tensor, index: Tensor) -> Tensor:
    return stacked(call.weights["weight"], call.op.experts, x, index, call.faults)


def _rms_norm(call: Call, x: Tensor) -> Tensor:
    y = x * a.inverse_root(a.canonical_mean(x * x) + float(F32(call.op.eps)))[..., None]
    weight = call.weights.get("weight")
    return snap(y if weight is None else y * weight, call.faults)


def _layer_norm(call: Call, x: Tensor) -> Tensor:
    centred = snap(x - a.canonical_mean(x)[..., None], call.faults)
    variance = a.canonical_mean(centred * centred) + float(F32(call.op.eps))
    y = (centred * a.inverse_root(variance)[..., None]) * call.weights["weight"]
    bias = call.weights.get("bias")
    return snap(y if bias is None else y + bias, call.faults)


def _rope(call: Call, x: Tensor, position: Tensor) -> Tensor:
    table = call.op.table.table([p for s in call.segments for p in s.positions])
    cos, sin = (torch.tensor(part, device=x.device)[:, None] for part in table)
    pairs = cos.shape[-1]
    half = call.op.pairing == "half"
    first = slice(0, pairs) if half else slice(0, 2 * pairs, 2)
    second = slice(pairs, 2 * pairs) if half else slice(1, 2 * pairs, 2)
    left, right, y = x[..., first], x[..., second], x.clone()
    y[..., first] = left * cos - right * sin
    y[..., second] = right * cos + left * sin
    return snap(y, call.faults)


def _store_kv(call: Call, keys: Rows, values: Rows) -> tuple:
    for segment in call.segments:
        cut = slice(segment.start, segment.stop)
        store = segment.state.kv(call.slots["kv"])
        store.append(Rows(keys.q[cut], keys.e[cut]), Rows(values.q[cut], values.e[cut]))
    return ()


def _attend(call: Call, q: Rows, position: Tensor) -> Tensor:
    op = call.op
    how = Geometry(scoring(op.scale, op.soft_cap), op.window, call.weights.get("sinks"))
    out = torch.empty(len(q.q), op.heads, op.value_dim, device=q.q.device)
    for segment in call.segments:
        keys, values = segment.state.kv(call.slots["kv"]).read()
        for start in range(segment.start, segment.stop, QUERY_ROWS):
            cut = slice(start, min(start + QUERY_ROWS, segment.stop))
            at = segment.positions[cut.start - segment.start : cut.stop - segment.start]
            part, span = Rows(q.q[cut], q.e[cut]), (at[0], at[-1])
            out[cut] = attend(part, keys, values, position[cut], span, how)
    return snap(out, call.faults)


def _causal_conv(call: Call, x: Tensor) -> Tensor:
    out, weight, bias = torch.zeros_like(x), call.weights["weight"], call.weights.get("bias")
    for segment in call.segments:
        rows = x[segment.start : segment.stop]
        store = segment.state.ring(call.slots["ring"])
        padded, y = torch.cat([store.last(), rows]), out[segment.start : segment.stop]
        for tap in range(call.op.kernel):
            y = y + weight[:, tap] * padded[tap : tap + len(rows)]
        out[segment.start : segment.stop] = y if bias is None else y + bias
        store.append(rows)
    return snap(out, call.faults)


def _gated_mlp(call: Call, x: Tensor) -> Tensor:
    """A layer as a whole: what its primitives do, one after the other, without a graph between."""

    def linear(role: str, x: Tensor) -> Tensor:
        matrix, bias = call.weights[role], call.weights.get(f"{role}_bias")
        y = product(matrix, x if matrix.floating else a.quantised(x), call.faults)
        return y if bias is None else snap(y + bias, call.faults)

    gate = snap(a.ACTIVATIONS[call.op.activation](linear("gate", x)), call.faults)
    return linear("down", snap(gate * linear("up", x), call.faults))


Kernel = Callable[..., Any]

KERNELS: Mapping[type[Op], Kernel] = {
    ops.EmbedRows: lambda call, token: call.weights["table"].rows(token, call.faults),
    ops.Quantise: lambda call, x: a.quantised(x),
    ops.MatMul: _matmul,
    ops.HeadMatMul: _head_matmul,
    ops.ExpertMatMul: _expert_matmul,
    ops.Add: lambda call, x, y: snap(x + y, call.faults),
    ops.Multiply: lambda call, x, y: snap(x * y, call.faults),
    ops.Scale: lambda call, x: snap(x * float(F32(call.op.factor)), call.faults),
    ops.Bias: lambda call, x: snap(x + call.weights["bias"], call.faults),
    ops.Activation: lambda call, x: snap(a.ACTIVATIONS[call.op.function](x), call.faults),
    ops.SoftCap: lambda call, x: snap(a.soft_cap(x, call.op.cap), call.faults),
    ops.RMSNorm: _rms_norm,
    ops.LayerNorm: _layer_norm,
    ops.Rope: _rope,
    ops.StoreKV: _store_kv,
    ops.Attend: _attend,
    ops.CausalConv: _causal_conv,
    ops.Route: lambda call, x: routed(x, call.op.router, call.weights.get("bias"), call.faults),
    ops.CombineExperts: lambda call, w, y: combined(w, y, call.faults),
    ops.Slice: lambda call, x: x[..., call.op.start : call.op.stop].contiguous(),
    ops.Concat: lambda call, *parts: torch.cat(parts, dim=-1),
    ops.Reshape: lambda call, x: x.reshape(len(x), *call.op.shape),
}
"""The kernel of every primitive that has one."""
OPTIONS = frozenset(a.ACTIVATIONS)
"""Options that the kernels know, as `Op.options` names them."""

LAYERS: Mapping[type[Op], Kernel] = {layers.GatedMLP: _gated_mlp}
"""Layers computed as a whole."""
