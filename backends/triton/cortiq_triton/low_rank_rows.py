"""Kernels of `low_rank` for rows alone: each reads the factors of its overlay."""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.language import Tensor, begin, constant, device, join, kernel, let_next
from cortiq_triton.matvec import words_dot
from cortiq_triton.rows import exponent_of, quantised
from cortiq_triton.scalar import (
    exp2_int,
    magnitude_bits,
    outside,
    round_three_planes,
    snapped,
    split_planes,
)

WAITS, AHEAD, BESIDE = range(3)
"""When the launch of A·x begins: when those before it are done; so, but it reads its factors ahead;
or beside the one before, which began when all others were done.
"""
WAITING, READING_AHEAD, RUNNING_BESIDE = map(constant, (WAITS, AHEAD, BESIDE))


@device
def fact(table: Tensor, part: Tensor, column: tl.constexpr) -> Tensor:
    """A number of a matrix."""
    return tl.load(table + part * 9 + column)


@device
def words_at(table: Tensor, part: Tensor, column: tl.constexpr) -> Tensor:
    """Codes of a matrix, as words."""
    return tl.multiple_of(fact(table, part, column).to(tl.pointer_type(tl.int32)), 16)


@device
def floats_at(table: Tensor, part: Tensor, column: tl.constexpr) -> Tensor:
    """Scales of a matrix."""
    return fact(table, part, column).to(tl.pointer_type(tl.float32))


@device
def chosen(part: Tensor, first: Tensor, second: Tensor, third: Tensor) -> Tensor:
    """The array of a matrix, of floats."""
    a, b, c = first.to(tl.int64), second.to(tl.int64), third.to(tl.int64)
    found = tl.where(part == 0, a, tl.where(part == 1, b, c))
    return tl.multiple_of(found.to(tl.pointer_type(tl.float32)), 16)


@device
def sum_of(words: Tensor, BN: tl.constexpr) -> Tensor:
    """Sums of [1, BN, words]: [BN]."""
    return tl.reshape(tl.sum(words, 2), (BN,))


@device
def as_words(plane: Tensor, RP: tl.constexpr) -> Tensor:
    """Bytes [RP] as words of four: int32 [RP/4]."""
    place = tl.arange(0, 4) * 8
    byte = tl.reshape(plane.to(tl.int32) & 255, (RP // 4, 4))
    return tl.sum(byte << place[None, :], 1)


@device
def dot_of_words(c: Tensor, d: Tensor, hi: Tensor, lo: Tensor) -> Tensor:
    """Rows of words c and d, planes of codes, times a row's, rounded: float32 [rows]."""
    rows: tl.constexpr = c.shape[0]
    nothing = tl.full((1, rows, c.shape[1] // 4), 0, tl.int32)
    c, d, hi, lo = c[None], d[None], hi[None, None], lo[None, None]
    high, low = words_dot(c, hi, nothing), words_dot(d, lo, nothing)
    middle = words_dot(c, lo, words_dot(d, hi, nothing))
    return round_three_planes(sum_of(high, rows), sum_of(middle, rows), sum_of(low, rows))


@device
def store(
    y: Tensor, product: Tensor, residual: Tensor, out: Tensor, fault: Tensor, n: Tensor,
    seen: Tensor, RESIDUAL: tl.constexpr,
) -> None:  # fmt: skip
    """Store a row's outputs n, product + y, perhaps added to the residual, each snapped; flag a
    fault.
    """
    bad = outside(y)
    y = product + snapped(y)
    bad = bad | outside(y)
    y = snapped(y)
    if RESIDUAL:
        y = residual + y
        bad = bad | outside(y)
        y = snapped(y)
    tl.store(out, y, mask=seen)
    tl.store(fault + n * 0, 1, mask=seen & bad)


@kernel
def multiply_first(
    table: Tensor, qh: Tensor, ql: Tensor, qe: Tensor, index: Tensor, r0: Tensor, r1: Tensor,
    r2: Tensor, faults: Tensor, KW: Tensor, stride: Tensor, BN: tl.constexpr, BW: tl.constexpr,
    START: tl.constexpr,
) -> None:  # fmt: skip
    """A·x of a row, some of its sums; KW words a row, of x `stride`."""
    row, part = tl.program_id(1), tl.program_id(2)
    codes, scale = words_at(table, part, 0), floats_at(table, part, 1)
    plane = tl.multiple_of(fact(table, part, 2), 4)
    rank = fact(table, part, 3)
    n, word = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BW)
    seen = n < rank
    if START == WAITING:
        begin()
    if START == RUNNING_BESIDE:
        let_next()
    first = tl.load(index + row).to(tl.int64) * rank
    words = codes + (first + n)[:, None] * KW
    there = seen[:, None] & (word < KW)[None, :]
    c = tl.load(words + word[None, :], mask=there, other=0)
    d = tl.load(words + plane + word[None, :], mask=there, other=0)
    s = tl.load(scale + first + n, mask=seen, other=0.0)
    if START == READING_AHEAD:
        begin()
    high = tl.full((1, BN, BW // 4), 0, tl.int32)
    middle = tl.full((1, BN, BW // 4), 0, tl.int32)
    low = tl.full((1, BN, BW // 4), 0, tl.int32)
    q = row.to(tl.int64) * stride
    for start in range(0, KW, BW):
        at = start + word
        hi = tl.load(qh + q + at, mask=at < KW, other=0)[None, None]
        lo = tl.load(ql + q + at, mask=at < KW, other=0)[None, None]
        there = seen[:, None] & (at + BW < KW)[None, :]
        c_next = tl.load(words + (at + BW)[None, :], mask=there, other=0)
        d_next = tl.load(words + plane + (at + BW)[None, :], mask=there, other=0)
        high = words_dot(c[None], hi, high)
        middle = words_dot(c[None], lo, words_dot(d[None], hi, middle))
        low = words_dot(d[None], lo, low)
        c, d = c_next, d_next
    y = round_three_planes(sum_of(high, BN), sum_of(middle, BN), sum_of(low, BN)) * s
    y = y * exp2_int(tl.load(qe + row))
    out = chosen(part, r0, r1, r2) + row.to(tl.int64) * rank + n
    tl.store(out, snapped(y), mask=seen)
    tl.store(faults + row + n * 0, 1, mask=seen & outside(y))
    if START == RUNNING_BESIDE:
        join()  # who waits for this launch has waited for the one before, too


@kernel
def add_second(
    table: Tensor, index: Tensor, r0: Tensor, r1: Tensor, r2: Tensor, y0: Tensor, y1: Tensor,
    y2: Tensor, residual: Tensor, o0: Tensor, o1: Tensor, o2: Tensor, faults: Tensor,
    RP: tl.constexpr, BN: tl.constexpr, RESIDUAL: tl.constexpr, START: tl.constexpr,
) -> None:  # fmt: skip
    """y + B·quantise(r) of a row, some of its outputs; RP sums of A at most."""
    row, part = tl.program_id(1), tl.program_id(2)
    codes, scale = words_at(table, part, 4), floats_at(table, part, 5)
    plane = tl.multiple_of(fact(table, part, 6), 4)
    height, rank = fact(table, part, 7), fact(table, part, 3)
    KW = tl.multiple_of(fact(table, part, 8), 4)
    n, word, k = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, RP // 4), tl.arange(0, RP)
    seen, m = n < height, row.to(tl.int64)
    if START == WAITING:
        begin()
    first = tl.load(index + row).to(tl.int64) * height
    at = (first + n)[:, None] * KW + word[None, :]
    there = seen[:, None] & (word < KW)[None, :]
    c = tl.load(codes + at, mask=there, other=0)
    d = tl.load(codes + plane + at, mask=there, other=0)
    s = tl.load(scale + first + n, mask=seen, other=0.0)
    if START != WAITING:
        begin()
    r = tl.load(chosen(part, r0, r1, r2) + m * rank + k, mask=k < rank, other=0.0)
    before = tl.load(chosen(part, y0, y1, y2) + m * height + n, mask=seen, other=0.0)
    beside = before
    if RESIDUAL:
        beside = tl.load(residual + m * height + n, mask=seen, other=0.0)
    largest = tl.max(magnitude_bits(r), 0)
    e = exponent_of(largest)
    q_high, q_low = split_planes(quantised(r, largest, e))
    hi, lo = as_words(q_high, RP), as_words(q_low, RP)
    y = dot_of_words(c, d, hi, lo) * s * exp2_int(e)
    out = chosen(part, o0, o1, o2) + m * height + n
    store(y, before, beside, out, faults + row, n, seen, RESIDUAL)
