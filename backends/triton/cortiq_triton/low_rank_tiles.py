"""Kernels of `low_rank` for tiles of rows of one overlay."""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.language import Tensor, kernel
from cortiq_triton.low_rank_rows import chosen, dot_of_words, fact, floats_at, store, words_at
from cortiq_triton.matmul import tile_of
from cortiq_triton.rows import exponent_of, quantised
from cortiq_triton.scalar import (
    exp2_int,
    magnitude_bits,
    outside,
    round_three_planes,
    snapped,
    split_planes,
)


@kernel
def multiply_first_tiles(
    table: Tensor, qh: Tensor, ql: Tensor, qe: Tensor, order: Tensor, tiles: Tensor, planes: Tensor,
    exponents: Tensor, faults: Tensor, R: Tensor, K: Tensor, stride: Tensor, RP: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr, CUTS: tl.constexpr,
) -> None:  # fmt: skip
    """quantise(A·x) of a tile of rows of one overlay, or of one of CUTS parts of it, with RP sums a
    row at most: planes int8 [matrices, 2, R, RP], exponents [matrices, R].
    """
    tile, part = tl.program_id(0) // CUTS, tl.program_id(1)
    member, stop = tl.load(tiles + tile * 3), tl.load(tiles + tile * 3 + 2)
    place = tl.load(tiles + tile * 3 + 1) + tl.program_id(0) % CUTS * BM
    if (member < 0) | (place >= stop):
        return
    codes = tl.multiple_of(fact(table, part, 0).to(tl.pointer_type(tl.int8)), 16)
    plane, rank = tl.multiple_of(fact(table, part, 2) * 4, 16), fact(table, part, 3)
    n, place = tl.arange(0, RP), place + tl.arange(0, BM)
    seen, live = n < rank, place < stop
    m = tl.load(order + place, mask=live, other=0).to(tl.int64)
    row = member.to(tl.int64) * rank + n
    high = tl.full((BM, RP), 0, tl.int32)
    middle = tl.full((BM, RP), 0, tl.int32)
    low = tl.full((BM, RP), 0, tl.int32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        hi, lo = tile_of(qh, m, live, k, K, stride), tile_of(ql, m, live, k, K, stride)
        c = tl.trans(tile_of(codes, row, seen, k, K, K))
        d = tl.trans(tile_of(codes + plane, row, seen, k, K, K))
        high = tl.dot(hi, c, high, out_dtype=tl.int32)
        middle = tl.dot(hi, d, middle, out_dtype=tl.int32)
        middle = tl.dot(lo, c, middle, out_dtype=tl.int32)
        low = tl.dot(lo, d, low, out_dtype=tl.int32)
    scale = tl.load(floats_at(table, part, 1) + row, mask=seen, other=0.0)
    y = round_three_planes(high, middle, low) * scale[None, :]
    y = y * exp2_int(tl.load(qe + m, mask=live, other=0))[:, None]
    bad = tl.max(outside(y).to(tl.int32), 1)
    tl.store(faults + m, 1, mask=live & (bad > 0))
    y = snapped(y)
    largest = tl.max(magnitude_bits(y), 1)
    e = exponent_of(largest)
    tl.store(exponents + part * R + m, e, mask=live)
    q_high, q_low = split_planes(quantised(y, largest[:, None], e[:, None]))
    at = (part * 2 * R + m)[:, None] * RP + n[None, :]
    tl.store(planes + at, q_high, mask=live[:, None])
    tl.store(planes + R * RP + at, q_low, mask=live[:, None])


@kernel
def add_second_tiles(
    table: Tensor, order: Tensor, tiles: Tensor, planes: Tensor, exponents: Tensor, y0: Tensor,
    y1: Tensor, y2: Tensor, residual: Tensor, o0: Tensor, o1: Tensor, o2: Tensor, faults: Tensor,
    R: Tensor, RP: tl.constexpr, BN: tl.constexpr, RESIDUAL: tl.constexpr,
) -> None:  # fmt: skip
    """As `add_second`, of a tile of rows of one overlay, whose factors are read once; planes as
    words.
    """
    tile, part = tl.program_id(1), tl.program_id(2)
    member, start = tl.load(tiles + tile * 3), tl.load(tiles + tile * 3 + 1)
    stop, height = tl.load(tiles + tile * 3 + 2), fact(table, part, 7).to(tl.int32)
    if (member < 0) | (tl.program_id(0) * BN >= height):
        return
    codes, plane = words_at(table, part, 4), tl.multiple_of(fact(table, part, 6), 4)
    KW = tl.multiple_of(fact(table, part, 8), 4)
    n, word = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, RP // 4)
    seen, row = n < height, member.to(tl.int64) * height + n
    at, there = row[:, None] * KW + word[None, :], seen[:, None] & (word < KW)[None, :]
    c = tl.load(codes + at, mask=there, other=0)
    d = tl.load(codes + plane + at, mask=there, other=0)
    s = tl.load(floats_at(table, part, 5) + row, mask=seen, other=0.0)
    planes, exponents = planes + part * R * (RP // 2) + word, exponents + part * R
    before, after = chosen(part, y0, y1, y2) + n, chosen(part, o0, o1, o2) + n
    for place in range(start, stop):
        m = tl.load(order + place).to(tl.int64)
        y = tl.load(before + m * height, mask=seen, other=0.0)
        beside = y
        if RESIDUAL:
            beside = tl.load(residual + m * height + n, mask=seen, other=0.0)
        hi, lo = tl.load(planes + m * (RP // 4)), tl.load(planes + (R + m) * (RP // 4))
        more = dot_of_words(c, d, hi, lo) * s * exp2_int(tl.load(exponents + m))
        store(more, y, beside, after + m * height, faults + m, n, seen, RESIDUAL)
