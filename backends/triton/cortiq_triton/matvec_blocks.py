"""Products of few rows with weights in blocks: a lane of a warp owns 32 columns of a weight row.

A lane reads its 32 columns (16 bytes of nibbles, or 32 of codes) as words, meets them with the
planes of x by dp4a, and has integers left. Only these, a few per 32 columns, change lanes: eight
neighbours come together in one lane, which adds their terms in order.
"""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.e2m1 import RAISE, raised_halves
from cortiq_triton.language import Tensor, begin, device, kernel
from cortiq_triton.matvec import e4m3_factors, e4m3_scales, end, in_form, words_dot
from cortiq_triton.matvec_loads import halves_of, interleaved, step_at
from cortiq_triton.packing import raised
from cortiq_triton.scalar import exp2_int, round_two_planes
from cortiq_triton.sums import add_in_order, many_in_order, runs_of
from cortiq_triton.wide_codes import e4m3_onto, table_onto, without_lift


@device
def half_sums(qs: Tensor, unit: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """Σq of the first and the last 16 columns of units, [T, 1] each; 0 past the end."""
    at = unit[:, None] * 2 + tl.arange(0, 2)[None, :]
    first, second = tl.split(tl.load(qs + at, mask=inside[:, None], other=0))
    return first[:, None], second[:, None]


@device
def without_bias(total: Tensor, BIAS: tl.constexpr) -> tuple[Tensor, Tensor]:
    """−BIAS·Σq of both planes of x: what sums of codes that are BIAS too large start from, so that
    sub-scales and sums of 256 columns leave both in int32.
    """
    upper = (total + 128) >> 8
    return 0 - BIAS * upper, BIAS * ((upper << 8) - total)


@device
def starts(
    qs: Tensor, unit: Tensor, inside: Tensor, BIAS: tl.constexpr, SUB: tl.constexpr,
    MINIMUM: tl.constexpr, T: tl.constexpr,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Σq of the first and the last 16 columns of units, or of all 32, and what their sums of both
    planes start from, [T, 1] each; zeros where nothing needs them.
    """
    j = tl.full((T, 1), 0, tl.int32)
    j_second = j
    if BIAS or MINIMUM:
        j, j_second = half_sums(qs, unit, inside)
        if SUB == 32:
            j += j_second
    hi, lo = without_bias(j, BIAS)
    hi_second, lo_second = without_bias(j_second, BIAS)
    return j, j_second, hi, lo, hi_second, lo_second


@device
def plane_dots(
    first: Tensor, second: Tensor, plane: Tensor, unit: Tensor, inside: Tensor, start: Tensor,
    start_second: Tensor, SUB: tl.constexpr, BN: tl.constexpr, T: tl.constexpr,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """start + Σ code·q of the first and the last 16 columns, [T, BN] each; if they share a factor,
    the first is of all 32.
    """
    q_first, q_second = halves_of(plane, unit, inside[:, None, None])
    early = tl.broadcast_to(start[:, :, None], (T, BN, 1))
    late = tl.broadcast_to(start_second[:, :, None], (T, BN, 1))
    early = words_dot(first, q_first, early)
    late = words_dot(second, q_second, early if SUB == 32 else late)
    if SUB == 32:
        early = late
    return tl.reshape(early, (T, BN)), tl.reshape(late, (T, BN))


@device
def half_unit_sums(
    first: Tensor, second: Tensor, qh: Tensor, ql: Tensor, qs: Tensor, unit: Tensor,
    inside: Tensor, BN: tl.constexpr, T: tl.constexpr,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Σ code·q of both planes of blocks of 16 columns of E2M1, int32 [2T, BN] each."""
    first, second = raised_halves(first)
    j, j_second = half_sums(qs, unit, inside)
    hi0, lo0 = without_bias(j, RAISE)
    hi1, lo1 = without_bias(j_second, RAISE)
    hi, hi_second = plane_dots(first, second, qh, unit, inside, hi0, hi1, 16, BN, T)
    lo, lo_second = plane_dots(first, second, ql, unit, inside, lo0, lo1, 16, BN, T)
    return interleaved(hi, hi_second, BN, T), interleaved(lo, lo_second, BN, T)


@device
def wide_sums(
    first: Tensor, second: Tensor, qh: Tensor, ql: Tensor, unit: Tensor, inside: Tensor,
    WIDE: tl.constexpr, BN: tl.constexpr, T: tl.constexpr,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Integers of units of wide codes, as 256·upper + lower: int32 [T, BN] each."""
    high, high_second = halves_of(qh, unit, inside[:, None, None])
    low, low_second = halves_of(ql, unit, inside[:, None, None])
    if WIDE == 1:  # sums of either plane are below 2³⁰
        upper = tl.broadcast_to(without_lift(high, high_second), (T, BN, 1))
        lower = tl.broadcast_to(without_lift(low, low_second), (T, BN, 1))
        upper, lower = e4m3_onto(first, high, low, upper, lower)
        upper, lower = e4m3_onto(second, high_second, low_second, upper, lower)
        upper, lower = tl.reshape(upper, (T, BN)), tl.reshape(lower, (T, BN))
    else:
        nothing = tl.full((T, BN), 0, tl.int32)
        upper, lower = table_onto(first, high, low, nothing, nothing, WIDE)
        upper, lower = table_onto(second, high_second, low_second, upper, lower, WIDE)
    return upper, lower


@device
def unit_sums(
    first: Tensor, second: Tensor, above: Tensor, above_second: Tensor, by: Tensor,
    by_second: Tensor, off: Tensor, off_second: Tensor, qh: Tensor, ql: Tensor, qs: Tensor,
    unit: Tensor, inside: Tensor, NIBBLES: tl.constexpr, HIGH: tl.constexpr, BLOCK: tl.constexpr,
    WIDE: tl.constexpr, SUB: tl.constexpr, SCALED: tl.constexpr, MINIMUM: tl.constexpr,
    OFFSETS: tl.constexpr, BIAS: tl.constexpr, E2M1: tl.constexpr, BN: tl.constexpr,
    T: tl.constexpr,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Integers of units, or of their halves for blocks of 16: 256·hi + lo, and J of minima."""
    if WIDE:
        hi, lo = wide_sums(first, second, qh, ql, unit, inside, WIDE, BN, T)
        j = hi
    elif BLOCK == 16:
        hi, lo = half_unit_sums(first, second, qh, ql, qs, unit, inside, BN, T)
        j = hi
    else:
        hi, lo, j = whole_unit_sums(
            first, second, above, above_second, by, by_second, off, off_second, qh, ql, qs, unit,
            inside, NIBBLES, HIGH, SUB, SCALED, MINIMUM, OFFSETS, BIAS, E2M1, BN, T,
        )  # fmt: skip
    return hi, lo, j


@device
def whole_unit_sums(
    first: Tensor, second: Tensor, above: Tensor, above_second: Tensor, by: Tensor,
    by_second: Tensor, off: Tensor, off_second: Tensor, qh: Tensor, ql: Tensor, qs: Tensor,
    unit: Tensor, inside: Tensor, NIBBLES: tl.constexpr, HIGH: tl.constexpr, SUB: tl.constexpr,
    SCALED: tl.constexpr, MINIMUM: tl.constexpr, OFFSETS: tl.constexpr, BIAS: tl.constexpr,
    E2M1: tl.constexpr, BN: tl.constexpr, T: tl.constexpr,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Integers of units: Σ scale·code·q of both planes and Σ offset·q, int32 [T, BN] each."""
    if E2M1:
        first, second = raised_halves(first)
    elif NIBBLES:
        first, second = first & 0x0F0F0F0F, (second >> 4) & 0x0F0F0F0F
    if HIGH:
        first, second = first | raised(above, 0, HIGH), second | raised(above_second, 1, HIGH)
    LESS: tl.constexpr = RAISE if E2M1 else BIAS
    j, j_second, hi0, lo0, hi1, lo1 = starts(qs, unit, inside, LESS, SUB, MINIMUM, T)
    hi, hi_second = plane_dots(first, second, qh, unit, inside, hi0, hi1, SUB, BN, T)
    lo, lo_second = plane_dots(first, second, ql, unit, inside, lo0, lo1, SUB, BN, T)
    if SCALED:
        hi, lo = hi * by.to(tl.int32), lo * by.to(tl.int32)
        if SUB == 16:
            hi += hi_second * by_second.to(tl.int32)
            lo += lo_second * by_second.to(tl.int32)
    if OFFSETS:
        j = j * off.to(tl.int32)
        if SUB == 16:
            j += j_second * off_second.to(tl.int32)
    elif MINIMUM:
        j = j + hi * 0
    return hi, lo, j


@device
def eights(parts: Tensor, SIZE: tl.constexpr) -> Tensor:
    """Sums of eight neighbours of the first axis of [T, BN]: [SIZE]."""
    parts = tl.reshape(tl.trans(parts), (SIZE, 8))
    return add_in_order(tl.full((SIZE,), 0, parts.dtype), parts, 8, SIZE)


@device
def terms_of(
    hi: Tensor, lo: Tensor, j: Tensor, d: Tensor, least: Tensor, upper: Tensor, lower: Tensor,
    BLOCK: tl.constexpr, WIDE: tl.constexpr, MINIMUM: tl.constexpr, FORM: tl.constexpr,
    LOW_FORM: tl.constexpr, SIZE: tl.constexpr,
) -> Tensor:  # fmt: skip
    """t = RN(I)·d [+ RN(J)·least] of each block: [BN, T], [BN, 2T] for blocks of 16, or [SIZE] for
    blocks of 256.
    """
    if WIDE:
        dot = round_two_planes(hi, lo)
    elif BLOCK <= 32:
        dot = (hi * 256 + lo).to(tl.float32)
    else:
        dot = round_two_planes(eights(hi, SIZE), eights(lo, SIZE))
    if FORM == 3:
        d = e4m3_scales(d, upper, lower)
    term = dot * in_form(d, FORM)
    if MINIMUM:
        if BLOCK == 256:
            j = eights(j, SIZE)
        term = term + j.to(tl.float32) * in_form(least, LOW_FORM)
    return tl.trans(term) if BLOCK <= 32 else term


@device
def added(
    y: Tensor, run: Tensor, term: Tensor, stop: Tensor, BLOCK: tl.constexpr, BN: tl.constexpr,
    T: tl.constexpr,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """y and the run under way after the terms of T units that end at unit `stop`."""
    COUNT: tl.constexpr = T * 32 // BLOCK
    if COUNT >= 8:
        SIZE: tl.constexpr = BN * COUNT // 8
        runs = tl.gather(runs_of(tl.reshape(term, (SIZE, 8)), SIZE), tl.arange(0, SIZE), 0)
        y = many_in_order(y, tl.reshape(runs, (BN, COUNT // 8)), COUNT // 8, BN)
    else:
        run = add_in_order(run, tl.reshape(term, (BN, COUNT)), COUNT, BN)
        if stop % 64 == 0:
            y = y + run
            run = run * 0.0
    return y, run


@device
def first_row(index: Tensor, N: Tensor, count: Tensor, CHOICE: tl.constexpr) -> Tensor:
    """The weight's first row for this program's row of the output, as in `rows_of`."""
    r = tl.program_id(1)
    first = r * 0
    if CHOICE == 1:
        first = r % count * N
    elif CHOICE == 2:
        begin()  # an earlier launch names the expert
        first = tl.load(index + r) * N
    return first


@kernel
def matvec_blocks(
    codes: Tensor, bits: Tensor, scale: Tensor, minimum: Tensor, sub_scales: Tensor,
    offsets: Tensor, qh: Tensor, ql: Tensor, qe: Tensor, qs: Tensor, index: Tensor, bias: Tensor,
    residual: Tensor, out: Tensor, faults: Tensor, R: Tensor, N: Tensor, units: Tensor,
    blocks: Tensor, cut: Tensor, cut2: Tensor, per: Tensor, count: Tensor, group: Tensor,
    CHOICE: tl.constexpr, BIASED: tl.constexpr, RESIDUAL: tl.constexpr, PARTS: tl.constexpr,
    NIBBLES: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr, SUB: tl.constexpr,
    SCALED: tl.constexpr, MINIMUM: tl.constexpr, OFFSETS: tl.constexpr, BIAS: tl.constexpr,
    E2M1: tl.constexpr, HIGH: tl.constexpr, FORM: tl.constexpr, LOW_FORM: tl.constexpr,
    SHARE: tl.constexpr, EVEN: tl.constexpr, ONCE: tl.constexpr, BN: tl.constexpr, T: tl.constexpr,
) -> None:  # fmt: skip
    """A row of out [R, N] by BN weight rows of `units` times 32 columns, T units at a time.

    Blocks have 16, 32 or 256 columns; SUB columns (16 or 32) share an integer factor where there is
    one. EVEN: units is a multiple of T; ONCE: at most T. The next units are on their way while
    these are multiplied, the first ones before the launch that makes x has ended.
    """
    r, first = tl.program_id(1), first_row(index, N, count, CHOICE)
    x, top = r // per, tl.program_id(0) * BN
    n, last = top + tl.arange(0, BN), first + N - 1
    row = (first + tl.minimum(n, N - 1)).to(tl.int64)
    codes, bits = codes + row * (units * (4 if NIBBLES else 8)), bits + row * (units * HIGH)
    sub_scales += row * (units * (32 // SUB) if SCALED else 0)
    offsets += row * (units * (32 // SUB) if OFFSETS else 0)
    now = step_at(
        codes, bits, scale, minimum, sub_scales, offsets, row, first + top, last, 0, units, blocks,
        NIBBLES, HIGH, BLOCK, SUB, SCALED, MINIMUM, OFFSETS, SHARE, FORM, EVEN, BN, T,
    )  # fmt: skip
    if CHOICE != 2:
        begin()
    qh, ql, qs = qh + x * units * 8, ql + x * units * 8, qs + x * units * 2
    y, run = tl.full((BN,), 0.0, tl.float32), tl.full((BN,), 0.0, tl.float32)
    upper, lower = y[None, :], y[None, :]
    if FORM == 3:
        upper, lower = e4m3_factors(minimum, row[None, :])
    for start in range(0, units, T):
        then = now
        if not ONCE:
            then = step_at(
                codes, bits, scale, minimum, sub_scales, offsets, row, first + top, last, start + T,
                units, blocks, NIBBLES, HIGH, BLOCK, SUB, SCALED, MINIMUM, OFFSETS, SHARE, FORM,
                EVEN, BN, T,
            )  # fmt: skip
        unit = start + tl.arange(0, T)
        inside = unit * 0 < 1 if EVEN else unit < units
        w, w_next, above, above_next, d, least, by, by_next, off, off_next = now
        hi, lo, j = unit_sums(
            w, w_next, above, above_next, by, by_next, off, off_next, qh, ql, qs, unit, inside,
            NIBBLES, HIGH, BLOCK, WIDE, SUB, SCALED, MINIMUM, OFFSETS, BIAS, E2M1, BN, T,
        )  # fmt: skip
        term = terms_of(
            hi, lo, j, d, least, upper, lower, BLOCK, WIDE, MINIMUM, FORM, LOW_FORM, BN * T // 8
        )  # fmt: skip
        y, run = added(y, run, term, start + T, BLOCK, BN, T)
        now = then
    y, rows = (y + run) * exp2_int(tl.load(qe + x)), r + tl.arange(0, 1)
    end(
        y[None, :], rows, n, (rows < R)[:, None] & (n < N)[None, :], out, faults, bias, residual, R,
        N, group, cut, cut2, BIASED, RESIDUAL, PARTS,
    )  # fmt: skip
