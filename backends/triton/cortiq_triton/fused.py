"""Kernels of several primitives in a row, every snap and rounding where it was.

A whole row is held in registers, as [rows, chunks, 256 lanes], so that it is read once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton.language as tl

from cortiq.numerics.contract import F32
from cortiq_triton.language import (
    INTERPRETED,
    LARGEST_TILE,
    Tensor,
    ceil_div,
    device,
    kernel,
    launch,
    pow2,
)
from cortiq_triton.rows import Rows, empty_rows, exponent_of, quantised
from cortiq_triton.scalar import (
    fold,
    inverse_root,
    magnitude_bits,
    outside,
    snapped,
    split_planes,
)
from cortiq_triton.sums import lanes_in_order

ROWS = 64 if INTERPRETED else 1
WIDEST_NORM = 8192
"""Columns up to which a row is normalised in registers."""
WIDEST = 32768
"""Columns up to which a gated row is quantised in registers."""


@device
def store_quantised(
    y: Tensor, m: Tensor, M: Tensor, high: Tensor, low: Tensor, exponent: Tensor, sums: Tensor,
    padded: Tensor, ROWS: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Planes, exponents and sums of rows y [ROWS, WIDTH], zero past their end."""
    live, i = (m < M)[:, None], tl.arange(0, WIDTH)
    largest = tl.max(magnitude_bits(y), 1)[:, None]
    e = exponent_of(largest)
    tl.store(exponent + m[:, None], e, mask=live)
    q = quantised(y, largest, e)
    q_high, q_low = split_planes(q)
    there = live & (i < padded)[None, :]
    at = m.to(tl.int64)[:, None] * padded + i[None, :]
    tl.store(high + at, q_high, mask=there)
    tl.store(low + at, q_low, mask=there)
    total = tl.sum(tl.reshape(q, (ROWS, WIDTH // 16, 16)), 2)
    j = tl.arange(0, WIDTH // 16)
    there = live & (j < padded // 16)[None, :]
    tl.store(sums + m.to(tl.int64)[:, None] * (padded // 16) + j[None, :], total, mask=there)


@kernel
def norm_quantise(
    x: Tensor, weight: Tensor, out: Tensor, high: Tensor, low: Tensor, exponent: Tensor,
    sums: Tensor, faults: Tensor, M: Tensor, n: Tensor, padded: Tensor, one_over_n: Tensor,
    eps: Tensor, WEIGHT: tl.constexpr, KEEP: tl.constexpr, ROWS: tl.constexpr,
    CHUNKS: tl.constexpr,
) -> None:  # fmt: skip
    """RMSNorm of rows x [M, n], quantised; with KEEP the normed rows too."""
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    i = tl.arange(0, CHUNKS)[:, None] * 256 + tl.arange(0, 256)[None, :]
    inside = (m < M)[:, None, None] & (i < n)[None, :, :]
    at = m.to(tl.int64)[:, None, None] * n + i[None, :, :]
    value = tl.load(x + at, mask=inside, other=0.0)
    mean = fold(lanes_in_order(value * value, ROWS, CHUNKS), ROWS) * one_over_n
    y = value * inverse_root(mean + eps)[:, :, None]
    if WEIGHT:
        y = y * tl.load(weight + i, mask=i < n, other=0.0)[None, :, :]
    tl.store(faults + m[:, None, None] + i[None, :, :] * 0, 1, mask=inside & outside(y))
    y = snapped(y)
    if KEEP:
        tl.store(out + at, y, mask=inside)
    flat = tl.reshape(y, (ROWS, CHUNKS * 256))
    store_quantised(flat, m, M, high, low, exponent, sums, padded, ROWS, CHUNKS * 256)


def normed_rows(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, faults: torch.Tensor, keep: bool
) -> tuple[torch.Tensor, Rows]:
    """RMSNorm of x [rows, n] (memory for it only, unless it is kept), and its quantised rows."""
    count, n = x.shape
    rows, out = empty_rows((count,), n, x.device), torch.empty_like(x) if keep else x
    size = min(ROWS, pow2(count))
    launch(
        norm_quantise, (ceil_div(count, size),), x, x if weight is None else weight, out,
        *rows[:4], faults, count, n, rows.high.shape[-1], float(F32(1) / F32(n)), float(F32(eps)),
        WEIGHT=weight is not None, KEEP=keep, ROWS=size, CHUNKS=pow2(ceil_div(n, 256)), warps=8,
    )  # fmt: skip
    return out, rows


@kernel
def gate_quantise(
    gate: Tensor, up: Tensor, high: Tensor, low: Tensor, exponent: Tensor, sums: Tensor,
    faults: Tensor, M: Tensor, n: Tensor, padded: Tensor, FUNCTION: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """snap(snap(f(gate))·up) of rows [M, n], quantised."""
    m, i = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (m < M)[:, None] & (i < n)[None, :]
    at = m.to(tl.int64)[:, None] * n + i[None, :]
    g = tl.load(gate + at, mask=inside, other=0.0)
    u = tl.load(up + at, mask=inside, other=0.0)
    a = FUNCTION(g, g, 0.0, 0.0)
    y = snapped(a) * u
    bad = inside & (outside(a) | outside(y))
    tl.store(faults + m[:, None] + i[None, :] * 0, 1, mask=bad)
    y = tl.where(inside, snapped(y), 0.0)
    store_quantised(y, m, M, high, low, exponent, sums, padded, ROWS, WIDTH)


def gated_rows(
    function: Callable[..., Any], gate: torch.Tensor, up: torch.Tensor, faults: torch.Tensor
) -> Rows:
    """The quantised rows of f(gate)·up."""
    count, n = gate.shape
    rows, width = empty_rows((count,), n, gate.device), max(64, pow2(n))
    size = min(ROWS, pow2(count), LARGEST_TILE // width)
    launch(
        gate_quantise, (ceil_div(count, size),), gate, up, *rows[:4], faults, count, n,
        rows.high.shape[-1], FUNCTION=function, ROWS=size, WIDTH=width, warps=16,
    )  # fmt: skip
    return rows
