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
    device,
    kernel,
    launch,
    pow2,
)
from cortiq_triton.matvec import dp4a, words_dot
from cortiq_triton.products import EXPERTS, Stack, grouped_rows, product
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
TILE, SPAN = (4096, 4096) if INTERPRETED else (32, 128)
"""Outputs of a tile, and of a program, which has one tile after the other. Of more in a tile,
threads hold so many registers that a multiprocessor runs one program at a time; 128 allow two.
"""


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
) -> None:  # fmt: skip
    """A·x of a row, some of its sums; KW words a row, of x `stride`."""
    row, part = tl.program_id(1), tl.program_id(2)
    codes, scale = words_at(table, part, 0), floats_at(table, part, 1)
    plane = tl.multiple_of(fact(table, part, 2), 4)
    rank = fact(table, part, 3)
    n, word = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BW)
    seen = n < rank
    begin()
    first = tl.load(index + row).to(tl.int64) * rank
    words = codes + (first + n)[:, None] * KW
    high = tl.full((1, BN, BW // 4), 0, tl.int32)
    middle = tl.full((1, BN, BW // 4), 0, tl.int32)
    low = tl.full((1, BN, BW // 4), 0, tl.int32)
    q = row.to(tl.int64) * stride
    for start in range(0, KW, BW):
        at = start + word
        hi = tl.load(qh + q + at, mask=at < KW, other=0)[None, None]
        lo = tl.load(ql + q + at, mask=at < KW, other=0)[None, None]
        there = seen[:, None] & (at < KW)[None, :]
        c = tl.load(words + at[None, :], mask=there, other=0)[None]
        d = tl.load(words + plane + at[None, :], mask=there, other=0)[None]
        high = words_dot(c, hi, high)
        middle = words_dot(c, lo, words_dot(d, hi, middle))
        low = words_dot(d, lo, low)
    y = round_three_planes(sum_of(high, BN), sum_of(middle, BN), sum_of(low, BN))
    y = y * tl.load(scale + first + n, mask=seen, other=0.0)
    y = y * exp2_int(tl.load(qe + row))
    out = chosen(part, r0, r1, r2) + row.to(tl.int64) * rank + n
    tl.store(out, snapped(y), mask=seen)
    tl.store(faults + row + n * 0, 1, mask=seen & outside(y))


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


@kernel
def add_second(
    table: Tensor, index: Tensor, r0: Tensor, r1: Tensor, r2: Tensor, y0: Tensor, y1: Tensor,
    y2: Tensor, out: Tensor, faults: Tensor, R: Tensor, RP: tl.constexpr, BN: tl.constexpr,
) -> None:  # fmt: skip
    """y + B·quantise(r) of a row, some of its outputs; RP sums of A at most."""
    row, part = tl.program_id(1), tl.program_id(2)
    codes, scale = words_at(table, part, 4), floats_at(table, part, 5)
    plane = tl.multiple_of(fact(table, part, 6), 4)
    height, rank = fact(table, part, 7), fact(table, part, 3)
    KW = tl.multiple_of(fact(table, part, 8), 4)
    n, word, k = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, RP // 4), tl.arange(0, RP)
    seen = n < height
    begin()
    m = row.to(tl.int64)
    first = tl.load(index + row).to(tl.int64) * height
    r = tl.load(chosen(part, r0, r1, r2) + m * rank + k, mask=k < rank, other=0.0)
    largest = tl.max(magnitude_bits(r), 0)
    e = exponent_of(largest)
    q_high, q_low = split_planes(quantised(r, largest, e))
    hi, lo = as_words(q_high, RP)[None, :], as_words(q_low, RP)[None, :]
    at = (first + n)[:, None] * KW + word[None, :]
    there = seen[:, None] & (word < KW)[None, :]
    c = tl.load(codes + at, mask=there, other=0)
    d = tl.load(codes + plane + at, mask=there, other=0)
    high, low = tl.sum(dp4a(c, hi), 1), tl.sum(dp4a(d, lo), 1)
    middle = tl.sum(dp4a(c, lo) + dp4a(d, hi), 1)
    y = round_three_planes(high, middle, low)
    y = y * tl.load(scale + first + n, mask=seen, other=0.0)
    y = y * exp2_int(e)
    bad, before = outside(y), chosen(part, y0, y1, y2) + m * height + n
    y = tl.load(before, mask=seen, other=0.0) + snapped(y)
    bad = bad | outside(y)
    tl.store(out + fact(table, part, 9) * R + m * height + n, snapped(y), mask=seen)
    tl.store(faults + row + n * 0, 1, mask=seen & bad)


@kernel
def add_second_tiles(
    table: Tensor, order: Tensor, tiles: Tensor, r0: Tensor, r1: Tensor, r2: Tensor, y0: Tensor,
    y1: Tensor, y2: Tensor, out: Tensor, faults: Tensor, R: Tensor, RP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, SPAN: tl.constexpr,
) -> None:  # fmt: skip
    """As `add_second`, of a tile of rows of one overlay, whose sums are quantised once for SPAN
    outputs.
    """
    tile, part = tl.program_id(1), tl.program_id(2)
    member, start = tl.load(tiles + tile * 3), tl.load(tiles + tile * 3 + 1)
    height, rank = fact(table, part, 7), fact(table, part, 3)
    first = tl.program_id(0) * SPAN
    if (member < 0) | (first >= height):
        return
    codes = tl.multiple_of(fact(table, part, 4).to(tl.pointer_type(tl.int8)), 16)
    scale, plane = floats_at(table, part, 5), tl.multiple_of(fact(table, part, 6) * 4, 16)
    K = tl.multiple_of(fact(table, part, 8) * 4, 16)
    k, place = tl.arange(0, RP), start + tl.arange(0, BM)
    live = place < tl.load(tiles + tile * 3 + 2)
    m = tl.load(order + place, mask=live, other=0).to(tl.int64)
    at = m[:, None] * rank + k[None, :]
    inside = live[:, None] & (k < rank)[None, :]
    r = tl.load(chosen(part, r0, r1, r2) + at, mask=inside, other=0.0)
    largest = tl.max(magnitude_bits(r), 1)[:, None]
    e = exponent_of(largest)
    q_high, q_low = split_planes(quantised(r, largest, e))
    before, after = chosen(part, y0, y1, y2), out + fact(table, part, 9) * R
    nothing, bad = tl.full((BM, BN), 0, tl.int32), tl.full((BM,), 0, tl.int32)
    for top in range(first, tl.minimum(first + SPAN, height.to(tl.int32)), BN):
        n = top + tl.arange(0, BN)
        seen = n < height
        row = member.to(tl.int64) * height + n
        word, there = row[:, None] * K + k[None, :], seen[:, None] & (k < K)[None, :]
        c = tl.trans(tl.load(codes + word, mask=there, other=0))
        d = tl.trans(tl.load(codes + plane + word, mask=there, other=0))
        high = tl.dot(q_high, c, nothing, out_dtype=tl.int32)
        middle = tl.dot(q_low, c, nothing, out_dtype=tl.int32)
        middle = tl.dot(q_high, d, middle, out_dtype=tl.int32)
        low = tl.dot(q_low, d, nothing, out_dtype=tl.int32)
        y = round_three_planes(high, middle, low)
        y = y * tl.load(scale + row, mask=seen, other=0.0)[None, :]
        y = y * exp2_int(e)
        wrong, output = outside(y), m[:, None] * height + n[None, :]
        kept = live[:, None] & seen[None, :]
        y = tl.load(before + output, mask=kept, other=0.0) + snapped(y)
        wrong = kept & (wrong | outside(y))
        tl.store(after + output, snapped(y), mask=kept)
        bad = bad | tl.max(wrong.to(tl.int32), 1)
    tl.store(faults + m, 1, mask=live & (bad > 0))


def three(arrays: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """As many as kernels name; the first stands in for what there is not."""
    return tuple([*arrays, arrays[0], arrays[0]][:MOST])


def with_low_rank(
    table: torch.Tensor, parts: Sequence[FactorBanks], members: int, x: Rows, index: torch.Tensor,
    base: Sequence[torch.Tensor], faults: torch.Tensor, known: dict[tuple[int, int], Groups],
) -> list[torch.Tensor]:  # fmt: skip
    """Sums of `base`, products of rows x, and what the overlay of each row adds to them.

    index : int32 [rows, 1], the overlays. known : groups of these rows.
    """
    count = len(index)
    ranks, heights = ([w.height // members for w in side] for side in zip(*parts, strict=True))
    groups = grouped_rows(parts[0].a, count, Stack(EXPERTS, ranks[0], index=index, groups=known))
    out = torch.empty(count * sum(heights), dtype=torch.float32, device=faults.device)
    if groups is None:
        sums = [out.new_empty((count, rank)) for rank in ranks]
        kw, stride = parts[0].a.padded // 4, x.high.shape[-1] // 4
        launch(
            multiply_first, (ceil_div(max(ranks), RANKS), count, len(parts)), table,
            x.high.view(torch.int32), x.low.view(torch.int32), x.e, index, *three(sums), faults,
            kw, stride, BN=RANKS, BW=max(16, min(WORDS, pow2(kw))), early=True,
        )  # fmt: skip
        width = max(16, pow2(max(ranks)))
        launch(
            add_second, (ceil_div(max(heights), OUTPUTS), count, len(parts)), table, index,
            *three(sums), *three(base), out, faults, count, RP=width, BN=OUTPUTS, early=True,
        )  # fmt: skip
    else:
        sums = [
            product(a, x, count, faults, Stack(EXPERTS, rank, index=index, groups=known))
            for (a, _), rank in zip(parts, ranks, strict=True)
        ]
        grid = (ceil_div(max(heights), SPAN), len(groups.tiles), len(parts))
        launch(
            add_second_tiles, grid, table, groups.order, groups.tiles, *three(sums), *three(base),
            out, faults, count, RP=max(32, pow2(max(ranks))), BM=groups.height, BN=TILE,
            SPAN=SPAN, warps=8, registers=128,
        )  # fmt: skip
    cut = out.split([count * height for height in heights])
    return [part.view(count, height) for part, height in zip(cut, heights, strict=True)]
