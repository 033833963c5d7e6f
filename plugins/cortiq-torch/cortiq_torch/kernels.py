"""One function a primitive, and one layer as a whole: (call, *inputs) → output(s)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from cortiq.backend.plan import Kernels, SharedMatMul
from cortiq.backend.walk import Call
from cortiq.ir import Op, layers, ops
from cortiq.numerics.attention import scoring
from cortiq.numerics.contract import F32
from cortiq.numerics.layouts import Weight, floats
from cortiq.numerics.quantise import ZERO_ROW_EXPONENT
from cortiq.numerics.scaling import gain
from cortiq_torch import arithmetic as a
from cortiq_torch.arithmetic import Rows, snap
from cortiq_torch.attention import Geometry, attend, choose_blocks
from cortiq_torch.matrices import Matrix, stacked
from cortiq_torch.mixers import causal_conv, delta_step, recurrent, state_space_step
from cortiq_torch.routing import combined, routed, softmax

QUERY_ROWS = 64
"""Query rows attended to at a time: bounds the scores held in memory."""
MATRICES = (ops.EmbedRows, ops.MatMul, ops.HeadMatMul, ops.ExpertMatMul)


def form(op: Op, role: str) -> Hashable:
    """What `prepare` depends on besides the weight."""
    return "matrix" if isinstance(op, MATRICES) else (op, role)


def prepare(op: Op, role: str, weight: Weight, name: str, device: str) -> Any:
    """A weight as the kernel of `op` takes it: a `Matrix`, or a tensor of floats."""
    if isinstance(op, ops.Gain):
        return torch.tensor(gain(floats(weight, name)[0], op.form, name), device=device)
    matrix = Matrix(weight, name, device)
    if isinstance(op, MATRICES) or (isinstance(op, layers.GatedMLP) and "bias" not in role):
        return matrix
    values = matrix.values
    if isinstance(op, ops.RMSNorm):
        whole = values[0] + float(F32(op.offset))
        return snap(whole[None], torch.zeros(1, dtype=torch.bool, device=device))[0]
    whole = isinstance(op, ops.ExpertBias) or (isinstance(op, ops.CausalConv) and role == "weight")
    return values if whole else values[0]


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


def _shared_matmul(call: Call, x: Rows | Tensor) -> tuple[Tensor, ...]:
    whole = product(call.weights["weight"], x, call.faults)
    return tuple(part.contiguous() for part in whole.split(call.op.widths, dim=-1))


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
    if call.op.sections:
        table = call.op.sections.table(call.op.table, position.cpu().numpy())
    else:
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


def _store_kv(call: Call, keys: Rows, values: Rows | None = None) -> tuple:
    if values is None:
        nothing = keys.q.new_zeros((*keys.e.shape, 0))
        values = Rows(nothing, torch.full_like(keys.e, ZERO_ROW_EXPONENT))
    for segment in call.segments:
        cut = segment.cut
        store = segment.state.stores[call.slots["kv"]]
        store.append(Rows(keys.q[cut], keys.e[cut]), Rows(values.q[cut], values.e[cut]))
    return ()


def _attend(call: Call, q: Rows, position: Tensor, chosen: Tensor | None = None) -> Tensor:
    op = call.op
    how = Geometry(scoring(op.scale, op.soft_cap), op.window, call.weights.get("sinks"), op.block)
    out = torch.empty(len(q.q), op.heads, op.value_dim, device=q.q.device)
    for segment in call.segments:
        store = segment.state.stores[call.slots["kv"]]
        keys, values = store.read()
        for start in range(segment.start, segment.stop, QUERY_ROWS):
            cut = slice(start, min(start + QUERY_ROWS, segment.stop))
            at = segment.positions[cut.start - segment.start : cut.stop - segment.start]
            last = segment.positions[-1] if op.until else at[-1]
            part, span = Rows(q.q[cut], q.e[cut]), (at[0], last)
            blocks = None if chosen is None else chosen[cut]
            out[cut] = attend(part, keys, values, position[cut], span, how, blocks, store.base)
    return snap(out, call.faults)


def _choose_blocks(call: Call, q: Rows, position: Tensor) -> Tensor:
    op, found = call.op, []
    for segment in call.segments:
        cut = segment.cut
        keys, _ = segment.state.stores[call.slots["kv"]].read()
        part, last = Rows(q.q[cut], q.e[cut]), segment.positions[-1]
        found.append(choose_blocks(part, keys, position[cut], last, op.block, op.top, op.local))
    return torch.cat(found)


def _recall(call: Call, position: Tensor) -> Tensor:
    out = torch.zeros(len(position), call.op.heads, call.op.dim, device=position.device)
    for segment in call.segments:
        keys, _ = segment.state.stores[call.slots["kv"]].read()
        at = [p for p in segment.positions if p < len(keys.q)]  # others are supplied by their rows
        rows = keys.q[at] * a.exp2_int(keys.e[at].int())[..., None]
        out[segment.start : segment.start + len(at)] = rows
    return snap(out, call.faults)


def _embed_rows(call: Call, token: Tensor) -> Tensor:
    table = call.weights["table"]
    if not call.op.missing:
        return table.rows(token, call.faults)
    known = token < table.height
    flags = torch.zeros_like(call.faults)
    rows = table.rows(torch.where(known, token, 0), flags)
    call.faults |= flags & known
    return torch.where(known[:, None], rows, 0.0)


def _gain(call: Call, x: Tensor) -> Tensor:
    weight = call.weights["weight"]
    return snap(x * (weight[:, None] if call.op.per == "head" else weight), call.faults)


def _expert_gain(call: Call, x: Tensor, index: Tensor) -> Tensor:
    gains = call.weights["weight"][index]
    return snap(x * (gains if x.ndim == index.ndim else gains[..., None]), call.faults)


def _expert_bias(call: Call, x: Tensor, index: Tensor) -> Tensor:
    return snap(x + call.weights["bias"][index], call.faults)


def _clamp(call: Call, x: Tensor) -> Tensor:
    low, high = call.op.low, call.op.high
    if low is not None:
        x = torch.where(x < float(F32(low)), float(F32(low)), x)
    return x if high is None else torch.where(x > float(F32(high)), float(F32(high)), x)


def _l2_norm(call: Call, x: Tensor) -> Tensor:
    root = a.inverse_root(a.canonical_sum(x * x) + float(F32(call.op.eps)))
    return snap(x * root[..., None], call.faults)


def _route(call: Call, scores: Tensor) -> tuple[Tensor, Tensor]:
    bias, mask = call.weights.get("bias"), call.weights.get("mask")
    return routed(scores, call.op.router, bias, mask, call.faults)


def _gated_mlp(call: Call, x: Tensor) -> Tensor:
    """A layer as a whole: what its primitives do, one after the other, without a graph between."""

    def linear(role: str, x: Tensor) -> Tensor:
        matrix, bias = call.weights[role], call.weights.get(f"{role}_bias")
        y = product(matrix, x if matrix.floating else a.quantised(x), call.faults)
        return y if bias is None else snap(y + bias, call.faults)

    gate = snap(a.ACTIVATIONS[call.op.activation](linear("gate", x)), call.faults)
    return linear("down", snap(gate * linear("up", x), call.faults))


KERNELS: Kernels = {
    ops.EmbedRows: _embed_rows,
    ops.Quantise: lambda call, x: a.quantised(x),
    ops.MatMul: _matmul,
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
    ops.StoreKV: _store_kv,
    ops.Attend: _attend,
    ops.ChooseBlocks: _choose_blocks,
    ops.Recall: _recall,
    ops.CausalConv: causal_conv,
    ops.DeltaRule: recurrent(delta_step),
    ops.StateSpace: recurrent(state_space_step),
    ops.Route: _route,
    ops.CombineExperts: lambda call, w, y: combined(w, y, call.faults),
    ops.Slice: lambda call, x: x[..., call.op.start : call.op.stop : call.op.step].contiguous(),
    ops.Concat: lambda call, *parts: torch.cat(parts, dim=-1),
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
"""The kernel of every primitive that has one."""
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

LAYERS: Kernels = {layers.GatedMLP: _gated_mlp}
"""Layers computed as a whole."""
