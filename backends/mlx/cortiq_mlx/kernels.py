"""Kernels of MLX: products and attention are its own, others those of all array libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cortiq.backend.array_kernels import ARRAY_KERNELS, ARRAY_OPTIONS, reshaped
from cortiq.backend.attention_kernels import ATTENTION_KERNELS, ATTENTION_OPTIONS
from cortiq.backend.float_weights import MATRICES, float_weight, stack_of
from cortiq.backend.kernel_walk import KernelCall as Call
from cortiq.backend.plan import Kernels
from cortiq.ir import Op, ops
from cortiq.numerics.layouts import Weight
from cortiq_mlx.array_library import MlxArrays
from cortiq_mlx.library import mx
from cortiq_mlx.matrices import MlxMatrix
from cortiq_mlx.quantised_rows import Faults, MlxRows


def prepare(library: MlxArrays, op: Op, role: str, weight: Weight, name: str) -> Any:
    """Convert a weight for the kernel of `op`: to `MlxMatrix`, or floats; nothing stays lazy."""
    if isinstance(op, MATRICES):
        return MlxMatrix(weight, name, stack_of(op))
    values = library.array(float_weight(op, role, weight, name))
    mx.eval(values)
    return values


def _head_matmul(call: Call, x: MlxRows | mx.array) -> mx.array:
    """Multiply [rows, heads, K], each head with its matrix."""
    rows, heads = x.shape[:2]
    flags = Faults(rows * heads)
    turned = MlxRows(x.q.swapaxes(0, 1), x.e.T) if isinstance(x, MlxRows) else x.swapaxes(0, 1)
    y = call.weights["weight"].product(turned, flags)
    call.faults.see(flags.seen().reshape(heads, rows).T)
    return y.swapaxes(0, 1)


def _expert_matmul(call: Call, x: MlxRows | mx.array, index: mx.array) -> mx.array:
    """Multiply [rows, K] or [rows, k, K], each row with the matrices that it chose."""
    rows, slots = index.shape
    if len(x.shape) == 2:
        x = MlxRows(*map(_beside(slots), x)) if isinstance(x, MlxRows) else _beside(slots)(x)
    pairs, flags = reshaped(x, rows * slots, 1), Faults(rows * slots)
    y = call.weights["weight"].chosen_product(pairs, index.reshape(-1), flags)
    call.library.gather_flags(call.faults, [flags])
    return y.reshape(rows, slots, -1)


def _beside(slots: int) -> Callable[[mx.array], mx.array]:
    return lambda x: mx.repeat(x[:, None], slots, axis=1)


KERNELS: Kernels = {
    **ARRAY_KERNELS,
    **ATTENTION_KERNELS,
    ops.HeadMatMul: _head_matmul,
    ops.ExpertMatMul: _expert_matmul,
}
"""The kernel of every primitive."""
OPTIONS = ARRAY_OPTIONS | ATTENTION_OPTIONS
"""Options that they know."""
