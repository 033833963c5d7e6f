"""The kernels in MLX, as array expressions on its default device.

MLX runs one kernel an operation, so nothing is contracted as long as `mx.compile` stays away. TF32
is switched off before the import: it would shorten the mantissas of float32 matmuls on CUDA.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from cortiq.numerics.digest import INDEX_KEY, LANE_KEYS, MIX_MULTIPLIERS
from cortiq.numerics.philox import KEY_INCREMENTS, MULTIPLIERS
from stacks.base import MATMULS, Array, NotHereError, Stack

os.environ["MLX_ENABLE_TF32"] = "0"
try:
    import mlx.core as mx

    from cortiq_mlx.arithmetic import LARGEST, SMALLEST, exp2_int, magnitude_bits
    from stacks import mlx_products as products
    from stacks.mlx_scalar import FUNCTIONS, snapped
except ImportError as missing:
    raise NotHereError(str(missing)) from missing


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
    fault = size >= LARGEST
    keep = mx.logical_and(size >= SMALLEST, mx.logical_not(fault))
    return mx.where(keep, x, 0.0), fault.any(axis=1)


def quantise_rows(x: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """Rows to two int8 planes and an exponent."""
    largest = magnitude_bits(x).max(axis=1)
    empty = largest < SMALLEST
    e = ((mx.maximum(largest, SMALLEST) + 0x20000) >> 23) - 141
    q = mx.round(x * exp2_int(-e)[:, None]).astype(mx.int32)
    q = mx.where(empty[:, None], 0, q)
    high = (q + 128) >> 8
    return high.astype(mx.int8), (q - (high << 8)).astype(mx.int8), e


def canonical_sum(x: mx.array) -> mx.array:
    """The sum of each row: whole lanes of 256 in order, then halves onto halves."""
    steps = -(-x.shape[1] // 256)
    x = mx.pad(x, [(0, 0), (0, steps * 256 - x.shape[1])])
    lanes = mx.zeros((x.shape[0], 256))
    for step in range(steps):
        lanes = lanes + x[:, step * 256 : step * 256 + 256]
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0]


def rms_norm(x: mx.array, weight: mx.array, eps: mx.array) -> mx.array:
    """RMSNorm of each row; 1/n comes from the host, rounded."""
    inverse = float(np.float32(1) / np.float32(x.shape[1]))
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


def rope(x: mx.array, cos: mx.array, sin: mx.array, *, half: bool) -> mx.array:
    """Rotary embedding of x [rows, heads, width] by cos and sin [rows, pairs]."""
    pairs = cos.shape[1]
    c, s = cos[:, None, :], sin[:, None, :]
    turned, rest = x[:, :, : 2 * pairs], x[:, :, 2 * pairs :]
    a, b = turned[:, :, :pairs], turned[:, :, pairs:]
    if not half:
        a, b = turned[:, :, 0::2], turned[:, :, 1::2]
    parts = snapped(a * c - b * s), snapped(b * c + a * s)
    if half:
        return mx.concatenate([*parts, rest], axis=2)
    return mx.concatenate([mx.stack([*parts], axis=3).reshape(turned.shape), rest], axis=2)


def word(value: int) -> mx.array:
    """A uint32 constant."""
    return mx.array(value, dtype=mx.uint32)


def product(a: mx.array, multiplier: int) -> tuple[mx.array, mx.array]:
    """High and low word of a·multiplier."""
    whole = a.astype(mx.uint64) * mx.array(multiplier, dtype=mx.uint64)
    low = whole.astype(mx.uint32)
    return (whole >> mx.array(32, dtype=mx.uint64)).astype(mx.uint32), low


def philox(counters: mx.array, keys: mx.array) -> mx.array:
    """Four random words for each counter [n, 4] and key [n, 2]."""
    c0, c1, c2, c3 = (counters[:, i] for i in range(4))
    k0, k1 = keys[:, 0], keys[:, 1]
    for _ in range(10):
        (high0, low0), (high1, low1) = product(c0, MULTIPLIERS[0]), product(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + word(KEY_INCREMENTS[0]), k1 + word(KEY_INCREMENTS[1])
    return mx.stack([c0, c1, c2, c3], axis=1)


def mix(w: mx.array) -> mx.array:
    """The digest's bijection of 32-bit words."""
    w = (w ^ (w >> word(16))) * word(MIX_MULTIPLIERS[0])
    w = (w ^ (w >> word(15))) * word(MIX_MULTIPLIERS[1])
    return w ^ (w >> word(16))


def digest(x: mx.array) -> mx.array:
    """The digest of x [n]: four words; the sums wrap."""
    index = mx.arange(x.size, dtype=mx.uint32)
    w = x.view(mx.uint32) ^ mix(index + word(INDEX_KEY))
    return mx.stack([mix(w + word(key)).sum() for key in LANE_KEYS])


KERNELS: dict[str, Callable[..., Any]] = {
    **{name: on_arrays(function) for name, function in FUNCTIONS.items()},
    "snap": on_arrays(snap),
    "quantise_rows": on_arrays(quantise_rows),
    "canonical_sum": on_arrays(canonical_sum),
    "rms_norm": on_arrays(rms_norm),
    "argmax": on_arrays(argmax),
    "rope": on_arrays(rope),
    "philox": on_arrays(philox),
    "digest": on_arrays(digest),
    **dict.fromkeys(MATMULS, on_arrays(products.matmul)),
    "attention": on_arrays(products.attention),
}


def stacks() -> list[Stack]:
    """MLX on its default device."""
    return [Stack("mlx", str(mx.default_device()), KERNELS)]
