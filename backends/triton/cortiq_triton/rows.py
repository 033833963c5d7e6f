"""Primitives over the last axis: norms, softmax, quantised rows. Tiles of rows by 256 lanes."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton.language as tl

from cortiq.numerics.contract import F32
from cortiq.numerics.quantise import ZERO_ROW_EXPONENT
from cortiq_triton.language import (
    INTERPRETED,
    LARGEST_TILE,
    Tensor,
    begin,
    ceil_div,
    constant,
    device,
    kernel,
    launch,
    pow2,
)
from cortiq_triton.scalar import (
    SMALLEST_BITS,
    exp,
    exp2_int,
    fold,
    inverse,
    inverse_root,
    magnitude_bits,
    outside,
    rounded,
    snapped,
    split_planes,
)

ROWS = 4096 if INTERPRETED else 1
"""Rows of a program."""
ZERO_ROW = constant(ZERO_ROW_EXPONENT)
BELOW = constant(-(2.0**50))
PAD = 64
"""Quantised rows are padded with zeros to whole groups of so many."""
RMS, L2, LAYER = range(3)


class Rows(NamedTuple):
    """Quantised rows x ≈ (256·high + low)·2^e.

    high, low : int8 [..., K'], K' = K rounded up to 64, zero past K; e : int32 [...].
    sums : int32 [..., K'/16], Σq of each 16 columns. width : K.
    """

    high: torch.Tensor
    low: torch.Tensor
    e: torch.Tensor
    sums: torch.Tensor
    width: int

    def take(self, rows: torch.Tensor | slice) -> Rows:
        """Some rows of the batch."""
        return Rows(self.high[rows], self.low[rows], self.e[rows], self.sums[rows], self.width)


@device
def lanes_of(
    x: Tensor, m: Tensor, M: Tensor, n: Tensor, shift: Tensor, SQUARE: tl.constexpr,
    CENTRED: tl.constexpr, ROWS: tl.constexpr,
) -> Tensor:  # fmt: skip
    """The 256 lanes of x, x² or snap(x − shift)², [ROWS, 256], terms added in order."""
    lane = tl.arange(0, 256)
    lanes = tl.full((ROWS, 256), 0.0, tl.float32)
    for start in range(0, n, 256):
        inside = (m[:, None] < M) & (start + lane < n)[None, :]
        at = m[:, None].to(tl.int64) * n + (start + lane)[None, :]
        value = tl.load(x + at, mask=inside, other=0.0)
        if CENTRED:
            value = tl.where(inside, snapped(value - shift), 0.0)
        if SQUARE:
            value = value * value
        lanes += value
    return lanes


@kernel
def norm(
    x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, faults: Tensor, M: Tensor, n: Tensor,
    group: Tensor, one_over_n: Tensor, eps: Tensor, KIND: tl.constexpr, WEIGHT: tl.constexpr,
    BIAS: tl.constexpr, ROWS: tl.constexpr,
) -> None:  # fmt: skip
    """Rows of x [M, n] normalised: RMS, L2 or layer norm; `group` rows share a fault flag."""
    m, lane = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, 256)
    shift = tl.full((ROWS, 1), 0.0, tl.float32)
    if KIND == 2:
        shift = fold(lanes_of(x, m, M, n, shift, False, False, ROWS), ROWS) * one_over_n
    total = fold(lanes_of(x, m, M, n, shift, True, KIND == 2, ROWS), ROWS)
    if KIND != 1:
        total = total * one_over_n
    r = inverse_root(total + eps)
    for start in range(0, n, 256):
        column = start + lane
        inside = (m[:, None] < M) & (column < n)[None, :]
        at = m[:, None].to(tl.int64) * n + column[None, :]
        value = tl.load(x + at, mask=inside, other=0.0)
        fault = inside & (column < 0)[None, :]
        if KIND == 2:
            value = value - shift
            fault = fault | outside(value)
            value = snapped(value)
        y = value * r
        if WEIGHT:
            y = y * tl.load(weight + column, mask=column < n, other=0.0)[None, :]
        if BIAS:
            y = y + tl.load(bias + column, mask=column < n, other=0.0)[None, :]
        fault = inside & (fault | outside(y))
        tl.store(out + at, snapped(y), mask=inside)
        tl.store(faults + (m // group)[:, None] + column[None, :] * 0, 1, mask=fault)


def normalised(
    kind: int, x: torch.Tensor, faults: torch.Tensor, eps: float,
    weight: torch.Tensor | None = None, bias: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Norm of the last axis of x [rows, ..., n]."""
    out, n = torch.empty_like(x), x.shape[-1]
    count = x.numel() // n
    rows = min(ROWS, pow2(count))
    launch(
        norm, (ceil_div(count, rows),), x, x if weight is None else weight,
        x if bias is None else bias, out, faults, count, n, max(1, count // max(1, len(x))),
        float(F32(1) / F32(n)), float(F32(eps)),
        KIND=kind, WEIGHT=weight is not None, BIAS=bias is not None, ROWS=rows,
    )  # fmt: skip
    return out


@device
def softmax_sum(
    x: Tensor, at: Tensor, allowed: Tensor, largest: Tensor, lanes: Tensor
) -> tuple[Tensor, Tensor]:
    """exp(x − largest) where allowed, else +0, and the lanes with it added."""
    value = tl.load(x + at, mask=allowed, other=0.0)
    p = tl.where(allowed, exp(tl.where(allowed, value - largest, 0.0)), 0.0)
    return p, lanes + p


@kernel
def softmax(
    x: Tensor, out: Tensor, faults: Tensor, M: Tensor, n: Tensor, group: Tensor, ROWS: tl.constexpr
) -> None:
    """Softmax of rows of x [M, n]."""
    m, lane = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, 256)
    largest = tl.full((ROWS, 1), -(2.0**50), tl.float32)
    for start in range(0, n, 256):
        inside = (m[:, None] < M) & (start + lane < n)[None, :]
        at = m[:, None].to(tl.int64) * n + (start + lane)[None, :]
        value = tl.load(x + at, mask=inside, other=-(2.0**50))
        largest = tl.maximum(largest, row_maximum(value))
    lanes = tl.full((ROWS, 256), 0.0, tl.float32)
    for start in range(0, n, 256):
        inside = (m[:, None] < M) & (start + lane < n)[None, :]
        at = m[:, None].to(tl.int64) * n + (start + lane)[None, :]
        _, lanes = softmax_sum(x, at, inside, largest, lanes)
    total = fold(lanes, ROWS)
    scale = inverse(tl.where(total > 0.0, total, 1.0))
    for start in range(0, n, 256):
        inside = (m[:, None] < M) & (start + lane < n)[None, :]
        at = m[:, None].to(tl.int64) * n + (start + lane)[None, :]
        p, _ = softmax_sum(x, at, inside, largest, lanes)
        tl.store(out + at, snapped(p * scale), mask=inside)
        tl.store(faults + (m // group)[:, None] + at * 0, 1, mask=inside & outside(p * scale))


@device
def ordered_bits(x: Tensor) -> Tensor:
    """int32 that orders as the floats do."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@device
def row_maximum(x: Tensor) -> Tensor:
    """The largest value of each row of [ROWS, n]: [ROWS, 1], by integers."""
    key = tl.max(ordered_bits(x), 1)[:, None]
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


def softmaxed(x: torch.Tensor, faults: torch.Tensor) -> torch.Tensor:
    """Softmax of the last axis."""
    out, n = torch.empty_like(x), x.shape[-1]
    count = x.numel() // n
    rows = min(ROWS, pow2(count))
    group = max(1, count // max(1, len(x)))
    launch(softmax, (ceil_div(count, rows),), x, out, faults, count, n, group, ROWS=rows)
    return out


@device
def exponent_of(largest: Tensor) -> Tensor:
    """e of a row whose largest magnitude has these bits."""
    e = ((largest + 0x20000) >> 23) - 141
    return tl.where(largest < SMALLEST_BITS, ZERO_ROW, e)


@device
def quantised(value: Tensor, largest: Tensor, e: Tensor) -> Tensor:
    """q = rint(x·2^−e), 0 in a row of zeros."""
    scale = tl.where(largest < SMALLEST_BITS, 0.0, exp2_int(-e))
    return rounded(value * scale)


@kernel
def quantise(
    x: Tensor, high: Tensor, low: Tensor, exponent: Tensor, sums: Tensor, M: Tensor, n: Tensor,
    padded: Tensor, ROWS: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Rows of x [M, n] as planes [M, padded], exponents [M] and sums [M, padded/16]."""
    m, lane = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    largest = tl.full((ROWS, 1), 0, tl.int32)
    begin()
    for start in range(0, n, WIDTH):
        inside = (m[:, None] < M) & (start + lane < n)[None, :]
        at = m[:, None].to(tl.int64) * n + (start + lane)[None, :]
        value = tl.load(x + at, mask=inside, other=0.0)
        largest = tl.maximum(largest, tl.max(magnitude_bits(value), 1)[:, None])
    e = exponent_of(largest)
    tl.store(exponent + m[:, None], e, mask=m[:, None] < M)
    sixteenth = tl.arange(0, WIDTH // 16)
    for start in range(0, padded, WIDTH):
        column = start + lane
        inside = (m[:, None] < M) & (column < n)[None, :]
        value = tl.load(x + m[:, None].to(tl.int64) * n + column[None, :], mask=inside, other=0.0)
        q = quantised(value, largest, e)
        q_high, q_low = split_planes(q)
        there = (m[:, None] < M) & (column < padded)[None, :]
        at = m[:, None].to(tl.int64) * padded + column[None, :]
        tl.store(high + at, q_high, mask=there)
        tl.store(low + at, q_low, mask=there)
        total = tl.sum(tl.reshape(q, (ROWS, WIDTH // 16, 16)), 2)
        group = start // 16 + sixteenth
        there = (m[:, None] < M) & (group < padded // 16)[None, :]
        at = m[:, None].to(tl.int64) * (padded // 16) + group[None, :]
        tl.store(sums + at, total, mask=there)


@kernel
def quantise_known(
    x: Tensor, largest: Tensor, high: Tensor, low: Tensor, exponent: Tensor, sums: Tensor,
    n: Tensor, padded: Tensor, parts: Tensor, WIDTH: tl.constexpr, PARTS: tl.constexpr,
) -> None:  # fmt: skip
    """Part of a row of x [M, n] by the largest magnitudes of all its parts, [M, parts]."""
    m, part = tl.program_id(1), tl.arange(0, PARTS)
    begin()
    most = tl.max(tl.load(largest + m * parts + part, mask=part < parts, other=0), 0)
    e = exponent_of(most)
    column = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    start = m.to(tl.int64)
    value = tl.load(x + start * n + column, mask=column < n, other=0.0)
    q = quantised(value, most, e)
    q_high, q_low = split_planes(q)
    tl.store(high + start * padded + column, q_high, mask=column < padded)
    tl.store(low + start * padded + column, q_low, mask=column < padded)
    group = tl.program_id(0) * (WIDTH // 16) + tl.arange(0, WIDTH // 16)
    total = tl.sum(tl.reshape(q, (WIDTH // 16, 16)), 1)
    tl.store(sums + start * (padded // 16) + group, total, mask=group < padded // 16)
    if tl.program_id(0) == 0:
        tl.store(exponent + m, e)


def quantise_parts(x: torch.Tensor, largest: torch.Tensor) -> Rows:
    """Quantised rows of x [M, n]; largest : int32 [M, parts], bits of their largest magnitudes."""
    count, n = x.shape
    rows, parts = empty_rows((count,), n, x.device), largest.shape[1]
    padded = rows.high.shape[-1]
    width = min(pow2(padded), 1024)
    launch(
        quantise_known, (ceil_div(padded, width), count), x, largest, *rows[:4], n, padded, parts,
        WIDTH=width, PARTS=pow2(parts), early=True,
    )  # fmt: skip
    return rows


def empty_rows(lead: tuple[int, ...], width: int, device: torch.device | str) -> Rows:
    """Room for quantised rows [*lead, width]."""
    padded = -(-width // PAD) * PAD
    planes = torch.empty((2, *lead, padded), dtype=torch.int8, device=device)
    e = torch.empty(lead, dtype=torch.int32, device=device)
    sums = torch.empty((*lead, padded // 16), dtype=torch.int32, device=device)
    return Rows(planes[0], planes[1], e, sums, width)


def quantise_rows(x: torch.Tensor) -> Rows:
    """Rows (last axis) of x to 16-bit integers and an exponent."""
    rows, n = empty_rows(x.shape[:-1], x.shape[-1], x.device), x.shape[-1]
    padded, count = rows.high.shape[-1], rows.e.numel()
    width = min(pow2(padded), 4096)
    size = min(ROWS, pow2(count), LARGEST_TILE // width)
    grid = (ceil_div(count, size),)
    launch(quantise, grid, x, *rows[:4], count, n, padded, ROWS=size, WIDTH=width, early=True)
    return rows
