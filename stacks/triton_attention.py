"""Attention of the contract in Triton: int8 tensor-core dots, integer exponents, base 2."""

from __future__ import annotations

import triton
import triton.language as tl

from cortiq_triton.language import Tensor
from cortiq_triton.scalar import (
    exp2_int,
    exp2g,
    rint,
    round_three_planes,
    snapped,
    split_planes,
    tanh,
)

NONE = tl.constexpr(-(1 << 20))
"""Exponent of an empty state, below every real one."""


@triton.jit
def delta(n: Tensor) -> Tensor:
    """2ⁿ, or 0 below −60."""
    return tl.where(n < -60, 0.0, exp2_int(tl.maximum(n, -60)))


@triton.jit
def combine(a: Tensor, m: Tensor, b: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """(a·2^m + b·2^n) at the larger exponent of the two, and that exponent."""
    top = tl.maximum(m, n)
    return a * delta(m - top) + b * delta(n - top), top


@triton.jit
def weight_of(score: Tensor) -> tuple[Tensor, Tensor]:
    """(κ, g) with 2^s = g·2^κ, |s| clamped at 16384."""
    s = tl.minimum(tl.maximum(score, -16384.0), 16384.0)
    k = rint(s)
    return k.to(tl.int32), exp2g(s - k)


@triton.jit
def dot_planes(ah: Tensor, al: Tensor, bh: Tensor, bl: Tensor) -> Tensor:
    """RN of the integer dots of (ah, al) and (bh, bl)."""
    high = tl.dot(ah, bh, out_dtype=tl.int32)
    middle = tl.dot(ah, bl, out_dtype=tl.int32)
    middle = tl.dot(al, bh, middle, out_dtype=tl.int32)
    return round_three_planes(high, middle, tl.dot(al, bl, out_dtype=tl.int32))


@triton.jit
def load_rows(
    high: Tensor, low: Tensor, exponent: Tensor, row: Tensor, inside: Tensor, D: tl.constexpr
) -> tuple[Tensor, Tensor, Tensor]:
    """Planes [rows, D] and exponents [rows] of some rows; 0 outside."""
    at, mask = row[:, None] * D + tl.arange(0, D)[None, :], inside[:, None]
    planes = tl.load(high + at, mask=mask, other=0), tl.load(low + at, mask=mask, other=0)
    return planes[0], planes[1], tl.load(exponent + row, mask=inside, other=0)


@triton.jit
def score(
    qh: Tensor, ql: Tensor, qe: Tensor, kh: Tensor, kl: Tensor, ke: Tensor, factors: Tensor,
    CAPPED: tl.constexpr,
) -> Tensor:  # fmt: skip
    """Base-2 scores [queries, keys] before the clamp; factors as in `attention`."""
    dots = dot_planes(qh, ql, tl.trans(kh), tl.trans(kl))
    s = (dots * tl.load(factors)) * exp2_int(qe[:, None] + ke[None, :])
    if CAPPED:
        s = (tl.load(factors + 2) * tanh(s * tl.load(factors + 3))) * tl.load(factors + 1)
    return s


@triton.jit
def tile_states(
    s: Tensor, seen: Tensor, vh: Tensor, vl: Tensor, ve: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """RN(L), K, RN(O), E of one tile from its scores; zeros at NONE where nothing is seen."""
    kappa, fraction = weight_of(s)
    kappa = tl.where(seen, kappa, NONE)
    epsilon = tl.where(seen, kappa + ve[None, :], NONE)
    K, E = tl.max(kappa, 1)[:, None], tl.max(epsilon, 1)[:, None]
    mass = rint(fraction * delta(21 + kappa - K)).to(tl.int32)
    L = tl.sum(tl.where(seen, mass, 0), 1)[:, None]
    w = rint(fraction * delta(14 + epsilon - E)).to(tl.int32)
    high, low = split_planes(tl.where(seen, w, 0))
    return L.to(tl.float32), K, dot_planes(high, low, vh, vl), E


@triton.jit
def attention(
    qh: Tensor, ql: Tensor, qe: Tensor, kh: Tensor, kl: Tensor, ke: Tensor, vh: Tensor, vl: Tensor,
    ve: Tensor, positions: Tensor, sink: Tensor, factors: Tensor, out: Tensor, T: Tensor,
    S: Tensor, window: Tensor, H: tl.constexpr, G: tl.constexpr, DK: tl.constexpr,
    DV: tl.constexpr, BM: tl.constexpr, SINK: tl.constexpr, CAPPED: tl.constexpr,
) -> None:  # fmt: skip
    """BM queries of one head: q planes [T, H, DK] over k [S, G, DK], v [S, G, DV] to [T, H, DV].

    `factors` holds c, RN(log₂e), the soft cap C and RN(1/C). Every tile that one of the queries
    sees is computed for all of them; a query that sees none of its keys adds zero at NONE.
    """
    m, h = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1)
    g = h // (H // G)
    query = m < T
    position = tl.load(positions + m, mask=query, other=-1)
    q_high, q_low, q_exponent = load_rows(qh, ql, qe, m * H + h, query, DK)
    total, M = tl.zeros((BM, 1), tl.float32), tl.full((BM, 1), NONE, tl.int32)
    sums, N = tl.zeros((BM, DV), tl.float32), tl.full((BM, 1), NONE, tl.int32)
    first, last = 0, tl.max(position, 0) + 1
    if window > 0:
        first = tl.maximum(tl.min(tl.where(query, position, last), 0) + 1 - window, 0)
    for run in range(first // 1024 * 1024, last, 1024):
        mass, mm = tl.zeros((BM, 1), tl.float32), tl.full((BM, 1), NONE, tl.int32)
        o, nn = tl.zeros((BM, DV), tl.float32), tl.full((BM, 1), NONE, tl.int32)
        for tile in range(tl.maximum(run, first // 64 * 64), tl.minimum(run + 1024, last), 64):
            t = tile + tl.arange(0, 64)
            k_high, k_low, k_exponent = load_rows(kh, kl, ke, t * G + g, t < S, DK)
            v_high, v_low, v_exponent = load_rows(vh, vl, ve, t * G + g, t < S, DV)
            seen = t[None, :] <= position[:, None]
            seen = seen & ((window == 0) | (t[None, :] > position[:, None] - window))
            s = score(q_high, q_low, q_exponent, k_high, k_low, k_exponent, factors, CAPPED)
            L, K, O, E = tile_states(s, seen, v_high, v_low, v_exponent)  # noqa: E741
            mass, mm = combine(mass, mm, L, K)
            o, nn = combine(o, nn, O, E)
        total, M = combine(total, M, mass, mm)
        sums, N = combine(sums, N, o, nn)
    some = N > NONE
    if SINK:
        bias = tl.load(sink + h + tl.zeros((1, 1), tl.int32)) * tl.load(factors + 1)
        kappa, fraction = weight_of(bias)
        total, M = combine(total, M, fraction * 2097152.0, kappa)
    inverse = tl.div_rn(tl.full((BM, 1), 1.0, tl.float32), tl.where(some, total, 1.0))
    shift = exp2_int(tl.minimum(tl.maximum(N - M + 7, -126), 127))
    y = tl.where(some, snapped((sums * inverse) * shift), 0.0)
    at = (m[:, None] * H + h) * DV + tl.arange(0, DV)[None, :]
    tl.store(out + at, y, mask=query[:, None])
