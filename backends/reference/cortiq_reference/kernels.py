"""Kernels, one function for each primitive: the contract's functions on a node and a batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cortiq.backend.float_weights import is_table
from cortiq.backend.kernel import StepKernel
from cortiq.backend.plan import Kernels
from cortiq.backend.walk import Call
from cortiq.ir import Op, ops
from cortiq.numerics import norms, recurrent, rope, route, scalar, scaling, streams
from cortiq.numerics.attention import scoring
from cortiq.numerics.column_order import permute
from cortiq.numerics.compression import compress
from cortiq.numerics.contract import Floats, Ints
from cortiq.numerics.dequantise import embedding_rows
from cortiq.numerics.key_blocks import (
    choose_blocks,
    choose_keys,
    list_keys,
    own_block,
    window_blocks,
)
from cortiq.numerics.layouts import Weight, floats
from cortiq.numerics.ngrams import ngram_rows
from cortiq.numerics.quantise import Quantised, no_values, quantise_rows, recalled
from cortiq_reference.attention import TileGeometry, attend
from cortiq_reference.matrix import MatrixStack, Pool, TiledMatrix

QUERY_ROWS = 32
"""Query rows attended to at a time: bounds the scores held in memory."""


def prepare(op: Op, role: str, weight: Weight, name: str, pool: Pool) -> Any:
    """Convert a weight to the form that the kernel of `op` takes."""
    if isinstance(op, ops.EmbedRows):
        return weight
    if isinstance(op, ops.MatMul):
        return TiledMatrix(weight, name, pool)
    if isinstance(op, ops.HeadMatMul):
        return MatrixStack(weight, op.heads, name, pool)
    if isinstance(op, ops.ExpertMatMul):
        return MatrixStack(weight, op.experts, name, pool)
    values = floats(weight, name)
    if isinstance(op, ops.RMSNorm | ops.LayerNorm) and role == "weight":
        return norms.offset_weight(values[0], op.offset)
    if isinstance(op, ops.Gain):
        return scaling.gain(values[0], op.form, name)
    return values if is_table(op, role) else values[0]


def _embed_rows(call: Call, token: Ints) -> Floats:
    table = call.weights["table"]
    if token.ndim > 1:
        flags = np.zeros(token.size, np.bool_)
        rows = _embed_rows(replace(call, faults=flags), token.reshape(-1))
        call.faults |= flags.reshape(token.shape).any(axis=1)
        return rows.reshape(*token.shape, -1)
    if not call.op.missing:
        return embedding_rows(table, token, call.faults)
    known = token < table.shape[0]
    out = np.zeros((len(token), table.shape[1]), np.float32)
    faults = np.zeros(int(known.sum()), np.bool_)
    out[known] = embedding_rows(table, token[known], faults)
    call.faults[known] |= faults
    return out


def _matmul(call: Call, x: Quantised | Floats) -> Floats:
    shape = x.q.shape if isinstance(x, Quantised) else x.shape
    inner = int(np.prod(shape[1:-1]))
    flags = np.zeros(shape[0] * inner, np.bool_)
    flat: Quantised | Floats
    if isinstance(x, Quantised):
        flat = Quantised(x.q.reshape(-1, shape[-1]), x.e.reshape(-1))
    else:
        flat = x.reshape(-1, shape[-1])
    y = call.weights["weight"].multiply(flat, flags)
    call.faults |= flags.reshape(shape[0], inner).any(axis=1)
    return y.reshape(*shape[:-1], -1)


def _head_matmul(call: Call, x: Quantised | Floats) -> Floats:
    rows = len(x.q) if isinstance(x, Quantised) else len(x)
    heads = np.arange(call.op.heads, dtype=np.int32)
    choice = np.broadcast_to(heads, (rows, call.op.heads))
    return call.weights["weight"].multiply(x, choice, call.faults)


def _expert_matmul(call: Call, x: Quantised | Floats, index: Ints) -> Floats:
    return call.weights["weight"].multiply(x, index, call.faults)


def _rms_norm(call: Call, x: Floats) -> Floats:
    return norms.rms_norm(x, call.weights.get("weight"), call.op.eps, call.faults)


def _layer_norm(call: Call, x: Floats) -> Floats:
    weight, bias = call.weights.get("weight"), call.weights.get("bias")
    return norms.layer_norm(x, weight, bias, call.op.eps, call.faults)


def _rope(call: Call, x: Floats, position: Ints) -> Floats:
    op = call.op
    cos, sin = op.sections.table(op.table, position) if op.sections else op.table.table(position)
    return rope.apply_rope(x, cos, sin, call.op.pairing, call.faults)


def _store_kv(call: Call, keys: Quantised, values: Quantised | None = None) -> tuple:
    if values is None:
        values = no_values(len(keys.q), call.op.heads)
    for segment in call.segments:
        cut = segment.cut
        store = segment.state.stores[call.slots["kv"]]
        store.append(Quantised(keys.q[cut], keys.e[cut]), Quantised(values.q[cut], values.e[cut]))
    return ()


def _attend(call: Call, q: Quantised, position: Ints, chosen: Ints | None = None) -> Any:
    op = call.op
    how = TileGeometry(
        scoring(op.scale, op.soft_cap), op.window, call.weights.get("sinks"), op.block, op.slopes
    )
    out = np.zeros((len(q.q), op.heads, op.value_dim), np.float32)
    mass = np.zeros((len(q.q), op.heads), np.float32)
    for segment in call.segments:
        store = segment.state.stores[call.slots["kv"]]
        keys, values = store.read()
        for start in range(segment.start, segment.stop, QUERY_ROWS):
            cut = slice(start, min(start + QUERY_ROWS, segment.stop))
            part = Quantised(q.q[cut], q.e[cut])
            blocks = None if chosen is None else chosen[cut]
            flags, at = call.faults[cut], position[cut]
            own = None
            if op.until:
                first = segment.positions[0] - segment.start
                own = np.arange(cut.start + first, cut.stop + first, dtype=np.int32)
            found = attend(part, keys, values, at, how, flags, blocks, store.base, own)
            out[cut], mass[cut] = found
    return (out, mass[..., None]) if op.mass else out


def _choose_blocks(call: Call, q: Quantised, position: Ints) -> Ints:
    op = call.op
    out = np.zeros((len(q.q), op.heads, op.top), np.int32)
    for segment in call.segments:
        cut = segment.cut
        keys, _ = segment.state.stores[call.slots["kv"]].read()
        part = Quantised(q.q[cut], q.e[cut])
        out[cut] = choose_blocks(part, keys, position[cut], op.block, op.top, op.local)
    return out


def _choose_keys(call: Call, q: Quantised, position: Ints, weights: Floats) -> Ints:
    out = np.zeros((len(q.q), 1, call.op.top), np.int32)
    for segment in call.segments:
        cut = segment.cut
        keys, _ = segment.state.stores[call.slots["kv"]].read()
        part = Quantised(q.q[cut], q.e[cut])
        how = call.op.top, call.op.every
        out[cut] = choose_keys(part, keys, weights[cut], position[cut], *how)
    return out


def _recall(call: Call, position: Ints) -> Floats:
    op = call.op
    out = np.zeros((len(position), op.heads, op.dim), np.float32)
    for segment in call.segments:
        keys, _ = segment.state.stores[call.slots["kv"]].read()
        there = np.arange(segment.start, segment.stop)
        there = there[position[there] < len(keys.q)]  # others are supplied by their rows
        at = position[there]
        out[there] = recalled(Quantised(keys.q[at], keys.e[at]))
    return out


def _causal_conv(call: Call, x: Floats) -> Floats:
    out = np.empty_like(x)
    weight, bias = call.weights["weight"], call.weights.get("bias")
    for segment in call.segments:
        cut = segment.cut
        store = segment.state.stores[call.slots["ring"]]
        flags = call.faults[cut]
        out[cut] = recurrent.causal_conv(store.last, x[cut], weight, bias, faults=flags)
        store.append(x[cut])
    return out


def _hash_ngrams(call: Call, token: Ints) -> Ints:
    op = call.op
    out = np.zeros((len(token), len(op.heights)), np.int32)
    for segment in call.segments:
        store = segment.state.stores[call.slots["ring"]]
        given = token[segment.cut], op.end, op.multipliers, op.heights
        out[segment.cut], kept = ngram_rows(store.last, *given)
        store.append(kept)
    return out


def _compress(call: Call, rows: Floats, position: Ints, gates: Floats) -> Floats:
    out = np.zeros((len(rows), call.op.width), np.float32)
    bias = call.weights["bias"]
    for segment in call.segments:
        cut = segment.cut
        store = segment.state.stores[call.slots["ring"]]
        given = rows[cut], gates[cut], position[cut], bias, call.op.width, call.faults[cut]
        out[cut], kept = compress(store.last, *given)
        store.append(kept)
    return out


def _route(call: Call, scores: Floats) -> tuple[Ints, Floats]:
    bias, mask = call.weights.get("bias"), call.weights.get("mask")
    return route.route(scores, call.op.router, bias, call.faults, mask)


def _gain(call: Call, x: Floats) -> Floats:
    weight = call.weights["weight"]
    factor = weight[:, None] if call.op.per == "head" else weight
    return scalar.multiply(x, factor, call.faults)


def _expert_gain(call: Call, x: Floats, index: Ints) -> Floats:
    factor = call.weights["weight"][index]
    return scalar.multiply(x, factor.reshape(*index.shape, *(1,) * (x.ndim - 2)), call.faults)


KERNELS: Kernels = {
    ops.EmbedRows: _embed_rows,
    ops.Quantise: lambda call, x: quantise_rows(x),
    ops.MatMul: _matmul,
    ops.HeadMatMul: _head_matmul,
    ops.ExpertMatMul: _expert_matmul,
    ops.Add: lambda call, a, b: scalar.add(a, b, call.faults),
    ops.Multiply: lambda call, a, b: scalar.multiply(a, b, call.faults),
    ops.Scale: lambda call, x: scalar.scale(x, call.op.factor, call.faults),
    ops.Bias: lambda call, x: scalar.add(x, call.weights["bias"], call.faults),
    ops.Activation: lambda call, x: scalar.activation(x, call.op.function, call.faults),
    ops.SoftCap: lambda call, x: scalar.soft_cap(x, call.op.cap, call.faults),
    ops.RMSNorm: _rms_norm,
    ops.LayerNorm: _layer_norm,
    ops.Rope: _rope,
    ops.StoreKV: _store_kv,
    ops.Attend: _attend,
    ops.Recall: _recall,
    ops.CausalConv: _causal_conv,
    ops.Route: _route,
    ops.CombineExperts: lambda call, w, y: route.combine_experts(w, y, call.faults),
    ops.Slice: lambda call, x: x[..., call.op.start : call.op.stop : call.op.step],
    ops.Concat: lambda call, *parts: np.concatenate(parts, axis=-1),
    ops.Permute: lambda call, x: permute(x, call.op.order),
    ops.Reshape: lambda call, x: x.reshape(len(x), *call.op.shape),
    ops.Gain: _gain,
    ops.ScaleRows: lambda call, x, factor: scalar.multiply(x, factor, call.faults),
    ops.Shift: lambda call, x: scaling.shift(x, call.op.amount, call.faults),
    ops.Clamp: lambda call, x: scaling.clamp(x, call.op.low, call.op.high),
    ops.L2Norm: lambda call, x: norms.l2_norm(x, call.op.eps, call.faults),
    ops.Softmax: lambda call, x: route.softmax(x, faults=call.faults),
    ops.ChooseBlocks: _choose_blocks,
    ops.OwnBlock: lambda call, position: own_block(position, call.op.block),
    ops.ChooseKeys: _choose_keys,
    ops.ListKeys: lambda call, position: list_keys(position, call.op.every, call.op.top),
    ops.WindowBlocks: lambda call, keys, position: window_blocks(keys, position, call.op.every),
    ops.Compress: _compress,
    ops.HashNGrams: _hash_ngrams,
    ops.Sinkhorn: lambda call, x: streams.sinkhorn(x, call.op.rounds, call.op.eps, call.faults),
    ops.KeepListed: lambda call, x, token: route.keep_listed(x, token, call.weights["table"]),
    ops.IndexSelect: lambda call, x: route.index_select(x, call.weights["index"]),
    ops.StackIndex: lambda call, *at: route.stack_index(at[0], call.op.size, *at[1:]),
    ops.DeltaRule: StepKernel(lambda op: recurrent.delta_step),
    ops.DiagonalDeltaRule: StepKernel(lambda op: recurrent.diagonal_delta_step),
    ops.StateSpace: StepKernel(lambda op: recurrent.state_space_step),
    ops.ExpertGain: _expert_gain,
    ops.ExpertBias: lambda call, x, index: scalar.add(x, call.weights["bias"][index], call.faults),
}
"""The kernel of every primitive: (call, *inputs) → output, or a tuple of outputs."""
