"""What is torch's own among the kernels: stacks of matrices, and one layer as a whole."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cortiq.backend.array_kernels import ARRAY_KERNELS, ARRAY_OPTIONS, product
from cortiq.backend.attention_kernels import ATTENTION_KERNELS, ATTENTION_OPTIONS
from cortiq.backend.kernel_backend import KernelTable
from cortiq.backend.kernel_walk import KernelCall as Call
from cortiq.backend.weights import MATRICES, float_weight
from cortiq.ir import Op, layers, ops
from cortiq.numerics.layouts import Weight
from cortiq_torch.arithmetic import Rows, TorchArrays, snap
from cortiq_torch.matrices import Matrix, stacked


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
        **ATTENTION_KERNELS,
        ops.HeadMatMul: _head_matmul,
        ops.ExpertMatMul: _expert_matmul,
    },
    options=ARRAY_OPTIONS | ATTENTION_OPTIONS,
    layers={layers.GatedMLP: _gated_mlp},
)
"""The kernel of every primitive, and of one layer."""
