"""What is torch's own among the kernels: products, attention, and one layer as a whole."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cortiq.backend.array_kernels import ARRAY_KERNELS, ARRAY_OPTIONS, product
from cortiq.backend.kernel_backend import KernelTable
from cortiq.backend.kernel_walk import KernelCall as Call
from cortiq.backend.weights import MATRICES, float_weight
from cortiq.ir import Op, layers, ops
from cortiq.numerics.attention import scoring
from cortiq.numerics.layouts import Weight
from cortiq_torch.arithmetic import Rows, TorchArrays, snap
from cortiq_torch.attention import Geometry, attend, choose_blocks
from cortiq_torch.matrices import Matrix, stacked

QUERY_ROWS = 64
"""Query rows attended to at a time: bounds the scores held in memory."""


def prepare(library: TorchArrays, op: Op, role: str, weight: Weight, name: str) -> Any:
    """A weight as the kernel of `op` takes it: a `Matrix`, or a tensor of floats."""
    if isinstance(op, MATRICES) or (isinstance(op, layers.GatedMLP) and "bias" not in role):
        return Matrix(weight, name, library.device)
    return library.array(float_weight(op, role, weight, name))


def _head_matmul(call: Call, x: Rows | Tensor) -> Tensor:
    rows, heads = len(call.faults), call.op.heads
    choice = torch.arange(heads, device=call.faults.device).expand(rows, heads)
    return stacked(call.weights["weight"], heads, x, choice, call.faults)


def _expert_matmul(call: Call, x: Rows | Tensor, index: Tensor) -> Tensor:
    return stacked(call.weights["weight"], call.op.experts, x, index, call.faults)


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
        rows = keys.q[at] * call.library.exp2_int(keys.e[at].int())[..., None]
        out[segment.start : segment.start + len(at)] = rows
    return snap(out, call.faults)


def _gated_mlp(call: Call, x: Tensor) -> Tensor:
    """A layer as a whole: what its primitives do, one after the other, without a graph between."""
    library = call.library

    def linear(role: str, x: Tensor) -> Tensor:
        matrix, bias = call.weights[role], call.weights.get(f"{role}_bias")
        rows = x if matrix.floating else library.quantised(x)
        y = product(library, matrix, rows, call.faults)
        return y if bias is None else snap(y + bias, call.faults)

    gate = snap(library.activation(call.op.activation, linear("gate", x)), call.faults)
    return linear("down", snap(gate * linear("up", x), call.faults))


TABLE = KernelTable(
    kernels={
        **ARRAY_KERNELS,
        ops.HeadMatMul: _head_matmul,
        ops.ExpertMatMul: _expert_matmul,
        ops.Attend: _attend,
        ops.ChooseBlocks: _choose_blocks,
        ops.Recall: _recall,
    },
    options=ARRAY_OPTIONS | {"blocks", "until"},
    layers={layers.GatedMLP: _gated_mlp},
)
"""The kernel of every primitive, and of one layer."""
