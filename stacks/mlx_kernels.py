"""The kernels in MLX, as array expressions on its default device.

MLX runs one kernel an operation, so nothing is contracted as long as `mx.compile` stays away. TF32
is switched off before the import: it would shorten the mantissas of float32 matmuls on CUDA.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from stacks.base import Array, NotHereError, Stack

os.environ["MLX_ENABLE_TF32"] = "0"
try:
    import mlx.core as mx

    from stacks import mlx_scalar as scalar
    from stacks.mlx_scalar import exp2_int, magnitude_bits, snapped
except ImportError as missing:
    raise NotHereError(f"{missing.name or 'mlx'} is not installed") from missing

SMALLEST_BITS, LARGEST_BITS = (127 - 40) << 23, (127 + 50) << 23


def upload(array: Array) -> mx.array:
    """A NumPy array on MLX's default device."""
    return mx.array(np.ascontiguousarray(array))


def download(*arrays: mx.array) -> Any:
    """MLX arrays as NumPy ones; a single one bare."""
    out = tuple(np.array(a) for a in arrays)
    return out if len(out) > 1 else out[0]


def on_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function of MLX arrays take and give NumPy ones."""

    def call(*arrays: Array, **options: Any) -> Any:
        out = function(*map(upload, arrays), **options)
        return download(*out) if isinstance(out, tuple) else download(out)

    return call


def snap(x: mx.array) -> tuple[mx.array, mx.array]:
    """Canonical rows and a fault flag each."""
    size = magnitude_bits(x)
    fault = size >= LARGEST_BITS
    keep = mx.logical_and(size >= SMALLEST_BITS, mx.logical_not(fault))
    return mx.where(keep, x, 0.0), fault.any(axis=1)


def quantise_rows(x: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """Rows to two int8 planes and an exponent."""
    largest = magnitude_bits(x).max(axis=1)
    empty = largest < SMALLEST_BITS
    e = mx.where(empty, 0, ((largest + 0x20000) >> 23) - 141).astype(mx.int32)
    q = mx.round(x * exp2_int(-e)[:, None]).astype(mx.int32)
    q = mx.where(empty[:, None], 0, q)
    high = (q + 128) >> 8
    return high.astype(mx.int8), (q - (high << 8)).astype(mx.int8), e


def canonical_sum(x: mx.array) -> mx.array:
    """The sum of each row: whole lanes of 256 in order, then halves onto halves."""
    steps = -(-x.shape[1] // 256)
    x = mx.pad(x, ((0, 0), (0, steps * 256 - x.shape[1])))
    lanes = mx.zeros((x.shape[0], 256))
    for step in range(steps):
        lanes = lanes + x[:, step * 256 : step * 256 + 256]
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0]


def rms_norm(x: mx.array, weight: mx.array, eps: mx.array) -> mx.array:
    """RMSNorm of each row; 1/n comes from the host, rounded."""
    inverse = mx.array(np.float32(1) / np.float32(x.shape[1]))
    mean = canonical_sum(x * x) * inverse
    r = 1.0 / mx.sqrt(mean + eps)
    return snapped((x * r[:, None]) * weight)


def argmax(x: mx.array) -> mx.array:
    """The lowest index of each row's largest value: integers that order as the floats do."""
    key = x.view(mx.int32)
    key = key ^ ((key >> 31) & 0x7FFFFFFF)
    best = key == key.max(axis=1, keepdims=True)
    index = mx.arange(x.shape[1], dtype=mx.int32)
    return mx.where(best, index, x.shape[1]).min(axis=1)


ELEMENTWISE = [
    "add",
    "multiply",
    "divide",
    "sqrt",
    "rint",
    "to_float",
    "exp",
    "exp2g",
    "sigmoid",
    "silu",
    "gelu_tanh",
    "tanh",
    "log",
    "softplus",
    "round_two_planes",
    "round_three_planes",
    "round_int32",
]

KERNELS: dict[str, Callable[..., Any]] = {
    **{name: on_arrays(getattr(scalar, name)) for name in ELEMENTWISE},
    "snap": on_arrays(snap),
    "quantise_rows": on_arrays(quantise_rows),
    "canonical_sum": on_arrays(canonical_sum),
    "rms_norm": on_arrays(rms_norm),
    "argmax": on_arrays(argmax),
}


def stacks() -> list[Stack]:
    """MLX on its default device."""
    return [Stack("mlx", str(mx.default_device()), KERNELS)]


__all__ = ["KERNELS", "partial", "stacks"]
