"""Products of one row with what overlays add, y + B·quantise(A·x), of three matrices at once.

A row reads the factors of its own overlay. A first launch multiplies by A, the second quantises the
few sums of a row, multiplies by B and adds. Of many rows, those of one overlay are tiles for tensor
cores (`grouping`). Where factors lie is a table in memory, a line a matrix: a launch has them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton.language as tl

from cortiq_triton.grouping import Groups
from cortiq_triton.language import (
    INTERPRETED,
    Tensor,
    begin,
    ceil_div,
    constant,
    device,
    join,
    kernel,
    launch,
    let_next,
    pow2,
)
from cortiq_triton.matmul import tile_of
from cortiq_triton.matvec import dp4a, words_dot
from cortiq_triton.products import EXPERTS, Stack, grouped_rows
from cortiq_triton.rows import Rows, exponent_of, quantised
from cortiq_triton.scalar import (
    exp2_int,
    magnitude_bits,
    outside,
    round_three_planes,
    snapped,
    split_planes,
)
from cortiq_triton.weights import Packed

MOST, MOST_RANK = 3, 128
"""Matrices of a launch, and the rank up to which a row's sums stay in a program."""
COLUMNS = 10
"""Words of a matrix in the table: A's codes, scales, plane, rank; the same of B with its height;
B's columns; place of its outputs."""
RANKS, WORDS = (128, 1024) if INTERPRETED else (4, 512)
"""Rows of A, and words of them, that a program has at a time."""
OUTPUTS = 8192 if INTERPRETED else 256
"""Outputs of a program that adds one row's."""
TILED = 8192 if INTERPRETED else 256
"""Outputs of a program that adds those of a tile of rows."""
WAITS, AHEAD, BESIDE = range(3)
"""When the launch of A·x begins: when those before it are done; so, but it reads its factors ahead;
or beside the one before, which began when all others were done.
"""
WAITING, READING_AHEAD, RUNNING_BESIDE = map(constant, (WAITS, AHEAD, BESIDE))


class FirstTiles(NamedTuple):
    """Rows of a tile of A·x, columns of a step, warps of its program, steps on their way."""

    rows: int = 32
    columns: int = 128
    warps: int = 4
    stages: int = 4


FIRST = FirstTiles()


class FactorBanks(NamedTuple):
    """Banks of A and B of a matrix."""

    a: Packed
    b: Packed

    def fits(self) -> bool:
        """Whether the kernels take them."""
        planes = all(weight.codes.dim() == 3 and not weight.block for weight in self)
        return planes and self.b.width <= MOST_RANK


def table_of(parts: Sequence[FactorBanks], members: int) -> torch.Tensor:
    """Return where the factors of so many overlays lie: int64 [parts, COLUMNS]."""
    lines, start = [], 0
    for a, b in parts:
        height = b.height // members
        first = [a.codes.data_ptr(), a.scale.data_ptr(), a.plane // 4, a.height // members]
        second = [b.codes.data_ptr(), b.scale.data_ptr(), b.plane // 4, height, b.padded // 4]
        lines.append([*first, *second, start])
        start += height
    return torch.tensor(lines, dtype=torch.int64).to(parts[0].a.codes.device)


@device
def fact(table: Tensor, part: Tensor, column: tl.constexpr) -> Tensor:
    """A number of a matrix."""
    return tl.load(table + part * 10 + column)


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
    high, low = tl.sum(dp4a(c, hi), 1), tl.sum(dp4a(d, lo), 1)
    return round_three_planes(high, tl.sum(dp4a(c, lo) + dp4a(d, hi), 1), low)


@device
def added(
    y: Tensor, before: Tensor, residual: Tensor, RESIDUAL: tl.constexpr
) -> tuple[Tensor, Tensor]:
    """What y adds to a product, and that to the residual, each sum snapped; and what is a fault."""
    bad = outside(y)
    y = before + snapped(y)
    bad = bad | outside(y)
    y = snapped(y)
    if RESIDUAL:
        y = residual + y
        bad = bad | outside(y)
        y = snapped(y)
    return y, bad


@kernel
def add_second(
    table: Tensor, index: Tensor, r0: Tensor, r1: Tensor, r2: Tensor, y0: Tensor, y1: Tensor,
    y2: Tensor, residual: Tensor, out: Tensor, faults: Tensor, R: Tensor, RP: tl.constexpr,
    BN: tl.constexpr, RESIDUAL: tl.constexpr, START: tl.constexpr,
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
    hi, lo = as_words(q_high, RP)[None, :], as_words(q_low, RP)[None, :]
    y = dot_of_words(c, d, hi, lo) * s
    y, bad = added(y * exp2_int(e), before, beside, RESIDUAL)
    tl.store(out + fact(table, part, 9) * R + m * height + n, y, mask=seen)
    tl.store(faults + row + n * 0, 1, mask=seen & bad)


@kernel
def add_second_tiles(
    table: Tensor, order: Tensor, tiles: Tensor, planes: Tensor, exponents: Tensor, y0: Tensor,
    y1: Tensor, y2: Tensor, residual: Tensor, out: Tensor, faults: Tensor, R: Tensor,
    RP: tl.constexpr, BN: tl.constexpr, RESIDUAL: tl.constexpr,
) -> None:  # fmt: skip
    """As `add_second`, of a tile of rows of one overlay, one after the other, whose factors are
    read once; planes as words.
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
    before, after = chosen(part, y0, y1, y2) + n, out + fact(table, part, 9) * R + n
    planes, exponents = planes + part * R * (RP // 2) + word, exponents + part * R
    m = tl.load(order + start).to(tl.int64)
    y = tl.load(before + m * height, mask=seen, other=0.0)
    for place in range(start, stop):
        m_next = tl.load(order + tl.minimum(place + 1, stop - 1)).to(tl.int64)
        y_next = tl.load(before + m_next * height, mask=seen, other=0.0)
        beside = y
        if RESIDUAL:
            beside = tl.load(residual + m * height + n, mask=seen, other=0.0)
        hi = tl.load(planes + m * (RP // 4))[None, :]
        lo = tl.load(planes + (R + m) * (RP // 4))[None, :]
        total = dot_of_words(c, d, hi, lo) * s * exp2_int(tl.load(exponents + m))
        total, bad = added(total, y, beside, RESIDUAL)
        tl.store(after + m * height, total, mask=seen)
        tl.store(faults + m + n * 0, 1, mask=seen & bad)
        m, y = m_next, y_next


def three(arrays: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """As many as kernels name; the first stands in for what there is not."""
    return tuple([*arrays, arrays[0], arrays[0]][:MOST])


class Overlaid(NamedTuple):
    """Rows x whose products `base` overlays change.

    Attributes
    ----------
    index : int32 [rows, 1], the overlays. residual : what the sum of the one product is added to.
    known : groups of these rows. start : when the first launch may begin.
    """

    x: Rows
    index: torch.Tensor
    base: Sequence[torch.Tensor]
    residual: torch.Tensor | None
    known: dict[tuple[int, int], Groups]
    start: int


def with_low_rank(
    table: torch.Tensor, parts: Sequence[FactorBanks], members: int, given: Overlaid,
    faults: torch.Tensor,
) -> list[torch.Tensor]:  # fmt: skip
    """Sums of products and what the overlay of each row adds to them."""
    x, index, count = given.x, given.index, len(given.index)
    ranks, heights = ([w.height // members for w in side] for side in zip(*parts, strict=True))
    how = Stack(EXPERTS, ranks[0], index=index, groups=given.known)
    groups = grouped_rows(parts[0].a, count, how)
    out = torch.empty(count * sum(heights), dtype=torch.float32, device=faults.device)
    most, width, rp = max(heights), parts[0].a.padded, max(16, pow2(max(ranks)))
    residual = given.base[0] if given.residual is None else given.residual
    ends = *three(given.base), residual, out, faults, count
    added = given.residual is not None
    if groups is None:
        sums = three([out.new_empty((count, rank)) for rank in ranks])
        words = x.high.view(torch.int32), x.low.view(torch.int32)
        launch(
            multiply_first, (ceil_div(max(ranks), RANKS), count, len(parts)), table, *words, x.e,
            index, *sums, faults, width // 4, words[0].shape[-1], BN=RANKS,
            BW=max(16, min(WORDS, pow2(width // 4))), START=given.start, early=True,
        )  # fmt: skip
        launch(
            add_second, (ceil_div(most, OUTPUTS), count, len(parts)), table, index, *sums, *ends,
            RP=rp, BN=OUTPUTS, RESIDUAL=added, START=given.start, early=True,
        )  # fmt: skip
    else:
        planes = torch.empty((len(parts), 2, count, rp), dtype=torch.int8, device=faults.device)
        exponents = x.e.new_empty((len(parts), count))
        rows = min(groups.height, FIRST.rows)
        cuts = groups.height // rows
        launch(
            multiply_first_tiles, (len(groups.tiles) * cuts, len(parts)), table, x.high, x.low, x.e,
            groups.order, groups.tiles, planes, exponents, faults, count, width,
            x.high.shape[-1], RP=rp, BM=rows, BK=min(FIRST.columns, max(32, pow2(width))),
            CUTS=cuts, warps=FIRST.warps, stages=FIRST.stages,
        )  # fmt: skip
        launch(
            add_second_tiles, (ceil_div(most, TILED), len(groups.tiles), len(parts)), table,
            groups.order, groups.tiles, planes.view(torch.int32), exponents, *ends, RP=rp,
            BN=TILED, RESIDUAL=added,
        )  # fmt: skip
    cut = out.split([count * height for height in heights])
    return [part.view(count, height) for part, height in zip(cut, heights, strict=True)]
