"""Products of many rows with weights in blocks: int8 dots of 32 columns, float terms in order.

A tile has weight rows down and rows of x across, so that a thread has the scales of few weight
rows and uses each many times.
"""

from __future__ import annotations

import torch
import triton.language as tl

from cortiq_triton.language import INTERPRETED, Tensor, device, kernel
from cortiq_triton.matmul import tile_rows
from cortiq_triton.matvec import e4m3_factors, e4m3_scales, end, in_form
from cortiq_triton.packing import codes_of, tile_at
from cortiq_triton.rows import Rows
from cortiq_triton.scalar import exp2_int, round_two_planes
from cortiq_triton.weights import Packed
from cortiq_triton.wide_codes import tile_dots


@device
def kept_emulated(codes: Tensor, mask: Tensor) -> Tensor:
    """Codes where the mask has all bits, else 0."""
    return codes & mask


@device
def kept_words(codes: Tensor, mask: Tensor) -> Tensor:
    """Codes where the mask has all bits, else 0: four codes a word."""
    return tl.inline_asm_elementwise(
        "and.b32 $0, $1, $2;", "=r,r,r", [codes, mask], dtype=tl.int8, is_pure=True, pack=4
    )


kept = kept_emulated if INTERPRETED else kept_words


@device
def down(table: Tensor, row: Tensor, at: Tensor, width: Tensor) -> Tensor:
    """Column `at` of a table of `width` columns: [BN, 1]."""
    return tl.load(table + row * width + at)[:, None]


@device
def factors_at(
    sub_scales: Tensor, row: Tensor, start: Tensor, subs: Tensor, none: Tensor, SUB: tl.constexpr,
    SCALED: tl.constexpr,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Integer sub-scales of 32 columns from `start` on, of the halves if SUB is 16: [BN, 1]."""
    by, by_second = none, none
    if SCALED:
        by = down(sub_scales, row, start // SUB, subs).to(tl.int32)
        if SUB == 16:
            by_second = down(sub_scales, row, start // SUB + 1, subs).to(tl.int32)
    return by, by_second


@device
def step_dots(
    c: Tensor, qh: Tensor, ql: Tensor, hi: Tensor, lo: Tensor, by: Tensor, by_second: Tensor,
    WIDE: tl.constexpr, SUB: tl.constexpr, SCALED: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Plane sums after 32 columns more, c [BN, 32] by qh, ql [32, BM]."""
    nothing = tl.full((BN, BM), 0, tl.int32)
    if WIDE:
        hi, lo = tile_dots(c, qh, ql, nothing, WIDE)
    elif not SCALED:
        hi = tl.dot(c, qh, hi, out_dtype=tl.int32)
        lo = tl.dot(c, ql, lo, out_dtype=tl.int32)
    elif SUB == 32:
        hi += tl.dot(c, qh, nothing, out_dtype=tl.int32) * by
        lo += tl.dot(c, ql, nothing, out_dtype=tl.int32) * by
    else:
        mask = (tl.arange(0, 32) // 16 - 1).to(tl.int8)
        mask = tl.broadcast_to(mask[None, :], c.shape)
        early, late = kept(c, mask), kept(c, ~mask)
        hi += tl.dot(early, qh, nothing, out_dtype=tl.int32) * by
        lo += tl.dot(early, ql, nothing, out_dtype=tl.int32) * by
        hi += tl.dot(late, qh, nothing, out_dtype=tl.int32) * by_second
        lo += tl.dot(late, ql, nothing, out_dtype=tl.int32) * by_second
    return hi, lo


@device
def offset_sums(
    offsets: Tensor, sums: Tensor, row: Tensor, x: Tensor, block: Tensor, rows: Tensor,
    subs: Tensor, width: Tensor, SUB: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
) -> Tensor:  # fmt: skip
    """Σ offset·Σq over a block of 256, int32 [BN, BM].

    sums : int8 [3, rows, width], the planes of Σq of SUB columns. A dot of 32 has room for offsets
    of other blocks, which are zeros.
    """
    COUNT: tl.constexpr = 256 // SUB
    at = block * COUNT // 32 * 32 + tl.arange(0, 32)
    own = (at // COUNT == block)[None, :]
    o = tl.load(offsets + row[:, None] * subs + at[None, :], mask=own, other=0)
    j = tl.full((BN, BM), 0, tl.int32)
    for plane in tl.static_range(3):
        q = tile_at(sums, plane * rows + x, at, width)
        j = tl.dot(o, tl.trans(q), j * 256, out_dtype=tl.int32)
    return j


@device
def scales_at(
    scale: Tensor, minimum: Tensor, sums: Tensor, row: Tensor, x: Tensor, block: Tensor,
    blocks: Tensor, rows: Tensor, MINIMUM: tl.constexpr, OFFSETS: tl.constexpr,
    SHARE: tl.constexpr,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Scale and minimum of a block as they lie in memory, [BN, 1], and RN(Σq), [1, BM], of sums
    float32 [blocks, rows]; what a format has not is the scale.
    """
    d = down(scale, row, block // SHARE, blocks)
    least, j = d, d
    if MINIMUM:
        least = down(minimum, row, block // SHARE, blocks)
        if not OFFSETS:
            j = tl.load(sums + block * rows + x)[None, :]
    return d, least, j


@device
def block_term(
    hi: Tensor, lo: Tensor, d: Tensor, least: Tensor, j: Tensor, NARROW: tl.constexpr,
    MINIMUM: tl.constexpr, FORM: tl.constexpr, LOW_FORM: tl.constexpr,
) -> Tensor:  # fmt: skip
    """t = RN(I)·d [+ j·least] of one block, [BN, BM]. NARROW: I fits int32."""
    dot = (hi * 256 + lo).to(tl.float32) if NARROW else round_two_planes(hi, lo)
    term = dot * in_form(d, FORM)
    if MINIMUM:
        term = term + j * in_form(least, LOW_FORM)
    return term


@device
def wide_term(
    hi: Tensor, lo: Tensor, scale: Tensor, minimum: Tensor, offsets: Tensor, sums: Tensor,
    row: Tensor, x: Tensor, block: Tensor, blocks: Tensor, rows: Tensor, subs: Tensor,
    width: Tensor, SUB: tl.constexpr, MINIMUM: tl.constexpr, OFFSETS: tl.constexpr,
    FORM: tl.constexpr, LOW_FORM: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
) -> Tensor:  # fmt: skip
    """`block_term` of a block of 256, with its scales."""
    d, least, j = scales_at(
        scale, minimum, sums, row, x, block, blocks, rows, MINIMUM, OFFSETS, 1
    )  # fmt: skip
    if OFFSETS:
        found = offset_sums(offsets, sums, row, x, block, rows, subs, width, SUB, BN, BM)
        j = found.to(tl.float32)
    return block_term(hi, lo, d, least, j, False, MINIMUM, FORM, LOW_FORM)


@device
def halves_onto(
    run: Tensor, c: Tensor, qh: Tensor, ql: Tensor, scale: Tensor, factors: Tensor, row: Tensor,
    start: Tensor, blocks: Tensor, FORM: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
) -> Tensor:  # fmt: skip
    """A run after two blocks of 16 columns more, which begin at column `start`."""
    nothing = tl.full((BN, BM), 0, tl.int32)
    mask = (tl.arange(0, 32) // 16 - 1).to(tl.int8)
    mask = tl.broadcast_to(mask[None, :], c.shape)
    for half in tl.static_range(2):
        part = kept(c, mask) if half == 0 else kept(c, ~mask)
        hi = tl.dot(part, qh, nothing, out_dtype=tl.int32)
        lo = tl.dot(part, ql, nothing, out_dtype=tl.int32)
        d = down(scale, row, start // 16 + half, blocks)
        if FORM == 3:
            upper, lower = e4m3_factors(factors, row[:, None])
            d = e4m3_scales(d, upper, lower)
        run = run + block_term(hi, lo, d, d, d, True, False, FORM, 0)
    return run


@kernel
def matmul_blocks(
    codes: Tensor, bits: Tensor, scale: Tensor, minimum: Tensor, sub_scales: Tensor,
    offsets: Tensor, qh: Tensor, ql: Tensor, qe: Tensor, order: Tensor, tiles: Tensor,
    sums: Tensor, bias: Tensor, residual: Tensor, out: Tensor, faults: Tensor, M: Tensor,
    N: Tensor, K: Tensor, blocks: Tensor, subs: Tensor, rows: Tensor, width: Tensor, cut: Tensor,
    cut2: Tensor, heads: Tensor, per: Tensor, group: Tensor, CHOICE: tl.constexpr,
    BIASED: tl.constexpr, RESIDUAL: tl.constexpr, PARTS: tl.constexpr, NIBBLES: tl.constexpr,
    BLOCK: tl.constexpr, WIDE: tl.constexpr, SUB: tl.constexpr, SCALED: tl.constexpr,
    MINIMUM: tl.constexpr, OFFSETS: tl.constexpr, BIAS: tl.constexpr, E2M1: tl.constexpr,
    HIGH: tl.constexpr, FORM: tl.constexpr, LOW_FORM: tl.constexpr, SHARE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, TURN: tl.constexpr, GROUP: tl.constexpr,
) -> None:  # fmt: skip
    """out [M, N] of codes in blocks of 16, 32 or 256 columns; constants as in `matvec_blocks`."""
    m, live, x, n, first = tile_rows(order, tiles, M, N, heads, per, CHOICE, BM, BN, GROUP)
    if first < 0:
        return
    seen, row = n < N, (first + tl.minimum(n, N - 1)).to(tl.int64)
    x = tl.minimum(x, rows - 1).to(tl.int64)
    y, run = tl.full((BN, BM), 0.0, tl.float32), tl.full((BN, BM), 0.0, tl.float32)
    hi, lo = tl.full((BN, BM), 0, tl.int32), tl.full((BN, BM), 0, tl.int32)
    for turn in range(0, K, 32 * TURN):
        for step in tl.static_range(TURN):
            start = turn + 32 * step
            by, by_late = factors_at(sub_scales, row, start, subs, hi, SUB, SCALED)
            if BLOCK == 32:  # asked for before the dots, which take as long
                d, least, j = scales_at(
                    scale, minimum, sums, row, x, start // 32, blocks, rows, MINIMUM, OFFSETS, SHARE
                )  # fmt: skip
            c = codes_of(codes, bits, row, start, K, NIBBLES, HIGH, BIAS, E2M1)
            k = start + tl.arange(0, 32)
            q_high, q_low = tl.trans(tile_at(qh, x, k, K)), tl.trans(tile_at(ql, x, k, K))
            if BLOCK == 16:
                run = halves_onto(
                    run, c, q_high, q_low, scale, minimum, row, start, blocks, FORM, BN, BM
                )  # fmt: skip
            else:
                hi, lo = step_dots(c, q_high, q_low, hi, lo, by, by_late, WIDE, SUB, SCALED, BN, BM)
            if BLOCK == 32:
                run = run + block_term(hi, lo, d, least, j, not WIDE, MINIMUM, FORM, LOW_FORM)
                hi, lo = tl.full((BN, BM), 0, tl.int32), tl.full((BN, BM), 0, tl.int32)
        stop = turn + 32 * TURN
        if BLOCK <= 32:
            if (stop % (8 * BLOCK) == 0) | (stop >= K):
                y = y + run
                run = tl.full((BN, BM), 0.0, tl.float32)
        elif (stop % 256 == 0) | (stop >= K):
            run = run + wide_term(
                hi, lo, scale, minimum, offsets, sums, row, x, turn // 256, blocks, rows, subs,
                width, SUB, MINIMUM, OFFSETS, FORM, LOW_FORM, BN, BM,
            )  # fmt: skip
            hi, lo = tl.full((BN, BM), 0, tl.int32), tl.full((BN, BM), 0, tl.int32)
            if (stop % 2048 == 0) | (stop >= K):
                y = y + run
                run = tl.full((BN, BM), 0.0, tl.float32)
    y = tl.trans(y) * exp2_int(tl.load(qe + x, mask=live, other=0))[:, None]
    end(
        y, m, n, live[:, None] & seen[None, :], out, faults, bias, residual, M, N, group, cut,
        cut2, BIASED, RESIDUAL, PARTS,
    )  # fmt: skip


def sums_across(weight: Packed, x: Rows) -> torch.Tensor:
    """Σq as `matmul_blocks` wants them for the minima of a format; x.sums for one without."""
    if weight.minimum is None:
        return x.sums
    sums = x.sums.reshape(-1, x.sums.shape[-1])
    if weight.sub != 16:
        sums = sums[:, ::2] + sums[:, 1::2]
    if weight.offsets is None:
        return sums.t().to(torch.float32, memory_format=torch.contiguous_format)
    high = (sums + 32896) >> 16  # what is left fits two planes: -32896 to 32639
    rest = sums - (high << 16)
    middle = (rest + 128) >> 8
    planes = torch.stack((high, middle, rest - (middle << 8))).to(torch.int8)
    return torch.nn.functional.pad(planes, (0, -planes.shape[-1] % 32))
