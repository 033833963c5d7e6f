"""Expected values: a program evaluated with the plain functions of `cortiq.numerics`.

One sequence, node by node, without batches: what every backend is compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cortiq.backend import Kernel, StepKernel
from cortiq.ir import KVRows, Node, Op, Program, Recurrent, ops, primitives_of
from cortiq.numerics import (
    key_blocks,
    matmul,
    norms,
    recurrent,
    rope,
    route,
    scalar,
    scaling,
    streams,
)  # fmt: skip
from cortiq.numerics.contract import F32, Flags, Floats, Ints, snap
from cortiq.numerics.dequantise import embedding_rows
from cortiq.numerics.layouts import Weight, decode, floats
from cortiq.numerics.quantise import Quantised, quantise_rows
from cortiq.plugins import default_plugins
from cortiq_conformance.oracle_states import (
    OracleCall,
    attend,
    causal_conv,
    choose,
    compress,
    hash_ngrams,
    recall,
    recurrent_step,
    store_kv,
)

Inputs = Mapping[str, np.ndarray]


@dataclass
class Evaluation:
    """Values of the rows of one call, by name, and which rows met a fault."""

    values: dict[str, Any]
    faults: Flags


class OracleSequence:
    """One sequence of a program; `feed` continues it."""

    def __init__(self, program: Program, weights: Mapping[str, Weight]) -> None:
        self.program, self.weights = primitives_of(program), weights
        self.slots = {name: _empty(slot) for name, slot in program.slots.items()}
        self.lengths = dict.fromkeys(program.graphs, 0)
        self.tokens: list[int] = []

    def feed(
        self, tokens: Sequence[int] | Ints, inputs: Inputs | None = None, entry: str = "trunk"
    ) -> Evaluation:
        """Evaluate the next rows; values are those after the fault check, however it ended."""
        graph, count = self.program.graphs[entry], len(tokens)
        faults: Flags = np.zeros(count, np.bool_)
        start = self.lengths[entry]
        values: dict[str, Any] = {
            "token": np.asarray(tokens, np.int32),
            "position": np.arange(start, start + count, dtype=np.int32),
        }
        for name, given in (inputs or {}).items():
            kind = graph.values[name].dtype
            values[name] = given if kind == "i32" else snap(np.asarray(given, F32), faults)
        for node in graph.nodes:
            self._run(node, values, faults)
        self.lengths[entry] += count
        if entry == "trunk":
            self.tokens.extend(int(t) for t in tokens)
        return Evaluation(values, faults)

    def _run(self, node: Node, values: dict[str, Any], faults: Flags) -> None:
        weights = {role: self.weights[name] for role, name in node.weights.items()}
        call = OracleCall(node.op, weights, self.slots, faults, values["position"], node.slots)
        with np.errstate(all="ignore"):
            function = FUNCTIONS.get(type(node.op), _packaged)
            result = function(call, *(values[name] for name in node.inputs))
        outputs = result if len(node.outputs) != 1 else (result,)
        values.update(zip(node.outputs, outputs, strict=True))


def _empty(slot: Any) -> Any:
    if isinstance(slot, KVRows):
        shapes = ((slot.heads, slot.key_dim), (slot.heads, slot.value_dim))
        return [
            Quantised(np.zeros((0, *s), np.int32), np.zeros((0, s[0]), np.int32)) for s in shapes
        ]
    return np.zeros(slot.shape if isinstance(slot, Recurrent) else (slot.length, slot.width), F32)


def _product(x: Quantised | Floats, weight: Weight, faults: Flags) -> Floats:
    """Multiply x [rows, K] by a weight, by its layout."""
    if isinstance(x, Quantised):
        return matmul.matmul(x, decode(weight), faults)
    return matmul.matmul_f32(x, floats(weight), faults)


def _matmul(call: OracleCall, x: Quantised | Floats) -> Floats:
    shape = x.q.shape if isinstance(x, Quantised) else x.shape
    inner = int(np.prod(shape[1:-1]))
    faults: Flags = np.zeros(shape[0] * inner, np.bool_)
    y = _product(_flat(x), call.weights["weight"], faults)
    call.faults |= faults.reshape(shape[0], inner).any(axis=1)
    return y.reshape(*shape[:-1], -1)


def _flat(x: Quantised | Floats) -> Quantised | Floats:
    if isinstance(x, Quantised):
        return Quantised(x.q.reshape(-1, x.q.shape[-1]), x.e.reshape(-1))
    return x.reshape(-1, x.shape[-1])


def _stacked(call: OracleCall, x: Quantised | Floats, choice: Ints, count: int) -> Floats:
    """Multiply row i, slot j by matrix choice[i, j] of a stack of `count`."""
    weight = call.weights["weight"]
    height = weight.shape[0] // count
    out = np.zeros((*choice.shape, height), F32)
    for row, slot in np.ndindex(choice.shape):
        first = int(choice[row, slot]) * height
        expert = weight.rows(first, first + height)
        one = _one_row(x, row, slot)
        out[row, slot] = _product(one, expert, call.faults[row : row + 1])[0]
    return out


def _one_row(x: Quantised | Floats, row: int, slot: int) -> Quantised | Floats:
    if isinstance(x, Quantised):
        shared = x.e.ndim == 1
        at = (row,) if shared else (row, slot)
        return Quantised(x.q[at][None], x.e[at].reshape(1))
    return x[(row,) if x.ndim == 2 else (row, slot)][None]


def _head_matmul(call: OracleCall, x: Quantised | Floats) -> Floats:
    rows = len(x.q) if isinstance(x, Quantised) else len(x)
    choice = np.broadcast_to(np.arange(call.op.heads, dtype=np.int32), (rows, call.op.heads))
    return _stacked(call, x, choice, call.op.heads)


def _rms_norm(call: OracleCall, x: Floats) -> Floats:
    weight = call.vector("weight")
    if weight is not None:
        weight = norms.offset_weight(weight, call.op.offset)
    return norms.rms_norm(x, weight, call.op.eps, call.faults)


def _layer_norm(call: OracleCall, x: Floats) -> Floats:
    weight = None
    if call.op.weighted:
        weight = norms.offset_weight(floats(call.weights["weight"])[0], call.op.offset)
    return norms.layer_norm(x, weight, call.vector("bias"), call.op.eps, call.faults)


def _rope(call: OracleCall, x: Floats, position: Ints) -> Floats:
    op = call.op
    if op.sections is None:
        cos, sin = op.table.compute(position)
        return rope.apply_rope(x, cos, sin, op.pairing, call.faults)
    cos, sin = np.zeros((2, len(x), op.table.dim // 2), F32)
    for pair, axis in enumerate(op.sections.axes):
        every = op.table.compute(position[:, axis])
        cos[:, pair], sin[:, pair] = every[0][:, pair], every[1][:, pair]
    return rope.apply_rope(x, cos, sin, call.op.pairing, call.faults)


def _embed_rows(call: OracleCall, token: Ints) -> Floats:
    table = call.weights["table"]
    if token.ndim > 1:
        columns = [_embed_rows(call, column) for column in token.T]
        return np.stack(columns, axis=1)
    if not call.op.missing:
        return embedding_rows(table, token, call.faults)
    rows = np.zeros((len(token), table.shape[1]), F32)
    for i in np.flatnonzero(token < table.shape[0]):
        rows[i] = embedding_rows(table, token[i : i + 1], call.faults[i : i + 1])[0]
    return rows


def _gain(call: OracleCall, x: Floats) -> Floats:
    factor = scaling.gain(floats(call.weights["weight"])[0], call.op.form)
    return scalar.multiply(x, factor[:, None] if call.op.per == "head" else factor, call.faults)


def _expert_gain(call: OracleCall, x: Floats, index: Ints) -> Floats:
    factor = floats(call.weights["weight"])[0][index]
    return scalar.multiply(x, factor if x.ndim == 2 else factor[..., None], call.faults)


def _route(call: OracleCall, scores: Floats) -> tuple[Ints, Floats]:
    bias, mask = call.vector("bias"), call.vector("mask")
    return route.route(scores, call.op.router, bias, call.faults, mask)


def defined_by_packages() -> Mapping[type[Op], Kernel]:
    """Return the kernels that define operators of packages: those they bring for the reference."""
    given = getattr(default_plugins().backends.get("reference"), "given", {})
    return {op: kernel for op, kernel in given.items() if op not in FUNCTIONS}


def _packaged(call: OracleCall, *inputs: Any) -> Any:
    """Call the package's kernel for the reference, with weights as the reference prepares them."""
    weights = {role: floats(weight)[0] for role, weight in call.weights.items()}
    kernel = defined_by_packages()[type(call.op)]
    if isinstance(kernel.function, StepKernel):
        return recurrent_step(call, kernel.function.step(call.op), *inputs)
    return kernel.function(replace(call, weights=weights), *inputs)


FUNCTIONS: dict[type[Op], Callable[..., Any]] = {
    ops.EmbedRows: _embed_rows,
    ops.Quantise: lambda c, x: quantise_rows(x),
    ops.MatMul: _matmul,
    ops.HeadMatMul: _head_matmul,
    ops.ExpertMatMul: lambda c, x, index: _stacked(c, x, index, c.op.experts),
    ops.Add: lambda c, a, b: scalar.add(a, b, c.faults),
    ops.Multiply: lambda c, a, b: scalar.multiply(a, b, c.faults),
    ops.Scale: lambda c, x: scalar.scale(x, c.op.factor, c.faults),
    ops.Bias: lambda c, x: scalar.add(x, floats(c.weights["bias"])[0], c.faults),
    ops.Activation: lambda c, x: scalar.activation(x, c.op.function, c.faults),
    ops.SoftCap: lambda c, x: scalar.soft_cap(x, c.op.cap, c.faults),
    ops.RMSNorm: _rms_norm,
    ops.LayerNorm: _layer_norm,
    ops.Rope: _rope,
    ops.StoreKV: store_kv,
    ops.Attend: attend,
    ops.Recall: recall,
    ops.OwnBlock: lambda c, position: key_blocks.own_block(position, c.op.block),
    ops.CausalConv: causal_conv,
    ops.Route: _route,
    ops.CombineExperts: lambda c, w, y: route.combine_experts(w, y, c.faults),
    ops.Slice: lambda c, x: x[..., list(range(c.op.start, c.op.stop, c.op.step))],
    ops.Concat: lambda c, *parts: np.concatenate(parts, axis=-1),
    ops.Permute: lambda c, x: x[..., list(c.op.order.columns)],
    ops.Reshape: lambda c, x: x.reshape(len(x), *c.op.shape),
    ops.Gain: _gain,
    ops.ScaleRows: lambda c, x, factor: scalar.multiply(x, factor, c.faults),
    ops.Shift: lambda c, x: scaling.shift(x, c.op.amount, c.faults),
    ops.Clamp: lambda c, x: scaling.clamp(x, c.op.low, c.op.high),
    ops.L2Norm: lambda c, x: norms.l2_norm(x, c.op.eps, c.faults),
    ops.Softmax: lambda c, x: route.softmax(x, faults=c.faults),
    **dict.fromkeys((ops.ChooseBlocks, ops.ChooseKeys), choose),
    ops.WindowBlocks: lambda c, keys, at: key_blocks.window_blocks(keys, at, c.op.every),
    ops.HashNGrams: hash_ngrams,
    ops.ListKeys: lambda c, position: key_blocks.list_keys(position, c.op.every, c.op.top),
    ops.Compress: compress,
    ops.Sinkhorn: lambda c, x: streams.sinkhorn(x, c.op.rounds, c.op.eps, c.faults),
    ops.KeepListed: lambda c, x, token: route.keep_listed(x, token, floats(c.weights["table"])),
    ops.IndexSelect: lambda c, x: route.index_select(x, floats(c.weights["index"])[0]),
    ops.StackIndex: lambda c, *at: route.stack_index(at[0], c.op.size, *at[1:]),
    ops.DeltaRule: lambda c, *rows: recurrent_step(c, recurrent.delta_step, *rows),
    ops.DiagonalDeltaRule: lambda c, *rows: recurrent_step(c, recurrent.diagonal_delta_step, *rows),
    ops.StateSpace: lambda c, *rows: recurrent_step(c, recurrent.state_space_step, *rows),
    ops.ExpertGain: _expert_gain,
    ops.ExpertBias: lambda c, x, e: scalar.add(x, floats(c.weights["bias"])[e], c.faults),
}
"""The definition of every primitive: (call, *inputs) to output, or a tuple of outputs."""
