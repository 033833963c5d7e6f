# ruff: noqa: ANN001, ANN201  (Triton reads annotations itself)
"""Attention of the contract in Triton: int8 tensor-core dots, integer exponents, base 2."""

from __future__ import annotations

import triton
import triton.language as tl

from stacks.triton_rows import split_planes
from stacks.triton_scalar import exp2_int, exp2g, rint, round_three_planes, snapped

NONE = tl.constexpr(-(1 << 20))
"""Exponent of an empty state, below every real one."""


@triton.jit
def delta(n):
    """2ⁿ, or 0 below −60."""
    return tl.where(n < -60, 0.0, exp2_int(tl.maximum(n, -60)))


@triton.jit
def weight_of(s):
    """(κ, g) with 2^s = g·2^κ, |s| clamped at 16384."""
    s = tl.minimum(tl.maximum(s, -16384.0), 16384.0)
    k = rint(s)
    return k.to(tl.int32), exp2g(s - k)


@triton.jit
def dot_planes(ah, al, bh, bl):
    """RN of the integer dots of (ah, al) and (bh, bl)."""
    high = tl.dot(ah, bh, out_dtype=tl.int32)
    middle = tl.dot(ah, bl, out_dtype=tl.int32)
    middle = tl.dot(al, bh, middle, out_dtype=tl.int32)
    return round_three_planes(high, middle, tl.dot(al, bl, out_dtype=tl.int32))


@triton.jit
def attention(
    qh, ql, qe, kh, kl, ke, vh, vl, ve, positions, sink, factor, out, T, S, window,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, SINK: tl.constexpr,
):  # fmt: skip
    """BM queries of one head; q planes [T, H, D], k and v planes [S, G, D], out [T, H, D].

    `factor` holds RN(scale·log₂e) and RN(log₂e). Every key tile the queries see is computed once;
    a query that sees none of its keys keeps its state.
    """
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    h = tl.program_id(1)
    g = h // (H // G)
    d, key = tl.arange(0, D), tl.arange(0, 64)
    query = m < T
    position = tl.load(positions + m, mask=query, other=-1)
    at = (m[:, None] * H + h) * D + d[None, :]
    q_high = tl.load(qh + at, mask=query[:, None], other=0)
    q_low = tl.load(ql + at, mask=query[:, None], other=0)
    q_exponent = tl.load(qe + m * H + h, mask=query, other=0)
    c = tl.load(factor)
    total_exponent = tl.full((BM,), NONE, tl.int32)
    total = tl.zeros((BM,), tl.float32)
    sum_exponent = tl.full((BM,), NONE, tl.int32)
    sums = tl.zeros((BM, D), tl.float32)
    first, last = 0, tl.max(position, 0) + 1
    if window > 0:
        oldest = tl.min(tl.where(query, position, 1 << 30), 0)
        first = tl.maximum(oldest + 1 - window, 0)
    for run in range(first // 1024 * 1024, last, 1024):
        M = tl.full((BM,), NONE, tl.int32)
        l = tl.zeros((BM,), tl.float32)  # noqa: E741
        N = tl.full((BM,), NONE, tl.int32)
        o = tl.zeros((BM, D), tl.float32)
        for tile in range(tl.maximum(run, first // 64 * 64), tl.minimum(run + 1024, last), 64):
            t = tile + key
            there = t < S
            k_at = (t[None, :] * G + g) * D + d[:, None]
            k_high = tl.load(kh + k_at, mask=there[None, :], other=0)
            k_low = tl.load(kl + k_at, mask=there[None, :], other=0)
            k_exponent = tl.load(ke + t * G + g, mask=there, other=0)
            seen = t[None, :] <= position[:, None]
            seen = seen & ((window == 0) | (t[None, :] > position[:, None] - window))
            dots = dot_planes(q_high, q_low, k_high, k_low)
            s = (dots * c) * exp2_int(q_exponent[:, None] + k_exponent[None, :])
            kappa, fraction = weight_of(s)
            v_exponent = tl.load(ve + t * G + g, mask=there, other=0)
            kappa = tl.where(seen, kappa, NONE)
            epsilon = tl.where(seen, kappa + v_exponent[None, :], NONE)
            K, E = tl.max(kappa, 1), tl.max(epsilon, 1)
            mass = rint(fraction * delta(21 + kappa - K[:, None])).to(tl.int32)
            L = tl.sum(tl.where(seen, mass, 0), 1)
            w = rint(fraction * delta(14 + epsilon - E[:, None])).to(tl.int32)
            w_high, w_low = split_planes(tl.where(seen, w, 0))
            v_at = (t[:, None] * G + g) * D + d[None, :]
            v_high = tl.load(vh + v_at, mask=there[:, None], other=0)
            v_low = tl.load(vl + v_at, mask=there[:, None], other=0)
            O = dot_planes(w_high, w_low, v_high, v_low)  # noqa: E741
            some = K > NONE
            top = tl.where(some, tl.maximum(M, K), M)
            l = l * delta(M - top) + L.to(tl.float32) * tl.where(some, delta(K - top), 0.0)  # noqa: E741
            M = top
            top = tl.where(some, tl.maximum(N, E), N)
            o = o * delta(N - top)[:, None] + O * tl.where(some, delta(E - top), 0.0)[:, None]
            N = top
        top = tl.maximum(total_exponent, M)
        total = total * delta(total_exponent - top) + l * delta(M - top)
        total_exponent = top
        top = tl.maximum(sum_exponent, N)
        sums = sums * delta(sum_exponent - top)[:, None] + o * delta(N - top)[:, None]
        sum_exponent = top
    if SINK:
        bias = tl.load(sink + h + tl.zeros((1,), tl.int32)) * tl.load(factor + 1)
        kappa, fraction = weight_of(bias)
        top = tl.maximum(total_exponent, kappa)
        total = total * delta(total_exponent - top) + (fraction * 2097152.0) * delta(kappa - top)
        total_exponent = top
    some = sum_exponent > NONE
    inverse = tl.div_rn(tl.full((BM,), 1.0, tl.float32), tl.where(some, total, 1.0))
    n = tl.minimum(tl.maximum(sum_exponent - total_exponent + 7, -126), 127)
    y = snapped((sums * inverse[:, None]) * exp2_int(n)[:, None])
    tl.store(out + at, tl.where(some[:, None], y, 0.0), mask=query[:, None])
