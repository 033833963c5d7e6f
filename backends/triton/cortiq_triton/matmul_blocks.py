"""Products of many rows with weights in blocks: int8 dots of 32 columns, float terms in order.

A tile has weight rows down and rows of x across, so that a thread has the scales of few weight
rows and uses each many times.
"""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.language import INTERPRETED, Tensor, device, kernel
from cortiq_triton.matmul import tile_of, tile_rows
from cortiq_triton.matvec import end, in_form
from cortiq_triton.scalar import exp2_int, round_two_planes


@device
def nibbles_emulated(packed: Tensor, shift: Tensor, BIAS: tl.constexpr) -> Tensor:
    """The nibbles of bytes from bit `shift` on, less BIAS: int8."""
    return ((packed >> shift) & 15) - BIAS


@device
def nibbles_of_words(packed: Tensor, shift: Tensor, BIAS: tl.constexpr) -> Tensor:
    """The same, four at a time; no byte borrows of its neighbour."""
    if BIAS == 0:
        return tl.inline_asm_elementwise(
            "{.reg .b32 s; and.b32 s, $2, 7; shr.u32 $0, $1, s; and.b32 $0, $0, 0x0F0F0F0F;}",
            "=r,r,r", [packed, shift], dtype=tl.int8, is_pure=True, pack=4,
        )  # fmt: skip
    TAKE: tl.constexpr = "0x78787878" if BIAS == 8 else "0x7C7C7C7C"
    return tl.inline_asm_elementwise(
        "{.reg .b32 s; and.b32 s, $2, 7; shr.u32 $0, $1, s; and.b32 $0, $0, 0x0F0F0F0F;"
        "add.u32 $0, $0, " + TAKE + "; xor.b32 $0, $0, 0x80808080;}",
        "=r,r,r", [packed, shift], dtype=tl.int8, is_pure=True, pack=4,
    )  # fmt: skip


nibbles = nibbles_emulated if INTERPRETED else nibbles_of_words


@device
def codes_of(
    codes: Tensor, row: Tensor, seen: Tensor, start: Tensor, K: Tensor, NIBBLES: tl.constexpr,
    BIAS: tl.constexpr,
) -> Tensor:  # fmt: skip
    """32 columns of codes from `start` on, int8 [BN, 32]."""
    k = tl.arange(0, 32)
    if NIBBLES:
        packed = tile_of(codes, row, seen, start // 2 + k % 16, K // 2, K // 2)
        shift = (k // 16 * 4).to(tl.int8)
        shift = tl.broadcast_to(shift[None, :], packed.shape)
        found = nibbles(packed, shift, BIAS)
    else:
        found = tile_of(codes, row, seen, start + k, K, K)
    return found


@device
def kept_emulated(codes: Tensor, mask: Tensor) -> Tensor:
    """Codes where the mask has all bits, else 0."""
    return codes & mask


@device
def kept_words(codes: Tensor, mask: Tensor) -> Tensor:
    """The same, four at a time."""
    return tl.inline_asm_elementwise(
        "and.b32 $0, $1, $2;", "=r,r,r", [codes, mask], dtype=tl.int8, is_pure=True, pack=4
    )


kept = kept_emulated if INTERPRETED else kept_words


@device
def down(table: Tensor, row: Tensor, seen: Tensor, at: Tensor, width: Tensor) -> Tensor:
    """Column `at` of a table of `width` columns: [BN]."""
    return tl.load(table + row * width + at, mask=seen & (row * 0 + at < width), other=0)


@device
def factors_at(
    table: Tensor, row: Tensor, seen: Tensor, start: Tensor, K: Tensor, SUB: tl.constexpr
) -> tuple[Tensor, Tensor]:
    """Sub-scales or offsets of the first and the last 16 of 32 columns: int32 [BN, 1] each."""
    at = start // SUB
    first = down(table, row, seen, at, K // SUB).to(tl.int32)[:, None]
    second = first
    if SUB == 16:
        second = down(table, row, seen, at + 1, K // SUB).to(tl.int32)[:, None]
    return first, second


@device
def step_dots(
    c: Tensor, qh: Tensor, ql: Tensor, hi: Tensor, lo: Tensor, by: Tensor, by_second: Tensor,
    SUB: tl.constexpr, SCALED: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Plane sums after 32 columns more, c [BN, 32] by qh, ql [32, BM]."""
    nothing = tl.full((BN, BM), 0, tl.int32)
    if not SCALED:
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
    offsets: Tensor, sums: Tensor, row: Tensor, seen: Tensor, m: Tensor, live: Tensor,
    block: Tensor, rows: Tensor, subs: Tensor, SUB: tl.constexpr, BN: tl.constexpr,
    BM: tl.constexpr,
) -> Tensor:  # fmt: skip
    """RN(Σ offset·q) over a block of 256, [BN, BM]; sums, int32 [subs, rows], of SUB columns."""
    j = tl.full((BN, BM), 0, tl.int32)
    for part in tl.static_range(256 // SUB):
        at = block * (256 // SUB) + part
        total = tl.load(sums + at * rows + m, mask=live, other=0)
        factor = tl.load(offsets + row * subs + at, mask=seen, other=0).to(tl.int32)
        j += factor[:, None] * total[None, :]
    return j.to(tl.float32)


@device
def block_term(
    hi: Tensor, lo: Tensor, scale: Tensor, minimum: Tensor, offsets: Tensor, sums: Tensor,
    row: Tensor, seen: Tensor, m: Tensor, live: Tensor, block: Tensor, blocks: Tensor,
    rows: Tensor, subs: Tensor, BLOCK: tl.constexpr, SUB: tl.constexpr, MINIMUM: tl.constexpr,
    OFFSETS: tl.constexpr, FORM: tl.constexpr, LOW_FORM: tl.constexpr, BN: tl.constexpr,
    BM: tl.constexpr,
) -> Tensor:  # fmt: skip
    """t = RN(I)·scale [+ RN(J)·minimum] of one block, [BN, BM]."""
    dot = (hi * 256 + lo).to(tl.float32) if BLOCK == 32 else round_two_planes(hi, lo)
    term = dot * in_form(down(scale, row, seen, block, blocks), FORM)[:, None]
    if MINIMUM:
        least = in_form(down(minimum, row, seen, block, blocks), LOW_FORM)[:, None]
        if OFFSETS:
            j = offset_sums(
                offsets, sums, row, seen, m, live, block, rows, subs, SUB, BN, BM
            )  # fmt: skip
        else:
            j = tl.load(sums + block * rows + m, mask=live, other=0).to(tl.float32)[None, :]
        term = term + j * least
    return term


@kernel
def matmul_blocks(
    codes: Tensor, scale: Tensor, minimum: Tensor, sub_scales: Tensor, offsets: Tensor, qh: Tensor,
    ql: Tensor, qe: Tensor, sums: Tensor, bias: Tensor, residual: Tensor, out: Tensor,
    faults: Tensor, M: Tensor, N: Tensor, K: Tensor, blocks: Tensor, rows: Tensor, cut: Tensor,
    cut2: Tensor, heads: Tensor, group: Tensor, HEADS: tl.constexpr, BIASED: tl.constexpr,
    RESIDUAL: tl.constexpr, PARTS: tl.constexpr, NIBBLES: tl.constexpr, BLOCK: tl.constexpr,
    SUB: tl.constexpr, SCALED: tl.constexpr, MINIMUM: tl.constexpr, OFFSETS: tl.constexpr,
    BIAS: tl.constexpr, FORM: tl.constexpr, LOW_FORM: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, GROUP: tl.constexpr,
) -> None:  # fmt: skip
    """out [M, N] of codes in blocks of 32 or 256 columns; constants as in `matvec_blocks`."""
    m, n, first = tile_rows(scale, M, N, heads, HEADS, BM, BN, GROUP)
    live, seen = m < M, n < N
    if HEADS:
        m = m * heads + tl.program_id(1)
    row, x = (first + n).to(tl.int64), m.to(tl.int64)
    y = tl.full((BN, BM), 0.0, tl.float32)
    run = tl.full((BN, BM), 0.0, tl.float32)
    hi = tl.full((BN, BM), 0, tl.int32)
    lo = tl.full((BN, BM), 0, tl.int32)
    for start in range(0, K, 32):
        k, block, last = start + tl.arange(0, 32), start // BLOCK, start + 32
        by = (hi, hi)
        if SCALED:
            by = factors_at(sub_scales, row, seen, start, K, SUB)
        c = codes_of(codes, row, seen, start, K, NIBBLES, BIAS)
        q_high = tl.trans(tile_of(qh, x, live, k, K, K))
        q_low = tl.trans(tile_of(ql, x, live, k, K, K))
        hi, lo = step_dots(c, q_high, q_low, hi, lo, by[0], by[1], SUB, SCALED, BN, BM)
        if (BLOCK == 32) | (last % BLOCK == 0) | (last >= K):
            run = run + block_term(
                hi, lo, scale, minimum, offsets, sums, row, seen, m, live, block, blocks, rows,
                K // SUB, BLOCK, SUB, MINIMUM, OFFSETS, FORM, LOW_FORM, BN, BM,
            )  # fmt: skip
            hi = tl.full((BN, BM), 0, tl.int32)
            lo = tl.full((BN, BM), 0, tl.int32)
        if (last % (8 * BLOCK) == 0) | (last >= K):
            y = y + run
            run = tl.full((BN, BM), 0.0, tl.float32)
    y = tl.trans(y) * exp2_int(tl.load(qe + m, mask=live, other=0))[:, None]
    end(
        y, m, n, live[:, None] & seen[None, :], out, faults, bias, residual, M, N, group, cut,
        cut2, BIASED, RESIDUAL, PARTS,
    )  # fmt: skip
