"""Products of few rows: each program reads its rows of the weight once, as words of four codes."""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.language import INTERPRETED, Tensor, device, kernel
from cortiq_triton.scalar import (
    exp2_int,
    outside,
    round_three_planes,
    round_two_planes,
    snapped,
)


@device
def dp4a_emulated(a: Tensor, b: Tensor) -> Tensor:
    """The dot of four signed bytes of two words each."""
    total = (a >> 24) * (b >> 24)
    for step in tl.static_range(3):
        total += ((a << (8 + 8 * step)) >> 24) * ((b << (8 + 8 * step)) >> 24)
    return total


@device
def dp4a_instruction(a: Tensor, b: Tensor) -> Tensor:
    """The same in one instruction."""
    return tl.inline_asm_elementwise(
        "dp4a.s32.s32 $0, $1, $2, 0;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1
    )


dp4a = dp4a_emulated if INTERPRETED else dp4a_instruction


@device
def widened(half: Tensor) -> Tensor:
    """f16 bits (int16) as float32, by integers; subnormals are mantissa·2⁻²⁴."""
    bits = half.to(tl.int32)
    exponent, mantissa = (bits >> 10) & 31, bits & 1023
    small = (mantissa.to(tl.float32) * 5.9604644775390625e-08).to(tl.int32, bitcast=True)
    normal = ((exponent + 112) << 23) | (mantissa << 13)
    sign = (bits >> 15) << 31
    return (tl.where(exponent == 0, small, normal) | sign).to(tl.float32, bitcast=True)


@device
def load_scale(scale: Tensor, at: Tensor, mask: Tensor, FORM: tl.constexpr) -> Tensor:
    """Scales, float32, from the form in which they are stored; +0 outside."""
    if FORM == 0:
        return tl.load(scale + at, mask=mask, other=0.0)
    raw = tl.load(scale + at, mask=mask, other=0)
    if FORM == 1:
        return widened(raw)
    return (raw.to(tl.int32) << 16).to(tl.float32, bitcast=True)


@device
def add_in_order(y: Tensor, terms: Tensor, COUNT: tl.constexpr, SIZE: tl.constexpr) -> Tensor:
    """(((y + t₀) + t₁) + …) of y [SIZE] and terms [SIZE, COUNT], COUNT 1, 2, 4 or 8."""
    if COUNT == 1:
        return y + tl.reshape(terms, (SIZE,))
    if COUNT == 2:
        t0, t1 = tl.split(terms)
        return (y + t0) + t1
    if COUNT == 4:
        even, odd = tl.split(tl.reshape(terms, (SIZE, 2, 2)))
        t0, t2 = tl.split(even)
        t1, t3 = tl.split(odd)
        return (((y + t0) + t1) + t2) + t3
    even, odd = tl.split(tl.reshape(terms, (SIZE, 4, 2)))
    t04, t26 = tl.split(tl.reshape(even, (SIZE, 2, 2)))
    t15, t37 = tl.split(tl.reshape(odd, (SIZE, 2, 2)))
    t0, t4 = tl.split(t04)
    t2, t6 = tl.split(t26)
    t1, t5 = tl.split(t15)
    t3, t7 = tl.split(t37)
    return (((((((y + t0) + t1) + t2) + t3) + t4) + t5) + t6) + t7


@device
def runs_of(terms: Tensor, SIZE: tl.constexpr) -> Tensor:
    """Runs of eight terms [SIZE, 8], each from +0 on: [SIZE]."""
    return add_in_order(tl.full((SIZE,), 0.0, tl.float32), terms, 8, SIZE)


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


@kernel
def matvec_rows(
    codes: Tensor, scale: Tensor, qh: Tensor, ql: Tensor, qe: Tensor, index: Tensor, out: Tensor,
    faults: Tensor, R: Tensor, N: Tensor, KW: Tensor, plane: Tensor, per: Tensor, count: Tensor,
    group: Tensor, CHOICE: tl.constexpr, PLANES: tl.constexpr, RB: tl.constexpr, BN: tl.constexpr,
    BW: tl.constexpr,
) -> None:  # fmt: skip
    """out [R, N] of codes with a scale a row; KW words a row, `plane` words from plane to plane."""
    r, x, first = rows_of(index, R, per, count, N, CHOICE, RB)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    high = tl.full((RB, BN, BW), 0, tl.int32)
    middle = tl.full((RB, BN, BW), 0, tl.int32)
    low = tl.full((RB, BN, BW), 0, tl.int32)
    at = (first + n).to(tl.int64)[:, None] * KW
    for start in range(0, KW, BW):
        word = start + tl.arange(0, BW)
        seen = (n < N)[:, None] & (word < KW)[None, :]
        there = (r < R)[:, None] & (word < KW)[None, :]
        c = tl.load(codes + at + word[None, :], mask=seen, other=0)[None]
        q_at = x[:, None] * KW + word[None, :]
        hi = tl.load(qh + q_at, mask=there, other=0)[:, None]
        lo = tl.load(ql + q_at, mask=there, other=0)[:, None]
        high += dp4a(c, hi)
        if PLANES == 2:
            d = tl.load(codes + plane + at + word[None, :], mask=seen, other=0)[None]
            middle += dp4a(d, hi) + dp4a(c, lo)
            low += dp4a(d, lo)
        else:
            low += dp4a(c, lo)
    if PLANES == 2:
        dot = round_three_planes(tl.sum(high, 2), tl.sum(middle, 2), tl.sum(low, 2))
    else:
        dot = round_two_planes(tl.sum(high, 2), tl.sum(low, 2))
    y = dot * tl.load(scale + first + n, mask=n < N, other=0.0)[None, :]
    y = y * exp2_int(tl.load(qe + x, mask=r < R, other=0))[:, None]
    inside = (r < R)[:, None] & (n < N)[None, :]
    tl.store(out + r.to(tl.int64)[:, None] * N + n[None, :], snapped(y), mask=inside)
    tl.store(faults + (r // group)[:, None] + n[None, :] * 0, 1, mask=inside & outside(y))


@device
def sub_dots(
    codes: Tensor, plane: Tensor, n: Tensor, seen: Tensor, x: Tensor, live: Tensor, start: Tensor,
    KW: Tensor, NIBBLES: tl.constexpr, SUB: tl.constexpr, TILE: tl.constexpr, RB: tl.constexpr,
    BN: tl.constexpr,
) -> Tensor:  # fmt: skip
    """Σ code·q of each sub-block of TILE columns from word `start` on: int32 [RB, BN, TILE/SUB]."""
    if NIBBLES:
        g, j = tl.arange(0, TILE // 64), tl.arange(0, 8)
        word = (start // 2 + g * 8)[:, None] + j[None, :]
        mask = seen[:, None, None] & (word < KW // 2)[None, :, :]
        at = n[:, None, None] * (KW // 2) + word[None, :, :]
        w = tl.load(codes + at, mask=mask, other=0)[None]
        q = (start + g * 16)[:, None] + j[None, :]
        there = live[:, None, None] & (q < KW)[None, :, :]
        at = x[:, None, None] * KW + q[None, :, :]
        early = tl.load(plane + at, mask=there, other=0)[:, None]
        late = tl.load(plane + at + 8, mask=there, other=0)[:, None]
        shape = (RB, BN, TILE // 64, 32 // SUB, SUB // 4)
        first = tl.sum(tl.reshape(dp4a(w & 0x0F0F0F0F, early), shape), 4)
        second = tl.sum(tl.reshape(dp4a((w >> 4) & 0x0F0F0F0F, late), shape), 4)
        both = tl.permute(tl.join(first, second), (0, 1, 2, 4, 3))
        return tl.reshape(both, (RB, BN, TILE // SUB))
    s, j = tl.arange(0, TILE // SUB), tl.arange(0, SUB // 4)
    word = (start + s * (SUB // 4))[:, None] + j[None, :]
    mask = seen[:, None, None] & (word < KW)[None, :, :]
    w = tl.load(codes + n[:, None, None] * KW + word[None, :, :], mask=mask, other=0)[None]
    there = live[:, None, None] & (word < KW)[None, :, :]
    q = tl.load(plane + x[:, None, None] * KW + word[None, :, :], mask=there, other=0)[:, None]
    return tl.sum(dp4a(w, q), 3)


@device
def sub_sums(
    qs: Tensor, x: Tensor, live: Tensor, start: Tensor, KW: Tensor, SUB: tl.constexpr,
    TILE: tl.constexpr,
) -> Tensor:  # fmt: skip
    """Σq of each sub-block: int32 [RB, TILE/SUB]; qs holds those of 16 columns."""
    s = start // 4 + tl.arange(0, TILE // SUB) * (SUB // 16)
    there = live[:, None] & (s < KW // 4)[None, :]
    at = x[:, None] * (KW // 4) + s[None, :]
    total = tl.load(qs + at, mask=there, other=0)
    if SUB == 32:
        total += tl.load(qs + at + 1, mask=there, other=0)
    return total


@kernel
def matvec_blocks(
    codes: Tensor, scale: Tensor, minimum: Tensor, sub_scales: Tensor, offsets: Tensor, qh: Tensor,
    ql: Tensor, qe: Tensor, qs: Tensor, index: Tensor, out: Tensor, faults: Tensor, R: Tensor,
    N: Tensor, KW: Tensor, blocks: Tensor, per: Tensor, count: Tensor, group: Tensor,
    CHOICE: tl.constexpr, NIBBLES: tl.constexpr, BLOCK: tl.constexpr, SUB: tl.constexpr,
    SCALED: tl.constexpr, MINIMUM: tl.constexpr, OFFSETS: tl.constexpr, BIAS: tl.constexpr,
    FORM: tl.constexpr, LOW_FORM: tl.constexpr, RB: tl.constexpr, BN: tl.constexpr,
    TILE: tl.constexpr,
) -> None:  # fmt: skip
    """out [R, N] of codes in blocks of 32 or 256 columns.

    SUB columns (16 or 32) are summed together; SCALED: times an integer. TILE is a multiple of 256.
    """
    r, x, first = rows_of(index, R, per, count, N, CHOICE, RB)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    at, live, seen = (first + n).to(tl.int64), r < R, n < N
    y = tl.full((RB * BN,), 0.0, tl.float32)
    run = tl.full((RB * BN,), 0.0, tl.float32)
    for start in range(0, KW, TILE // 4):
        hi = sub_dots(codes, qh, at, seen, x, live, start, KW, NIBBLES, SUB, TILE, RB, BN)
        lo = sub_dots(codes, ql, at, seen, x, live, start, KW, NIBBLES, SUB, TILE, RB, BN)
        s = start * 4 // SUB + tl.arange(0, TILE // SUB)
        sub_at = at[:, None] * (KW * 4 // SUB) + s[None, :]
        subs = seen[:, None] & (s < KW * 4 // SUB)[None, :]
        sums = sub_sums(qs, x, live, start, KW, SUB, TILE)[:, None, :]
        lo -= BIAS * sums
        if SCALED:
            factor = tl.load(sub_scales + sub_at, mask=subs, other=0).to(tl.int32)[None]
            hi, lo = hi * factor, lo * factor
        if BLOCK == 256:
            hi = tl.sum(tl.reshape(hi, (RB, BN, TILE // 256, 256 // SUB)), 3)
            lo = tl.sum(tl.reshape(lo, (RB, BN, TILE // 256, 256 // SUB)), 3)
            dot = round_two_planes(hi, lo)
        else:
            dot = (hi * 256 + lo).to(tl.float32)
        b = start * 4 // BLOCK + tl.arange(0, TILE // BLOCK)
        block_at = at[:, None] * blocks + b[None, :]
        known = seen[:, None] & (b < blocks)[None, :]
        term = dot * load_scale(scale, block_at, known, FORM)[None]
        if MINIMUM:
            j = sums
            if OFFSETS:
                factor = tl.load(offsets + sub_at, mask=subs, other=0).to(tl.int32)[None]
                j = tl.sum(tl.reshape(factor * sums, (RB, BN, TILE // BLOCK, BLOCK // SUB)), 3)
            term = term + j.to(tl.float32) * load_scale(minimum, block_at, known, LOW_FORM)[None]
        if BLOCK == 32:
            runs = runs_of(tl.reshape(term, (RB * BN * (TILE // 256), 8)), RB * BN * (TILE // 256))
            y = add_in_order(y, tl.reshape(runs, (RB * BN, TILE // 256)), TILE // 256, RB * BN)
        else:
            run = add_in_order(run, tl.reshape(term, (RB * BN, TILE // 256)), TILE // 256, RB * BN)
            if (start * 4 + TILE) % 2048 == 0:
                y = y + run
                run = run * 0.0
    y = tl.reshape(y + run, (RB, BN))
    y = y * exp2_int(tl.load(qe + x, mask=live, other=0))[:, None]
    inside = live[:, None] & seen[None, :]
    tl.store(out + r.to(tl.int64)[:, None] * N + n[None, :], snapped(y), mask=inside)
    tl.store(faults + (r // group)[:, None] + n[None, :] * 0, 1, mask=inside & outside(y))
