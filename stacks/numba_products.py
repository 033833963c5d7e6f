"""Matmul and attention of the contract in Numba: int64 sums on the CPU, float32 around them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from cortiq.numerics.quantise import from_planes
from stacks.base import Array
from stacks.numba_scalar import F32, ONE, ZERO, exp2_int, exp2g, rint, snapped, tanh

NONE = np.int64(-(1 << 20))
"""Exponent of an empty state, below every real one."""


@njit(nogil=True)
def code_at(codes: Array, n: int, k: int) -> Any:
    """Element k of weight row n, one plane or two."""
    if len(codes) == 1:
        return np.int64(codes[0, n, k])
    return np.int64(codes[0, n, k]) * 256 + np.int64(codes[1, n, k])


@njit(nogil=True)
def block_term(
    q: Array, codes: Array, scale: Any, offsets: Array, minimum: Any, n: int, start: int, stop: int,
    sub: int,
) -> Any:  # fmt: skip
    """t = RN(RN(I)·scale) [+ RN(RN(J)·minimum)] of columns start…stop."""
    i = j = 0
    for k in range(start, stop):
        i += q[k] * code_at(codes, n, k)
        if sub:
            j += q[k] * np.int64(offsets[n, k // sub])
    term = F32(i) * scale
    return term + F32(j) * minimum if sub else term


@njit(nogil=True)
def matmul(
    high: Array, low: Array, e: Array, codes: Array, scale: Array, offsets: Array, minimum: Array,
    block: int, sub: int,
) -> Array:  # fmt: skip
    """Activation planes [M, K] times code planes [1 or 2, N, K]; offsets only if sub > 0."""
    rows, columns = high.shape
    blocks = scale.shape[1]
    out = np.empty((rows, codes.shape[1]), F32)
    for m in range(rows):
        q = high[m].astype(np.int64) * 256 + low[m]
        for n in range(codes.shape[1]):
            y = ZERO
            for first in range(0, blocks, 8):
                run = ZERO
                for b in range(first, min(first + 8, blocks)):
                    stop = min(b * block + block, columns)
                    least = minimum[n, b] if sub else ZERO
                    run += block_term(
                        q, codes, scale[n, b], offsets, least, n, b * block, stop, sub
                    )
                y += run
            out[m, n] = snapped(y * exp2_int(e[m]))
    return out


@njit
def delta(n: Any) -> Any:
    """2ⁿ, or 0 below −60."""
    return ZERO if n < -60 else exp2_int(n)


@njit
def weight_of(s: Any) -> Any:
    """(κ, g) with 2^s = g·2^κ, |s| clamped at 16384."""
    s = min(max(s, F32(-16384)), F32(16384))
    k = rint(s)
    return np.int64(k), exp2g(s - k)


@njit
def combine(a: Any, m: Any, b: Any, n: Any) -> Any:
    """(a·2^m + b·2^n) at the larger exponent of the two, and that exponent."""
    top = max(m, n)
    return a * delta(m - top) + b * delta(n - top), top


@njit(nogil=True)
def score(dot: Any, e: Any, factors: Array) -> Any:
    """The base-2 score of an integer dot; factors are c, RN(log₂e), the cap C and RN(1/C)."""
    s = (F32(dot) * factors[0]) * exp2_int(e)
    return (factors[2] * tanh(s * factors[3])) * factors[1] if factors[2] else s


@njit(nogil=True)
def tile(q: Array, qe: Any, k: Array, ke: Array, v: Array, ve: Array, factors: Array) -> Any:
    """One query over the valid keys of one tile: (L, K, O, E), all integers."""
    n = len(k)
    kappa, fraction = np.empty(n, np.int64), np.empty(n, F32)
    K, E = NONE, NONE
    for i in range(n):
        dot = 0
        for j in range(len(q)):
            dot += q[j] * k[i, j]
        kappa[i], fraction[i] = weight_of(score(dot, qe + ke[i], factors))
        K = max(K, kappa[i])
        E = max(E, kappa[i] + ve[i])
    L, O = np.int64(0), np.zeros(v.shape[1], np.int64)  # noqa: E741
    for i in range(n):
        L += np.int64(rint(fraction[i] * delta(21 + kappa[i] - K)))
        w = np.int64(rint(fraction[i] * delta(14 + kappa[i] + ve[i] - E)))
        for j in range(v.shape[1]):
            O[j] += w * v[i, j]
    return L, K, O, E


@njit(nogil=True)
def one_query(
    q: Array, qe: Any, k: Array, ke: Array, v: Array, ve: Array, first: int, last: int,
    factors: Array, sink: Array,
) -> Array:  # fmt: skip
    """Keys first…last−1 in absolute tiles and runs; the sink, if there is one, last."""
    d = v.shape[1]
    total, M, sums, N = ZERO, NONE, np.zeros(d, F32), NONE
    for start in range(first // 1024 * 1024, last, 1024):
        l, m, o, n = ZERO, NONE, np.zeros(d, F32), NONE  # noqa: E741
        for t in range(max(start, first // 64 * 64), min(start + 1024, last), 64):
            a, b = max(t, first), min(t + 64, last)
            L, K, O, E = tile(q, qe, k[a:b], ke[a:b], v[a:b], ve[a:b], factors)  # noqa: E741
            l, m = combine(l, m, F32(L), K)  # noqa: E741
            for j in range(d):
                o[j], _ = combine(o[j], n, F32(O[j]), E)
            n = max(n, E)
        total, M = combine(total, M, l, m)
        for j in range(d):
            sums[j], _ = combine(sums[j], N, o[j], n)
        N = max(N, n)
    for bias in sink:
        kappa, fraction = weight_of(bias * factors[1])
        total, M = combine(total, M, fraction * F32(2097152), kappa)
    if N == NONE:
        return sums
    inverse = ONE / total
    shift = exp2_int(min(max(N - M + 7, -126), 127))
    for j in range(d):
        sums[j] = snapped((sums[j] * inverse) * shift)
    return sums


def attention(
    q_high: Array, q_low: Array, q_exponent: Array, k_high: Array, k_low: Array, k_exponent: Array,
    v_high: Array, v_low: Array, v_exponent: Array, positions: Array, sink: Array, factors: Array,
    window: int,
) -> Array:  # fmt: skip
    """Queries [T, H, D] over a cache [S, G, D]; a sink of no elements means none."""
    q = from_planes(q_high, q_low).astype(np.int64)
    k = from_planes(k_high, k_low).astype(np.int64)
    v = from_planes(v_high, v_low).astype(np.int64)
    qe, ke, ve = (e.astype(np.int64) for e in (q_exponent, k_exponent, v_exponent))
    out = np.empty((*q.shape[:2], v.shape[2]), F32)
    for t, h in np.ndindex(*q.shape[:2]):
        last = int(positions[t]) + 1
        first = max(0, last - window) if window else 0
        g = h // (q.shape[1] // k.shape[1])
        out[t, h] = one_query(
            q[t, h], qe[t, h], k[:, g], ke[:, g], v[:, g], ve[:, g], first, last, factors,
            sink[h : h + 1],
        )  # fmt: skip
    return out
