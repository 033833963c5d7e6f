"""Products of few rows: each program reads its rows of the weight once, as words of four codes."""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.language import INTERPRETED, Tensor, begin, constant, device, kernel
from cortiq_triton.scalar import (
    LARGEST_BITS,
    exp2_int,
    magnitude_bits,
    round_three_planes,
    round_two_planes,
    snapped,
)

LARGE_TILE = constant(4096)
"""Outputs of a program from which it looks for faults once for all of them."""


@device
def dp4a_emulated(a: Tensor, b: Tensor) -> Tensor:
    """The dot of four signed bytes of two words each."""
    total = (a >> 24) * (b >> 24)
    for step in tl.static_range(3):
        total += ((a << (8 + 8 * step)) >> 24) * ((b << (8 + 8 * step)) >> 24)
    return total


@device
def dp4a_instruction(a: Tensor, b: Tensor) -> Tensor:
    """The dot of four signed bytes of two words each, in one instruction."""
    return tl.inline_asm_elementwise(
        "dp4a.s32.s32 $0, $1, $2, 0;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1
    )


dp4a = dp4a_emulated if INTERPRETED else dp4a_instruction


@device
def dp4a_onto_emulated(a: Tensor, b: Tensor, total: Tensor) -> Tensor:
    """total plus the dot of four signed bytes of two words each."""
    return total + dp4a_emulated(a, b)


@device
def dp4a_onto_instruction(a: Tensor, b: Tensor, total: Tensor) -> Tensor:
    """total plus the dot of four signed bytes of two words each, in one instruction."""
    return tl.inline_asm_elementwise(
        "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, total], dtype=tl.int32, is_pure=True,
        pack=1,
    )  # fmt: skip


dp4a_onto = dp4a_onto_emulated if INTERPRETED else dp4a_onto_instruction


@device
def in_form(raw: Tensor, FORM: tl.constexpr) -> Tensor:
    """Scales, float32, of what holds them."""
    if FORM == 0 or FORM == 3:  # of E4M3 bytes, `e4m3_scales` has made floats
        return raw
    if FORM == 1:
        return raw.to(tl.float16, bitcast=True).to(tl.float32)  # keeps subnormal ones
    return (raw.to(tl.int32) << 16).to(tl.float32, bitcast=True)


@device
def rounded_once_emulated(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """RN(x·y + z) of float32 numbers that float64 multiplies and adds exactly."""
    return (x.to(tl.float64) * y.to(tl.float64) + z.to(tl.float64)).to(tl.float32)


rounded_once = rounded_once_emulated if INTERPRETED else tl.fma


@device
def e4m3_factors(factors: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    """Load the two floats of rows that make E4M3 scales (`scales`)."""
    return tl.load(factors + row * 2), tl.load(factors + row * 2 + 1)


@device
def e4m3_scales(byte: Tensor, upper: Tensor, lower: Tensor) -> Tensor:
    """Scales, float32, of E4M3 bytes, by the factors of their rows."""
    e = (byte.to(tl.int32) << 20).to(tl.float32, bitcast=True)
    return rounded_once(e, lower, e * upper)


@device
def load_scale(scale: Tensor, at: Tensor, mask: Tensor, FORM: tl.constexpr) -> Tensor:
    """Scales, float32, from the form in which they are stored; +0 outside."""
    return in_form(tl.load(scale + at, mask=mask, other=0), FORM)


@device
def place_of(
    r: Tensor, n: Tensor, R: Tensor, N: Tensor, cut: Tensor, cut2: Tensor, PARTS: tl.constexpr
) -> Tensor:
    """Place of output n of row r: several matrices' outputs, up to `cut`, `cut2` and N, are one
    array [R, …] after the other.
    """
    at = r.to(tl.int64)[:, None] * N + n[None, :]
    if PARTS > 1:
        start = tl.where(n >= cut2, cut2, tl.where(n >= cut, cut, 0))
        size = tl.where(n >= cut2, N - cut2, tl.where(n >= cut, cut2 - cut, cut))
        at = r.to(tl.int64)[:, None] * size[None, :] + (start * R + n - start)[None, :]
    return at


@device
def end(
    y: Tensor, r: Tensor, n: Tensor, inside: Tensor, out: Tensor, faults: Tensor, bias: Tensor,
    residual: Tensor, R: Tensor, N: Tensor, group: Tensor, cut: Tensor, cut2: Tensor,
    BIASED: tl.constexpr, RESIDUAL: tl.constexpr, PARTS: tl.constexpr,
) -> None:  # fmt: skip
    """Store snap(y), perhaps with a bias and then a residual added, each snapped; flag faults.

    A large tile looks for a fault once, in the largest magnitude of all: else each output had a
    store whose condition hardly ever holds.
    """
    at = place_of(r, n, R, N, cut, cut2, PARTS)
    bits = magnitude_bits(y)
    y = snapped(y)
    if BIASED:
        y = y + tl.load(bias + n, mask=n < N, other=0.0)[None, :]
        bits = tl.maximum(bits, magnitude_bits(y))
        y = snapped(y)
    if RESIDUAL:
        y = tl.load(residual + at, mask=inside, other=0.0) + y
        bits = tl.maximum(bits, magnitude_bits(y))
        y = snapped(y)
    flags = faults + (r // group)[:, None] + n[None, :] * 0
    if y.shape[0] * y.shape[1] < LARGE_TILE:  # noqa: SIM114 - known when it is compiled
        tl.store(flags, 1, mask=inside & (bits >= LARGEST_BITS))
    elif tl.max(tl.max(bits, 0), 0) >= LARGEST_BITS:
        tl.store(flags, 1, mask=inside & (bits >= LARGEST_BITS))
    tl.store(out + at, y, mask=inside)


@device
def rows_of(
    index: Tensor, R: Tensor, per: Tensor, count: Tensor, N: Tensor, CHOICE: tl.constexpr,
    RB: tl.constexpr,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Rows of the output and of x that a program computes, and the weight's first row for them.

    CHOICE 0: RB rows in turn; 1: one of `count` heads; 2: the expert that `index` names. Output
    rows share a row of x by `per`.
    """
    r = tl.program_id(1) * RB + tl.arange(0, RB)
    first = r * 0
    if CHOICE == 1:
        first = r % count * N
    elif CHOICE == 2:
        first = tl.load(index + r, mask=r < R, other=0) * N
    return r, r // per, tl.max(first, 0)


@device
def quarters(words: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Every fourth word of the last axis, from 0, 1, 2 and 3 on: those of one 16-byte load."""
    a: tl.constexpr = words.shape[0]
    b: tl.constexpr = words.shape[1]
    count: tl.constexpr = words.shape[2] // 4
    even, odd = tl.split(tl.reshape(words, (a, b, count, 2, 2)))
    w0, w2 = tl.split(even)
    w1, w3 = tl.split(odd)
    return w0, w1, w2, w3


@device
def words_dot(a: Tensor, b: Tensor, total: Tensor) -> Tensor:
    """total [RB, BN, BW/4] with the dots of words a [1, BN, BW] and b [RB, 1, BW] added."""
    a0, a1, a2, a3 = quarters(a)
    b0, b1, b2, b3 = quarters(b)
    return dp4a_onto(a3, b3, dp4a_onto(a2, b2, dp4a_onto(a1, b1, dp4a_onto(a0, b0, total))))


@kernel
def matvec_rows(
    codes: Tensor, scale: Tensor, qh: Tensor, ql: Tensor, qe: Tensor, index: Tensor, bias: Tensor,
    residual: Tensor, out: Tensor, faults: Tensor, R: Tensor, N: Tensor, KW: Tensor,
    stride: Tensor, plane: Tensor, cut: Tensor, cut2: Tensor, per: Tensor, count: Tensor,
    group: Tensor,
    CHOICE: tl.constexpr, PLANES: tl.constexpr, BIASED: tl.constexpr, RESIDUAL: tl.constexpr,
    PARTS: tl.constexpr, RB: tl.constexpr, BN: tl.constexpr, BW: tl.constexpr,
) -> None:  # fmt: skip
    """out [R, N] of codes with a scale a row; KW words a row, of x `stride`, `plane` words
    from plane to plane.

    A program has the next words of its rows on the way while it multiplies; the first ones are
    asked for before the launch that makes x has ended.
    """
    if CHOICE == 2:
        begin()  # an earlier launch names the expert
    r, x, first = rows_of(index, R, per, count, N, CHOICE, RB)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    high = tl.full((RB, BN, BW // 4), 0, tl.int32)
    middle = tl.full((RB, BN, BW // 4), 0, tl.int32)
    low = tl.full((RB, BN, BW // 4), 0, tl.int32)
    words = codes + (first + n).to(tl.int64)[:, None] * KW
    seen, word = (n < N)[:, None], tl.arange(0, BW)
    c = tl.load(words + word[None, :], mask=seen & (word < KW)[None, :], other=0)
    d = c
    if PLANES == 2:
        d = tl.load(words + plane + word[None, :], mask=seen & (word < KW)[None, :], other=0)
    s = tl.load(scale + first + n, mask=n < N, other=0.0)
    if CHOICE != 2:
        begin()
    for start in range(0, KW, BW):
        there = (r < R)[:, None] & (start + word < KW)[None, :]
        q_at = x[:, None] * stride + (start + word)[None, :]
        hi = tl.load(qh + q_at, mask=there, other=0)[:, None]
        lo = tl.load(ql + q_at, mask=there, other=0)[:, None]
        ahead = start + BW + word
        more = seen & (ahead < KW)[None, :]
        c_next = tl.load(words + ahead[None, :], mask=more, other=0)
        high = words_dot(c[None], hi, high)
        if PLANES == 2:
            d_next = tl.load(words + plane + ahead[None, :], mask=more, other=0)
            middle = words_dot(c[None], lo, words_dot(d[None], hi, middle))
            low = words_dot(d[None], lo, low)
            d = d_next
        else:
            low = words_dot(c[None], lo, low)
        c = c_next
    if PLANES == 2:
        dot = round_three_planes(tl.sum(high, 2), tl.sum(middle, 2), tl.sum(low, 2))
    else:
        dot = round_two_planes(tl.sum(high, 2), tl.sum(low, 2))
    y = dot * s[None, :]
    y = y * exp2_int(tl.load(qe + x, mask=r < R, other=0))[:, None]
    inside = (r < R)[:, None] & (n < N)[None, :]
    end(
        y, r, n, inside, out, faults, bias, residual, R, N, group, cut, cut2, BIASED, RESIDUAL,
        PARTS,
    )  # fmt: skip
