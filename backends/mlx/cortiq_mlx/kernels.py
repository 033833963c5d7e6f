"""One function a primitive: (call, *inputs) → output(s)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import accumulate
from typing import Any

from cortiq.backend.plan import Kernels, SharedMatMul
from cortiq.ir import Op, ops
from cortiq.numerics.contract import F32
from cortiq.numerics.layouts import Weight, floats
from cortiq.numerics.scaling import gain
from cortiq_mlx import arithmetic as a
from cortiq_mlx.arithmetic import Faults, Rows, snap
from cortiq_mlx.attending import attend_rows, choose_rows, recall_rows, store_rows
from cortiq_mlx.call import Call
from cortiq_mlx.library import mx
from cortiq_mlx.matrices import Matrix
from cortiq_mlx.mixers import causal_conv, delta_step, recurrent, state_space_step
from cortiq_mlx.routing import combined, routed, softmax

TABLES = (ops.EmbedRows, ops.MatMul)
MATRICES = (*TABLES, ops.HeadMatMul, ops.ExpertMatMul)


def stack_of(op: Op) -> int:
    """How many matrices of a stack the operator's weight holds."""
    return getattr(op, "heads", getattr(op, "experts", 1)) if isinstance(op, MATRICES) else 1


def form(op: Op, role: str) -> Hashable:
    """What `prepare` depends on besides the weight."""
    return stack_of(op) if isinstance(op, MATRICES) else (op, role)


def prepare(op: Op, role: str, weight: Weight, name: str) -> Any:
    """A weight as the kernel of `op` takes it: a `Matrix`, or an array of floats."""
    if isinstance(op, MATRICES):
        return Matrix(weight, name, stack_of(op))
    values = floats(weight, name)
    if isinstance(op, ops.Gain):
        return mx.array(gain(values[0], op.form, name))
    if isinstance(op, ops.RMSNorm):
        whole = mx.array(values[:1]) + float(F32(op.offset))
        return snap(whole, Faults(1))[0]
    of_rows = isinstance(op, ops.CausalConv) and role == "weight"
    return mx.array(values if of_rows or isinstance(op, ops.ExpertBias) else values[0])


def product(matrix: Matrix, x: Rows | mx.array, faults: Faults) -> mx.array:
    """Rows [rows, ..., K] times one matrix."""
    shape, rows = x.shape, _size(x.shape[:-1])
    flags = faults if rows == faults.rows else Faults(rows)
    y = matrix.product(_reshaped(x, 1, rows), flags)
    if flags is not faults:
        _see(faults, flags.seen())
    return y.reshape(*shape[:-1], -1)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size


def _reshaped(x: Rows | mx.array, *shape: int) -> Rows | mx.array:
    """With these leading axes; the last one stays."""
    if isinstance(x, Rows):
        return Rows(x.q.reshape(*shape, x.q.shape[-1]), x.e.reshape(shape))
    return x.reshape(*shape, x.shape[-1])


def _see(faults: Faults, peak: mx.array) -> None:
    """Note what several of their rows saw for each of the call's rows."""
    faults.see(peak.reshape(faults.rows, -1))


def _shared_matmul(call: Call, x: Rows | mx.array) -> tuple[mx.array, ...]:
    whole = product(call.weights["weight"], x, call.faults)
    return tuple(mx.split(whole, list(accumulate(call.op.widths))[:-1], axis=-1))


def _head_matmul(call: Call, x: Rows | mx.array) -> mx.array:
    """[rows, heads, K]: each head with its matrix."""
    rows, heads = x.shape[:2]
    flags = Faults(rows * heads)
    turned = Rows(x.q.swapaxes(0, 1), x.e.T) if isinstance(x, Rows) else x.swapaxes(0, 1)
    y = call.weights["weight"].product(turned, flags)
    _see(call.faults, flags.seen().reshape(heads, rows).T)
    return y.swapaxes(0, 1)


def _expert_matmul(call: Call, x: Rows | mx.array, index: mx.array) -> mx.array:
    """[rows, K] or [rows, k, K]: each row with the matrices that it chose."""
    rows, slots = index.shape
    if len(x.shape) == 2:
        x = Rows(*map(_beside(slots), x)) if isinstance(x, Rows) else _beside(slots)(x)
    pairs, flags = _reshaped(x, rows * slots, 1), Faults(rows * slots)
    y = call.weights["weight"].chosen_product(pairs, index.reshape(-1), flags)
    _see(call.faults, flags.seen())
    return y.reshape(rows, slots, -1)


def _beside(slots: int) -> Callable[[mx.array], mx.array]:
    return lambda x: mx.repeat(x[:, None], slots, axis=1)


def _rms_norm(call: Call, x: mx.array) -> mx.array:
    y = x * a.inverse_root(a.canonical_mean(x * x) + float(F32(call.op.eps)))
    weight = call.weights.get("weight")
    return snap(y if weight is None else y * weight, call.faults)


def _layer_norm(call: Call, x: mx.array) -> mx.array:
    centred = snap(x - a.canonical_mean(x), call.faults)
    variance = a.canonical_mean(centred * centred) + float(F32(call.op.eps))
    y = (centred * a.inverse_root(variance)) * call.weights["weight"]
    bias = call.weights.get("bias")
    return snap(y if bias is None else y + bias, call.faults)


def _l2_norm(call: Call, x: mx.array) -> mx.array:
    root = a.inverse_root(a.canonical_sum(x * x) + float(F32(call.op.eps)))
    return snap(x * root, call.faults)


def _rope(call: Call, x: mx.array, position: mx.array) -> mx.array:
    """Pairs turned by the angles of each row; what lies behind the pairs passes through."""
    cos, sin = call.angles()
    pairs, half = cos.shape[-1], call.op.pairing == "half"
    turned, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    if half:
        left, right = turned[..., :pairs], turned[..., pairs:]
    else:
        left, right = turned[..., 0::2], turned[..., 1::2]
    both = [left * cos - right * sin, right * cos + left * sin]
    y = mx.concatenate(both, axis=-1) if half else mx.stack(both, axis=-1).reshape(turned.shape)
    return snap(mx.concatenate([y, rest], axis=-1) if rest.size else y, call.faults)


def _embed_rows(call: Call, token: mx.array) -> mx.array:
    table = call.weights["table"]
    if not call.op.missing:
        return table.rows(token, call.faults)
    known, flags = token < table.height, Faults(call.faults.rows)
    rows = table.rows(mx.where(known, token, 0), flags)
    call.faults.see_some(flags.seen(), known)
    return mx.where(known[:, None], rows, 0.0)


def _gain(call: Call, x: mx.array) -> mx.array:
    weight = call.weights["weight"]
    return snap(x * (weight[:, None] if call.op.per == "head" else weight), call.faults)


def _expert_gain(call: Call, x: mx.array, index: mx.array) -> mx.array:
    gains = mx.take(call.weights["weight"], index)
    return snap(x * (gains if x.ndim == index.ndim else gains[..., None]), call.faults)


def _expert_bias(call: Call, x: mx.array, index: mx.array) -> mx.array:
    return snap(x + mx.take(call.weights["bias"], index, axis=0), call.faults)


def _clamp(call: Call, x: mx.array) -> mx.array:
    low, high = call.op.low, call.op.high
    if low is not None:
        x = mx.where(x < float(F32(low)), float(F32(low)), x)
    return x if high is None else mx.where(x > float(F32(high)), float(F32(high)), x)


def _route(call: Call, scores: mx.array) -> tuple[mx.array, mx.array]:
    bias, mask = call.weights.get("bias"), call.weights.get("mask")
    return routed(scores, call.op.router, bias, mask, call.faults)


KERNELS: Kernels = {
    ops.EmbedRows: _embed_rows,
    ops.Quantise: lambda call, x: a.quantised(x),
    ops.MatMul: lambda call, x: product(call.weights["weight"], x, call.faults),
    SharedMatMul: _shared_matmul,
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
    ops.StoreKV: store_rows,
    ops.Attend: attend_rows,
    ops.ChooseBlocks: choose_rows,
    ops.Recall: recall_rows,
    ops.CausalConv: causal_conv,
    ops.DeltaRule: recurrent(delta_step),
    ops.StateSpace: recurrent(state_space_step),
    ops.Route: _route,
    ops.CombineExperts: lambda call, w, y: combined(w, y, call.faults),
    ops.Slice: lambda call, x: x[..., call.op.start : call.op.stop : call.op.step],
    ops.Concat: lambda call, *parts: mx.concatenate([*parts], axis=-1),
    ops.Reshape: lambda call, x: x.reshape(len(x), *call.op.shape),
    ops.Gain: _gain,
    ops.ScaleRows: lambda call, x, factor: snap(x * factor, call.faults),
    ops.Shift: lambda call, x: snap(x + float(F32(call.op.amount)), call.faults),
    ops.Clamp: _clamp,
    ops.L2Norm: _l2_norm,
    ops.Softmax: lambda call, x: softmax(x, call.faults),
    ops.ExpertGain: _expert_gain,
    ops.ExpertBias: _expert_bias,
}
"""The kernel of every primitive."""
OPTIONS = frozenset(
    {
        *a.ACTIVATIONS,
        "step",
        "missing",
        "sections",
        "groups",
        "mask",
        "tau",
        "blocks",
        "keys only",
        "until",
    }
)
"""Options that the kernels know, as `Op.options` names them."""
