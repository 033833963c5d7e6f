"""Kernels of several primitives in a row, every snap and rounding where it was.

A whole row is held in registers, as [rows, chunks, 256 lanes], so that it is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton.language as tl

from cortiq.numerics.contract import F32
from cortiq_triton.language import (
    INTERPRETED,
    LARGEST_TILE,
    Tensor,
    begin,
    ceil_div,
    device,
    kernel,
    launch,
    pow2,
)
from cortiq_triton.row_pieces import WIDEST_PIECES, normed_pieces, pieces_of, store_pieces
from cortiq_triton.rows import Rows, empty_rows, quantise_parts
from cortiq_triton.scalar import (
    LARGEST_BITS,
    fold,
    inverse_root,
    magnitude_bits,
    outside,
    snapped,
)

ROWS = 64 if INTERPRETED else 1
WIDEST_NORM = 8192
"""Columns up to which a row is normalised in registers."""
FEW_ROWS = 2 if INTERPRETED else 128
"""Rows up to which a gated row is for several programs."""
PART = 1024
"""Columns of such a program."""
REGISTERS, LIMITED = 64, 16384
"""Registers of a thread that quantises a gated row of up to LIMITED columns: two programs of 16
warps fit a processor, one of which loads while the other computes.
"""
WIDEST = 32768
"""Columns up to which a gated row is quantised in registers."""


def warps_of(width: int) -> int:
    """Warps of a program that holds a row of so many columns: at most 16 elements a thread."""
    return max(1, min(16, pow2(width) // 512))


@kernel
def norm_quantise(
    x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, high: Tensor, low: Tensor,
    exponent: Tensor, sums: Tensor, faults: Tensor, M: Tensor, n: Tensor, padded: Tensor,
    one_over_n: Tensor, eps: Tensor, KIND: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr,
    KEEP: tl.constexpr, ROWS: tl.constexpr, CHUNKS: tl.constexpr,
) -> None:  # fmt: skip
    """Rows x [M, n] normalised (`rows.norm`), quantised; with KEEP the normed rows too."""
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    i, lane = tl.arange(0, CHUNKS * 256), tl.arange(0, 256)
    live, start = (m < M)[:, None], m.to(tl.int64)[:, None] * n
    scale = tl.full((CHUNKS * 256,), 1.0, tl.float32)
    more = scale
    if WEIGHT:
        scale = tl.load(weight + i, mask=i < n, other=0.0)
    if BIAS:
        more = tl.load(bias + i, mask=i < n, other=0.0)
    begin()
    inside = live & (i < n)[None, :]
    value = tl.load(x + start + i[None, :], mask=inside, other=0.0)
    shift = tl.full((ROWS, 1), 0.0, tl.float32)
    if KIND == 2:
        lanes = tl.full((ROWS, 256), 0.0, tl.float32)
        for chunk in tl.static_range(CHUNKS):
            column = chunk * 256 + lane
            there = live & (column < n)[None, :]
            lanes += tl.load(x + start + column[None, :], mask=there, other=0.0)
        shift = fold(lanes, ROWS) * one_over_n
    lanes = tl.full((ROWS, 256), 0.0, tl.float32)
    for chunk in tl.static_range(CHUNKS):
        column = chunk * 256 + lane
        there = live & (column < n)[None, :]
        term = tl.load(x + start + column[None, :], mask=there, other=0.0)
        if KIND == 2:
            term = tl.where(there, snapped(term - shift), 0.0)
        lanes += term * term
    fault = inside & (i < 0)[None, :]
    if KIND == 2:
        value = value - shift
        fault = inside & outside(value)
        value = snapped(value)
    y = value * inverse_root(fold(lanes, ROWS) * one_over_n + eps)
    if WEIGHT:
        y = y * scale[None, :]
    if BIAS:
        y = y + more[None, :]
    bad = tl.max((fault | (inside & outside(y))).to(tl.int32), 1)
    tl.store(faults + m, 1, mask=(m < M) & (bad > 0))
    y = tl.where(inside, snapped(y), 0.0) if KIND == 2 else snapped(y)
    if KEEP:
        tl.store(out + start + i[None, :], y, mask=inside)
    store_pieces((y,), m, M, high, low, exponent, sums, padded, 1, ROWS, CHUNKS * 256)


def normed_rows(
    kind: int, x: torch.Tensor, weights: Mapping[str, torch.Tensor], eps: float,
    faults: torch.Tensor, keep: bool,
) -> tuple[torch.Tensor, Rows]:  # fmt: skip
    """RMS or layer norm of x [rows, n] (memory for it only, unless it is kept), and its quantised
    rows.
    """
    count, n = x.shape
    if count > FEW_ROWS and n <= WIDEST_PIECES:
        return normed_pieces(kind, x, weights, eps, faults, keep)
    rows, out = empty_rows((count,), n, x.device), torch.empty_like(x) if keep else x
    size = min(ROWS, pow2(count))
    launch(
        norm_quantise, (ceil_div(count, size),), x, weights.get("weight", x),
        weights.get("bias", x), out, *rows[:4], faults, count, n, rows.high.shape[-1],
        float(F32(1) / F32(n)), float(F32(eps)), KIND=kind, WEIGHT="weight" in weights,
        BIAS="bias" in weights, KEEP=keep, ROWS=size, CHUNKS=pow2(ceil_div(n, 256)),
        warps=warps_of(n), early=True,
    )  # fmt: skip
    return out, rows


@device
def gated(
    gate: Tensor, up: Tensor, faults: Tensor, m: Tensor, M: Tensor, i: Tensor, n: Tensor,
    FUNCTION: tl.constexpr, GATES: tl.constexpr,
) -> Tensor:  # fmt: skip
    """snap(snap(f(gate))·up) at columns i of rows m, 0 outside; faults are flagged. Unless it GATES
    anything, snap(f(gate)).
    """
    inside = (m < M)[:, None] & (i < n)[None, :]
    at = m.to(tl.int64)[:, None] * n + i[None, :]
    g = tl.load(gate + at, mask=inside, other=0.0)
    if GATES:
        u = tl.load(up + at, mask=inside, other=0.0)
    a = FUNCTION(g, g, 0.0, 0.0)
    y, worst = a, magnitude_bits(a)
    if GATES:
        y = snapped(a) * u  # +0 outside, where `up` is
        worst = tl.maximum(worst, magnitude_bits(y))
    else:
        y = tl.where(inside, y, 0.0)
    tl.store(faults + m, 1, mask=(m < M) & (tl.max(worst, 1) >= LARGEST_BITS))
    return snapped(y)


@kernel
def gate_quantise(
    gate: Tensor, up: Tensor, high: Tensor, low: Tensor, exponent: Tensor, sums: Tensor,
    faults: Tensor, M: Tensor, n: Tensor, padded: Tensor, FUNCTION: tl.constexpr,
    GATES: tl.constexpr, COUNT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """The gated rows [M, n], quantised: a program for whole rows, in COUNT pieces."""
    m, i = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    begin()
    parts = ()
    for piece in tl.static_range(COUNT):
        y = gated(gate, up, faults, m, M, piece * WIDTH + i, n, FUNCTION, GATES)
        parts = parts + (y,)  # type: ignore[assignment]  # noqa: RUF005
    store_pieces(parts, m, M, high, low, exponent, sums, padded, COUNT, ROWS, WIDTH)


@kernel
def gate_parts(
    gate: Tensor, up: Tensor, out: Tensor, largest: Tensor, faults: Tensor, M: Tensor, n: Tensor,
    FUNCTION: tl.constexpr, GATES: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """The gated rows [M, n] as floats, and the bits of each part's largest magnitude."""
    m = tl.program_id(1) + tl.arange(0, 1)
    i = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    begin()
    y = gated(gate, up, faults, m, M, i, n, FUNCTION, GATES)
    tl.store(out + m.to(tl.int64)[:, None] * n + i[None, :], y, mask=(i < n)[None, :])
    part = m * tl.num_programs(0) + tl.program_id(0)
    tl.store(largest + part, tl.max(magnitude_bits(y), 1))


def gated_parts(
    function: Callable[..., Any], gate: torch.Tensor, up: torch.Tensor | None, faults: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of f(gate)·up, or of f(gate), and the bits of their parts' largest magnitudes,
    [rows, parts].
    """
    count, n = gate.shape
    y, width = torch.empty_like(gate), min(PART, max(64, pow2(n)))
    parts = ceil_div(n, width)
    largest = torch.empty((count, parts), dtype=torch.int32, device=gate.device)
    launch(
        gate_parts, (parts, count), gate, gate if up is None else up, y, largest, faults, count, n,
        FUNCTION=function, GATES=up is not None, WIDTH=width, early=True,
    )  # fmt: skip
    return y, largest


def gated_rows(
    function: Callable[..., Any], gate: torch.Tensor, up: torch.Tensor | None, faults: torch.Tensor
) -> Rows:
    """The quantised rows of f(gate)·up, or of f(gate)."""
    count, n = gate.shape
    if count <= FEW_ROWS and n > PART:
        return quantise_parts(*gated_parts(function, gate, up, faults))
    rows, (width, pieces) = empty_rows((count,), n, gate.device), pieces_of(n)
    size = min(ROWS, pow2(count), LARGEST_TILE // width)
    whole = pieces == 1
    launch(
        gate_quantise, (ceil_div(count, size),), gate, gate if up is None else up, *rows[:4],
        faults, count, n, rows.high.shape[-1], FUNCTION=function, GATES=up is not None,
        COUNT=pieces, ROWS=size, WIDTH=width, warps=16 if whole else max(1, width // 256),
        early=True, registers=REGISTERS if whole and width <= LIMITED else 0,
    )  # fmt: skip
    return rows
