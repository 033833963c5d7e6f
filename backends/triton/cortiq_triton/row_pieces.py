"""Rows in registers as pieces of some columns, a tuple of tensors [rows, columns of a piece]: a row
whose width is no power of two wastes a part of its last piece, not up to half of all threads.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton.language as tl

from cortiq.numerics.contract import F32
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
from cortiq_triton.rows import Rows, empty_rows, exponent_of, quantised
from cortiq_triton.scalar import fold, inverse_root, magnitude_bits, outside, snapped, split_planes

ROWS = 64 if INTERPRETED else 1
MOST_PIECES = 8
"""Pieces of a row, each with eight columns a thread: 64 registers of values."""
WIDEST_PIECES = 256 * MOST_PIECES
"""Columns up to which one warp normalises a row, which waits for no other warp then."""


def pieces_of(n: int) -> tuple[int, int]:
    """Columns of a piece of rows of n columns, and pieces: one, unless it would be much wider."""
    width, count = max(64, pow2(n)), 1
    while width > 256 and count < MOST_PIECES and (width * count - n) * 5 > n:
        width //= 2
        count = ceil_div(n, width)
    return width, count


@device
def store_pieces(
    parts: Tensor, m: Tensor, M: Tensor, high: Tensor, low: Tensor, exponent: Tensor,
    sums: Tensor, padded: Tensor, COUNT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Planes, exponents and sums of rows in COUNT pieces [ROWS, WIDTH], zero past their end."""
    live, bits = (m < M)[:, None], magnitude_bits(parts[0])
    for piece in tl.static_range(1, COUNT):
        bits = tl.maximum(bits, magnitude_bits(parts[piece]))
    largest = tl.max(bits, 1)[:, None]
    e = exponent_of(largest)
    tl.store(exponent + m[:, None], e, mask=live)
    row, sixteenths = m.to(tl.int64)[:, None] * padded, m.to(tl.int64)[:, None] * (padded // 16)
    for piece in tl.static_range(COUNT):
        i = piece * WIDTH + tl.arange(0, WIDTH)
        q = quantised(parts[piece], largest, e)
        q_high, q_low = split_planes(q)
        there = live & (i < padded)[None, :]
        tl.store(high + row + i[None, :], q_high, mask=there)
        tl.store(low + row + i[None, :], q_low, mask=there)
        total = tl.sum(tl.reshape(q, (ROWS, WIDTH // 16, 16)), 2)
        j = piece * (WIDTH // 16) + tl.arange(0, WIDTH // 16)
        tl.store(sums + sixteenths + j[None, :], total, mask=live & (j < padded // 16)[None, :])


@device
def lanes_of_pieces(
    parts: Tensor, shift: Tensor, n: Tensor, COUNT: tl.constexpr, SQUARE: tl.constexpr,
    CENTRED: tl.constexpr,
) -> Tensor:  # fmt: skip
    """The 256 lanes of x, x² or snap(x − shift)² of rows in pieces of 256, terms added in order."""
    lane = tl.arange(0, 256)[None, :]
    lanes = tl.full(parts[0].shape, 0.0, tl.float32)
    for piece in tl.static_range(COUNT):
        term = parts[piece]
        if CENTRED:
            term = tl.where(piece * 256 + lane < n, snapped(term - shift), 0.0)
        if SQUARE:
            term = term * term
        lanes += term
    return lanes


@kernel
def norm_pieces(
    x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, high: Tensor, low: Tensor,
    exponent: Tensor, sums: Tensor, faults: Tensor, M: Tensor, n: Tensor, padded: Tensor,
    one_over_n: Tensor, eps: Tensor, KIND: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr,
    KEEP: tl.constexpr, COUNT: tl.constexpr, ROWS: tl.constexpr,
) -> None:  # fmt: skip
    """As `fused.norm_quantise`, in COUNT pieces of 256 columns, by one warp."""
    m, lane = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, 256)[None, :]
    live, start = (m < M)[:, None], m.to(tl.int64)[:, None] * n
    begin()
    parts = ()
    for piece in tl.static_range(COUNT):
        column = piece * 256 + lane
        value = tl.load(x + start + column, mask=live & (column < n), other=0.0)
        parts = parts + (value,)  # type: ignore[assignment]  # noqa: RUF005
    shift = tl.full((ROWS, 1), 0.0, tl.float32)
    if KIND == 2:
        shift = fold(lanes_of_pieces(parts, shift, n, COUNT, False, False), ROWS) * one_over_n
    total = fold(lanes_of_pieces(parts, shift, n, COUNT, True, KIND == 2), ROWS)
    root = inverse_root(total * one_over_n + eps)
    worst, normed = tl.full((ROWS, 256), 0, tl.int32), ()
    for piece in tl.static_range(COUNT):
        column = piece * 256 + lane
        inside = live & (column < n)
        y = parts[piece]  # type: ignore[var-annotated]
        if KIND == 2:
            y = y - shift
            worst = tl.maximum(worst, tl.where(inside, magnitude_bits(y), 0))
            y = snapped(y)
        y = y * root
        if WEIGHT:
            y = y * tl.load(weight + column, mask=column < n, other=0.0)
        if BIAS:
            y = y + tl.load(bias + column, mask=column < n, other=0.0)
        y = tl.where(inside, y, 0.0)
        worst = tl.maximum(worst, magnitude_bits(y))
        y = snapped(y)
        if KEEP:
            tl.store(out + start + column, y, mask=inside)
        normed = normed + (y,)  # type: ignore[assignment]  # noqa: RUF005
    bad = outside(tl.max(worst, 1).to(tl.float32, bitcast=True))
    tl.store(faults + m, 1, mask=(m < M) & bad)
    store_pieces(normed, m, M, high, low, exponent, sums, padded, COUNT, ROWS, 256)


def normed_pieces(
    kind: int, x: torch.Tensor, weights: Mapping[str, torch.Tensor], eps: float,
    faults: torch.Tensor, keep: bool,
) -> tuple[torch.Tensor, Rows]:  # fmt: skip
    """As `fused.normed_rows`."""
    count, n = x.shape
    rows, out = empty_rows((count,), n, x.device), torch.empty_like(x) if keep else x
    size = min(ROWS, pow2(count))
    launch(
        norm_pieces, (ceil_div(count, size),), x, weights.get("weight", x), weights.get("bias", x),
        out, *rows[:4], faults, count, n, rows.high.shape[-1], float(F32(1) / F32(n)),
        float(F32(eps)), KIND=kind, WEIGHT="weight" in weights, BIAS="bias" in weights, KEEP=keep,
        COUNT=ceil_div(n, 256), ROWS=size, warps=1, early=True,
    )  # fmt: skip
    return out, rows
