"""Matmul and attention of the contract in MLX, which has no integer matmul.

Planes are multiplied as float32: a slice of up to 1024 products of int8 values sums to at most 2²⁴,
so that a float32 sum of it is exact in any order. Slices become int32 before they are added.
"""

from __future__ import annotations

import mlx.core as mx

from cortiq_mlx.arithmetic import exp2_int, tanh
from cortiq_mlx.exact import portable_int32, portable_three_planes, portable_two_planes
from stacks.mlx_scalar import exp2g, snapped

SLICE = 1024
NONE = -(1 << 20)
"""Exponent of an empty state, below every real one."""


def int_matmul(a: mx.array, b: mx.array) -> mx.array:
    """Exact int32 a @ b of int8 planes [..., M, K] and [..., K, N]."""
    total = mx.zeros((*a.shape[:-1], b.shape[-1]), mx.int32)
    for start in range(0, a.shape[-1], SLICE):
        left = a[..., start : start + SLICE].astype(mx.float32)
        right = b[..., start : start + SLICE, :].astype(mx.float32)
        total = total + (left @ right).astype(mx.int32)
    return total


def dot_planes(a: tuple[mx.array, mx.array], b: tuple[mx.array, mx.array]) -> mx.array:
    """RN of the integer matmul of (high, low) planes by (high, low) planes."""
    (ah, al), (bh, bl) = a, b
    middle = int_matmul(ah, bl) + int_matmul(al, bh)
    return portable_three_planes(int_matmul(ah, bh), middle, int_matmul(al, bl))


def block_term(
    high: mx.array, low: mx.array, codes: mx.array, scale: mx.array, offsets: mx.array | None,
    minimum: mx.array | None, sub: int,
) -> mx.array:  # fmt: skip
    """t = RN(RN(I)·scale) [+ RN(RN(J)·minimum)] of one block's columns: [M, N]."""
    if len(codes) == 2:
        dot = dot_planes((high, low), (codes[0].T, codes[1].T))
    else:
        dot = portable_two_planes(int_matmul(high, codes[0].T), int_matmul(low, codes[0].T))
    term = dot * scale
    if offsets is None or minimum is None:
        return term
    q = high.astype(mx.int32) * 256 + low.astype(mx.int32)
    sums = q.reshape(len(q), -1, sub).sum(axis=2)
    j = (sums[:, None, :] * offsets[None]).sum(axis=2)
    return term + portable_int32(j) * minimum


def matmul(
    high: mx.array, low: mx.array, e: mx.array, codes: mx.array, scale: mx.array,
    offsets: mx.array, minimum: mx.array, *, block: int, sub: int,
) -> mx.array:  # fmt: skip
    """Activation planes [M, K] times code planes [1 or 2, N, K]; offsets only if sub > 0."""
    y = mx.zeros((len(high), codes.shape[1]))
    blocks = scale.shape[1]
    for first in range(0, blocks, 8):
        run = mx.zeros(y.shape)
        for b in range(first, min(first + 8, blocks)):
            k = slice(b * block, b * block + block)
            planes = high[:, k], low[:, k], codes[:, :, k]
            factors = least = None
            if sub:
                factors = offsets[:, b * (block // sub) : (b + 1) * (block // sub)]
                least = minimum[:, b]
            run = run + block_term(*planes, scale[:, b], factors, least, sub)
        y = y + run
    return snapped(y * exp2_int(e)[:, None])


def delta(n: mx.array) -> mx.array:
    """2ⁿ, or 0 below −60."""
    return mx.where(n < -60, 0.0, exp2_int(mx.maximum(n, -60)))


def weight_of(s: mx.array) -> tuple[mx.array, mx.array]:
    """(κ, g) with 2^s = g·2^κ, |s| clamped at 16384."""
    s = mx.minimum(mx.maximum(s, -16384.0), 16384.0)
    k = mx.round(s)
    return k.astype(mx.int32), exp2g(s - k)


State = tuple[mx.array, mx.array]
"""Values, and the exponent they stand at."""


def combine(a: State, b: State) -> State:
    """a + b at the larger of both exponents."""
    top = mx.maximum(a[1], b[1])
    return a[0] * delta(a[1] - top) + b[0] * delta(b[1] - top), top


def split(q: mx.array) -> tuple[mx.array, mx.array]:
    """An int32 of 16 bits as two int8 planes."""
    high = (q + 128) >> 8
    return high.astype(mx.int8), (q - (high << 8)).astype(mx.int8)


def score(q: State, k: State, factors: mx.array) -> mx.array:
    """Base-2 scores [H, T, keys]; factors are c, RN(log₂e), the cap C (or 0) and RN(1/C)."""
    keys = mx.swapaxes(k[0], 2, 3)
    dots = dot_planes((q[0][0], q[0][1]), (keys[0], keys[1]))
    s = (dots * factors[0]) * exp2_int(q[1][:, :, None] + k[1][:, None, :])
    if factors[2].item():
        s = (factors[2] * tanh(s * factors[3])) * factors[1]
    return s


def tile_states(
    q: State, k: State, v: State, seen: mx.array, factors: mx.array
) -> tuple[State, State]:
    """Mass and weighted values of one tile: [H, T, 1] and [H, T, D], each with its exponent.

    q, k and v are (planes [2, H, rows, D], exponents [H, rows]); seen is [T, keys].
    """
    s = score(q, k, factors)
    kappa, fraction = weight_of(mx.where(seen, s, 0.0))
    kappa = mx.where(seen, kappa, NONE)
    epsilon = mx.where(seen, kappa + v[1][:, None, :], NONE)
    K, E = kappa.max(axis=2, keepdims=True), epsilon.max(axis=2, keepdims=True)
    mass = mx.round(fraction * delta(21 + kappa - K)).astype(mx.int32)
    L = mx.where(seen, mass, 0).sum(axis=2, keepdims=True)
    w = mx.round(fraction * delta(14 + epsilon - E)).astype(mx.int32)
    values = dot_planes(split(mx.where(seen, w, 0)), (v[0][0], v[0][1]))
    some = K > NONE
    mass_state = mx.where(some, portable_int32(L), 0.0), mx.where(some, K, NONE)
    return mass_state, (mx.where(some, values, 0.0), mx.where(some, E, NONE))


def by_head(high: mx.array, low: mx.array, e: mx.array, repeat: int) -> State:
    """Planes [rows, heads, D] as [2, heads·repeat, rows, D]; exponents [heads·repeat, rows]."""
    planes = mx.repeat(mx.swapaxes(mx.stack([high, low]), 1, 2), repeat, axis=1)
    return planes, mx.repeat(e.T, repeat, axis=0).astype(mx.int32)


def attention(
    q_high: mx.array, q_low: mx.array, q_exponent: mx.array, k_high: mx.array, k_low: mx.array,
    k_exponent: mx.array, v_high: mx.array, v_low: mx.array, v_exponent: mx.array,
    positions: mx.array, sink: mx.array, factors: mx.array, *, window: int,
) -> mx.array:  # fmt: skip
    """Queries [T, H, D] over a cache [S, G, D]; a sink of no elements means none."""
    (t, h, _), group = q_high.shape, q_high.shape[1] // k_high.shape[1]
    q = by_head(q_high, q_low, q_exponent, 1)
    k = by_head(k_high, k_low, k_exponent, group)
    v = by_head(v_high, v_low, v_exponent, group)
    last = int(positions.max()) + 1
    first = max(int(positions.min()) + 1 - window, 0) if window else 0

    def empty(width: int) -> State:
        return mx.zeros((h, t, width)), mx.full((h, t, 1), NONE, mx.int32)

    total, sums = empty(1), empty(v_high.shape[2])
    for start in range(first // 1024 * 1024, last, 1024):
        l, o = empty(1), empty(v_high.shape[2])  # noqa: E741
        for tile in range(max(start, first // 64 * 64), min(start + 1024, last), 64):
            here = slice(tile, min(tile + 64, last))
            key = mx.arange(here.start, here.stop, dtype=mx.int32)
            seen = key <= positions[:, None]
            if window:
                seen = mx.logical_and(seen, key > positions[:, None] - window)
            k_rows = k[0][:, :, here], k[1][:, here]
            v_rows = v[0][:, :, here], v[1][:, here]
            mass, values = tile_states(q, k_rows, v_rows, seen, factors)
            l, o = combine(l, mass), combine(o, values)  # noqa: E741
        total, sums = combine(total, l), combine(sums, o)
    some = sums[1] > NONE
    if sink.size:
        kappa, fraction = weight_of(sink * factors[1])
        bias = (fraction * 2097152.0)[:, None, None], kappa[:, None, None]
        total = combine(total, bias)
    n = mx.minimum(mx.maximum(sums[1] - total[1] + 7, -126), 127)
    y = snapped((sums[0] * (1.0 / mx.where(some, total[0], 1.0))) * exp2_int(n))
    return mx.swapaxes(mx.where(some, y, 0.0), 0, 1)
