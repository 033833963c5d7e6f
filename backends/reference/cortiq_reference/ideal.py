"""A program in float64: plain formulas, a whole sequence at once, no order of sums, no rounding.

Weights are dequantised, rows are not quantised. Graphs are compared with other libraries through
this evaluation, and the contract's error is measured against it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.errors import GraphError, RequestError
from cortiq.ir import Op, Program, ops, primitives_of
from cortiq.numerics import ideal
from cortiq.numerics.ideal_mixers import (
    causal_conv_ideal,
    compress_ideal,
    delta_rule_ideal,
    diagonal_delta_ideal,
    sinkhorn_ideal,
    state_space_ideal,
)
from cortiq.numerics.key_blocks import list_keys, window_blocks
from cortiq.numerics.layouts import Weight
from cortiq.numerics.ngrams import ngram_rows
from cortiq.numerics.route import NEVER, stack_index
from cortiq_reference.ideal_slots import (
    Doubles,
    IdealCall,
    attend,
    choose_blocks,
    choose_keys,
    dequantise,
    read,
    store,
)

Formulas = Mapping[type[Op], Callable[..., Any]]
NO_FORMULAS: Formulas = MappingProxyType({})
SLICE_ELEMENTS = 1 << 22
"""Elements of a weight that are held in float64 at a time."""


def evaluate(
    program: Program,
    weights: Mapping[str, Weight],
    tokens: Sequence[int],
    wants: Sequence[str],
    entry: str = "trunk",
    inputs: Mapping[str, Doubles] | None = None,
    stored: dict[str, tuple[Doubles, Doubles]] | None = None,
    formulas: Formulas = NO_FORMULAS,
) -> dict[str, Doubles]:
    """Evaluate an entry graph over one whole sequence, positions 0, 1, …

    Parameters
    ----------
    tokens : ids, one a position.
    wants : names of values: those of the program's graphs, or of their primitives.
    inputs : the entry's other inputs, [positions, ...], and values in place of computed ones:
        what is recalled of another entry must be among them.
    stored : keys and values by slot that other entries stored; what this one stores is added.
    formulas : of operators that packages bring.

    Returns
    -------
    By name, float64 [positions, ...].

    Raises
    ------
    RequestError : a value that the graph does not have.
    GraphError : a primitive without a float64 formula, or a slot that nothing wrote.
    """
    graph = primitives_of(program).graphs[entry]
    unknown = [name for name in wants if name not in graph.values]
    if unknown:
        raise RequestError(f"no value is called {', '.join(unknown)}", where=entry)
    ids = np.asarray(tokens, np.int64)
    values: dict[str, Any] = {"token": ids, "position": np.arange(len(ids)), **(inputs or {})}
    slots = {} if stored is None else stored
    for node in graph.nodes:
        if node.outputs and values.keys() >= set(node.outputs):
            continue
        formula = formulas.get(type(node.op)) or FORMULAS.get(type(node.op))
        if formula is None:
            raise GraphError(f"{node.op.kind} has no float64 formula", where=node.name)
        bound = {role: weights[name] for role, name in node.weights.items()}
        slot = next(iter(node.slots.values()), None)
        results = formula(IdealCall(node.op, bound, slot, slots), *(values[n] for n in node.inputs))
        outputs = results if isinstance(results, tuple) else (results,)
        values.update(zip(node.outputs, outputs, strict=True))
    return {name: np.asarray(values[name], np.float64) for name in wants}


def product(x: Doubles, weight: Weight) -> Doubles:
    """Compute x·Wᵀ over the last axis, the weight in row slices."""
    return np.concatenate([x @ dequantise(part).T for part in _slices(weight)], axis=-1)


def _slices(weight: Weight) -> Iterator[Weight]:
    rows, columns = weight.shape
    step = max(1, SLICE_ELEMENTS // columns)
    return (weight.rows(start, min(start + step, rows)) for start in range(0, rows, step))


def _experts(node: IdealCall, x: Doubles, index: npt.NDArray[np.int32]) -> Doubles:
    """Multiply x [n, K] or [n, k, K] with the matrices of index [n, k]: [n, k, N]."""
    rows, (count, chosen) = node.op.out_width, index.shape
    x = np.broadcast_to(x if x.ndim == 3 else x[:, None], (count, chosen, x.shape[-1]))
    out = np.zeros((count, chosen, rows))
    for expert in np.unique(index):
        here = index == expert
        out[here] = product(
            x[here], node.weights["weight"].rows(expert * rows, (expert + 1) * rows)
        )
    return out


def _heads(node: IdealCall, x: Doubles) -> Doubles:
    every = np.broadcast_to(np.arange(node.op.heads), x.shape[:2])
    return _experts(node, x, every)


def _conv(node: IdealCall, x: Doubles) -> Doubles:
    taps = dequantise(node.weights["weight"])
    history = np.zeros((node.op.kernel - 1, node.op.width))
    return causal_conv_ideal(history, x, taps, node.vector("bias"))


def _hash_ngrams(node: IdealCall, token: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    op = node.op
    history = np.zeros((len(op.multipliers) - 1, 1), np.float32)
    return ngram_rows(history, token, op.end, op.multipliers, op.heights)[0]


def _compress(node: IdealCall, rows: Doubles, position: Any, gates: Doubles) -> Doubles:
    return compress_ideal(rows, gates, dequantise(node.weights["bias"]), node.op.width)


def _keep_listed(node: IdealCall, scores: Doubles, token: npt.NDArray[np.int64]) -> Doubles:
    table = dequantise(node.weights["table"])
    listed = (table[token][..., None] == np.arange(node.op.experts)).any(axis=1)
    return np.where(listed, scores, float(NEVER))


def _index_select(node: IdealCall, x: Doubles) -> Doubles:
    index = node.vector("index")
    assert index is not None
    padded = np.concatenate([x, np.full((len(x), 1), float(NEVER))], axis=-1)
    there = (index >= 0) & (index < x.shape[-1])
    return padded[:, np.where(there, index, x.shape[-1]).astype(int)]


def _delta_rule(node: IdealCall, *rows: Doubles) -> Doubles:
    op = node.op
    return delta_rule_ideal(np.zeros((op.heads, op.key_dim, op.value_dim)), *rows)[1]


def _diagonal_delta_rule(node: IdealCall, *rows: Doubles) -> Doubles:
    op = node.op
    return diagonal_delta_ideal(np.zeros((op.heads, op.key_dim, op.value_dim)), *rows)[1]


def _state_space(node: IdealCall, *rows: Doubles) -> Doubles:
    op = node.op
    return state_space_ideal(np.zeros((op.heads, op.state_dim, op.head_dim)), *rows)[1]


def _norm_weight(node: IdealCall) -> Doubles | None:
    weight = node.vector("weight")
    return None if weight is None else weight + node.op.offset


def _rms_norm(node: IdealCall, x: Doubles) -> Doubles:
    return ideal.rms_norm(x, _norm_weight(node), node.op.eps)


def _layer_norm(node: IdealCall, x: Doubles) -> Doubles:
    return ideal.layer_norm(x, _norm_weight(node), node.vector("bias"), node.op.eps)


def _rope(node: IdealCall, x: Doubles, position: npt.NDArray[np.int64]) -> Doubles:
    op = node.op
    if op.sections is None:
        return ideal.apply_rope(x, *ideal.rope_table(op.table, position), op.pairing)
    pairs = np.arange(op.table.dim // 2)
    rows = [ideal.rope_table(op.table, position[:, axis]) for axis in range(op.sections.count)]
    cos, sin = (np.stack(part)[op.sections.axes, :, pairs].T for part in zip(*rows, strict=True))
    return ideal.apply_rope(x, cos, sin, op.pairing)


def _embed_rows(node: IdealCall, token: npt.NDArray[np.int64]) -> Doubles:
    table = node.weights["table"]
    if token.ndim > 1:
        return _embed_rows(node, token.reshape(-1)).reshape(*token.shape, -1)
    known = token < table.shape[0]
    rows = dequantise(table.take(np.where(known, token, 0)))
    return np.where(known[:, None], rows, 0) if node.op.missing else rows


def _gain(node: IdealCall, x: Doubles) -> Doubles:
    weight = dequantise(node.weights["weight"])[0]
    if node.op.form == "softplus":
        weight = ideal.softplus(weight)
    elif node.op.form in ("square", "magnitude"):
        weight = np.abs(weight) ** (2 if node.op.form == "square" else 1)
    elif node.op.form in ("exp", "negative_exp"):
        weight = np.exp(weight) * (-1 if node.op.form == "negative_exp" else 1)
    return x * (weight[:, None] if node.op.per == "head" else weight)


def _expert_gain(node: IdealCall, x: Doubles, index: npt.NDArray[np.int32]) -> Doubles:
    factor = dequantise(node.weights["weight"])[0][index]
    return x * factor.reshape(*index.shape, *(1,) * (x.ndim - 2))


def _route(node: IdealCall, scores: Doubles) -> tuple[npt.NDArray[np.int32], Doubles]:
    return ideal.route(scores, node.op.router, node.vector("bias"), node.vector("mask"))


FORMULAS: Formulas = {
    ops.EmbedRows: _embed_rows,
    ops.Quantise: lambda node, x: x,
    ops.MatMul: lambda node, x: product(x, node.weights["weight"]),
    ops.HeadMatMul: _heads,
    ops.ExpertMatMul: _experts,
    ops.Add: lambda node, a, b: a + b,
    ops.Multiply: lambda node, a, b: a * b,
    ops.Scale: lambda node, x: x * np.float64(np.float32(node.op.factor)),
    ops.Bias: lambda node, x: x + node.vector("bias"),
    ops.Activation: lambda node, x: ideal.activation(x, node.op.function),
    ops.SoftCap: lambda node, x: ideal.soft_cap(x, node.op.cap),
    ops.RMSNorm: _rms_norm,
    ops.LayerNorm: _layer_norm,
    ops.Rope: _rope,
    ops.StoreKV: store,
    ops.Attend: attend,
    ops.Recall: lambda node, position: read(node)[0][position],
    ops.CausalConv: _conv,
    ops.Route: _route,
    ops.CombineExperts: lambda node, weight, y: ideal.combine_experts(weight, y),
    ops.Slice: lambda node, x: x[..., node.op.start : node.op.stop : node.op.step],
    ops.Concat: lambda node, *parts: np.concatenate(parts, axis=-1),
    ops.Permute: lambda node, x: np.take(x, node.op.order.columns, axis=-1),
    ops.Reshape: lambda node, x: x.reshape(len(x), *node.op.shape),
    ops.Gain: _gain,
    ops.ScaleRows: lambda node, x, factor: x * factor,
    ops.Shift: lambda node, x: x + np.float64(np.float32(node.op.amount)),
    ops.Clamp: lambda node, x: ideal.clamp(x, node.op.low, node.op.high),
    ops.L2Norm: lambda node, x: ideal.l2_norm(x, node.op.eps),
    ops.Softmax: lambda node, x: ideal.softmax(x),
    ops.ChooseBlocks: choose_blocks,
    ops.OwnBlock: lambda node, position: (position // node.op.block)[:, None, None],
    ops.ChooseKeys: choose_keys,
    ops.ListKeys: lambda node, position: list_keys(position, node.op.every, node.op.top),
    ops.WindowBlocks: lambda node, keys, at: window_blocks(keys, at, node.op.every),
    ops.Compress: _compress,
    ops.HashNGrams: _hash_ngrams,
    ops.Sinkhorn: lambda node, x: sinkhorn_ideal(x, node.op.rounds, node.op.eps),
    ops.KeepListed: _keep_listed,
    ops.IndexSelect: _index_select,
    ops.StackIndex: lambda node, *at: stack_index(at[0], node.op.size, *at[1:]),
    ops.DeltaRule: _delta_rule,
    ops.DiagonalDeltaRule: _diagonal_delta_rule,
    ops.StateSpace: _state_space,
    ops.ExpertGain: _expert_gain,
    ops.ExpertBias: lambda node, x, index: x + dequantise(node.weights["bias"])[index],
}
"""The formula of every primitive: (node, *inputs) → output, or a tuple of outputs."""
