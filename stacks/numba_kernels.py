"""The kernels in Numba, scalar loops on the CPU.

Numba promotes `float32 * 2` to float64: every constant is a typed float32, and Python numbers meet
integers only. `fastmath` stays off, so LLVM neither fuses nor reorders.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cortiq.numerics.digest import INDEX_KEY, LANE_KEYS, MIX_MULTIPLIERS
from cortiq.numerics.philox import KEY_INCREMENTS, MULTIPLIERS
from stacks.base import ELEMENTWISE, MATMULS, Array, NotHereError, Stack

try:
    from numba import njit
except ImportError as missing:
    raise NotHereError(str(missing)) from missing

from stacks import numba_products as products
from stacks import numba_scalar as scalar
from stacks.numba_scalar import F32, exp2_int, magnitude_bits, snapped

SMALLEST_BITS = (127 - 40) << 23
LARGEST_BITS = (127 + 50) << 23
HALF, M0, M1, K0, K1 = map(np.uint64, (32, *MULTIPLIERS, *KEY_INCREMENTS))
MIX0, MIX1 = map(np.uint32, MIX_MULTIPLIERS)
LANES = np.array(LANE_KEYS, np.uint32)


def elementwise(function: Any, arguments: int) -> Callable[..., Array]:
    """Map a scalar function of one, two or three arguments over flat arrays to float32."""

    @njit(nogil=True)
    def map1(a: Array, out: Array) -> None:
        for i in range(out.size):
            out[i] = function(a[i])

    @njit(nogil=True)
    def map2(a: Array, b: Array, out: Array) -> None:
        for i in range(out.size):
            out[i] = function(a[i], b[i])

    @njit(nogil=True)
    def map3(a: Array, b: Array, c: Array, out: Array) -> None:
        for i in range(out.size):
            out[i] = function(a[i], b[i], c[i])

    loop: Any = (map1, map2, map3)[arguments - 1]

    def call(*arrays: Array) -> Array:
        out = np.empty(arrays[0].shape, F32)
        loop(*arrays, out)
        return out

    return call


@njit(nogil=True)
def snap(x: Array) -> tuple[Array, Array]:
    """Canonical rows and a fault flag each."""
    out, faults = np.zeros_like(x), np.zeros(len(x), np.bool_)
    for row in range(x.shape[0]):
        for i in range(x.shape[1]):
            size = magnitude_bits(x[row, i])
            if size >= LARGEST_BITS:
                faults[row] = True
            elif size >= SMALLEST_BITS:
                out[row, i] = x[row, i]
    return out, faults


@njit(nogil=True)
def quantise_rows(x: Array) -> tuple[Array, Array, Array]:
    """Rows to two int8 planes and an exponent."""
    high, low = np.zeros(x.shape, np.int8), np.zeros(x.shape, np.int8)
    exponent = np.zeros(len(x), np.int32)
    for row in range(x.shape[0]):
        largest = 0
        for i in range(x.shape[1]):
            largest = max(largest, magnitude_bits(x[row, i]))
        e = ((max(largest, SMALLEST_BITS) + 0x20000) >> 23) - 141
        exponent[row] = e
        if largest < SMALLEST_BITS:
            continue
        scale = exp2_int(-e)
        for i in range(x.shape[1]):
            q = int(scalar.rint(x[row, i] * scale))
            high[row, i] = (q + 128) >> 8
            low[row, i] = q - (((q + 128) >> 8) << 8)
    return high, low, exponent


@njit(nogil=True)
def fold(lanes: Array) -> Any:
    """Lane i += lane i+h for h = 128, 64, …, 1; lane 0."""
    half = 128
    while half:
        for i in range(half):
            lanes[i] += lanes[i + half]
        half //= 2
    return lanes[0]


@njit(nogil=True)
def canonical_sum(x: Array) -> Array:
    """The sum of each row."""
    out = np.empty(len(x), F32)
    for row in range(x.shape[0]):
        lanes = np.zeros(256, F32)
        for i in range(x.shape[1]):
            lanes[i & 255] += x[row, i]
        out[row] = fold(lanes)
    return out


@njit(nogil=True)
def rms_norm(x: Array, weight: Array, eps: Array) -> Array:
    """RMSNorm of each row."""
    out = np.empty_like(x)
    inverse = F32(1) / F32(x.shape[1])
    for row in range(x.shape[0]):
        lanes = np.zeros(256, F32)
        for i in range(x.shape[1]):
            lanes[i & 255] += x[row, i] * x[row, i]
        r = F32(1) / np.sqrt(fold(lanes) * inverse + eps[0])
        for i in range(x.shape[1]):
            out[row, i] = snapped((x[row, i] * r) * weight[i])
    return out


@njit(nogil=True)
def argmax(x: Array) -> Array:
    """The lowest index of each row's largest value."""
    out = np.zeros(len(x), np.int32)
    for row in range(x.shape[0]):
        for i in range(x.shape[1]):
            if x[row, i] > x[row, out[row]]:
                out[row] = i
    return out


@njit(nogil=True)
def rope(x: Array, cos: Array, sin: Array, half: bool) -> Array:
    """Rotary embedding of x [rows, heads, width] by cos and sin [rows, pairs]."""
    out, pairs = x.copy(), cos.shape[1]
    for row in range(x.shape[0]):
        for head in range(x.shape[1]):
            for i in range(pairs):
                first, second = (i, i + pairs) if half else (2 * i, 2 * i + 1)
                a, b = x[row, head, first], x[row, head, second]
                c, s = cos[row, i], sin[row, i]
                out[row, head, first] = snapped(a * c - b * s)
                out[row, head, second] = snapped(b * c + a * s)
    return out


@njit(nogil=True)
def philox(counters: Array, keys: Array) -> Array:
    """Four random words for each counter [n, 4] and key [n, 2]."""
    out, low = np.empty_like(counters), np.uint64(0xFFFFFFFF)
    for i in range(len(counters)):
        c0, c1, c2, c3 = counters[i].astype(np.uint64)
        k0, k1 = keys[i].astype(np.uint64)
        for _ in range(10):
            first, second = M0 * c0, M1 * c2
            c0, c1 = (second >> HALF) ^ c1 ^ k0, second & low
            c2, c3 = (first >> HALF) ^ c3 ^ k1, first & low
            k0, k1 = (k0 + K0) & low, (k1 + K1) & low
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = c0, c1, c2, c3
    return out


@njit
def mix(word: Any) -> Any:
    """The digest's bijection of 32-bit words."""
    word = np.uint32((word ^ (word >> np.uint32(16))) * MIX0)
    word = np.uint32((word ^ (word >> np.uint32(15))) * MIX1)
    return word ^ (word >> np.uint32(16))


@njit(nogil=True)
def sum_digest(words: Array, out: Array) -> None:
    """Add the digest of the words to the four words of `out`."""
    for i in range(words.size):
        word = words[i] ^ mix(np.uint32(i + INDEX_KEY))
        for lane in range(4):
            out[lane] += mix(np.uint32(word + LANES[lane]))


def digest(x: Array) -> Array:
    """The digest of x [n]: four words."""
    out = np.zeros(4, np.uint32)
    sum_digest(x.view(np.uint32), out)
    return out


KERNELS: dict[str, Callable[..., Any]] = {
    **{name: elementwise(getattr(scalar, name), n) for name, n in ELEMENTWISE.items()},
    "snap": snap,
    "quantise_rows": quantise_rows,
    "canonical_sum": canonical_sum,
    "rms_norm": rms_norm,
    "argmax": argmax,
    "rope": rope,
    "philox": philox,
    "digest": digest,
    **dict.fromkeys(MATMULS, products.matmul),
    "attention": products.attention,
}


def stacks() -> list[Stack]:
    """Numba on the host's processor."""
    return [Stack("numba", "cpu", KERNELS)]
