"""Heads on their way into attention, in one kernel: norm, rotary turn, quantised rows; keys and
values go straight into the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl

from cortiq.numerics.contract import F32
from cortiq_triton.call import Call
from cortiq_triton.language import INTERPRETED, Tensor, ceil_div, device, kernel, launch, pow2
from cortiq_triton.rows import Rows, empty_rows, exponent_of, quantised
from cortiq_triton.scalar import inverse_root, magnitude_bits, outside, snapped, split_planes

HEADS = 256 if INTERPRETED else 4
"""Heads of a program."""
WIDEST = 256
"""Columns of a head up to which its norm is one chunk of lanes."""


@device
def head_root(
    value: Tensor, one_over_n: Tensor, eps: Tensor, HB: tl.constexpr, DP: tl.constexpr,
    STEPS: tl.constexpr,
) -> Tensor:  # fmt: skip
    """RN(1/RN(√(mean + eps))) of heads [HB, DP], DP = 2^STEPS ≤ 256 lanes: [HB, 1]."""
    lanes = value * value
    for step in tl.static_range(STEPS):
        halves = tl.permute(tl.reshape(lanes, (HB, 2, DP >> (step + 1))), (0, 2, 1))
        first, second = tl.split(halves)
        lanes = first + second
    return inverse_root(lanes * one_over_n + eps)


@device
def head_values(
    x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, faults: Tensor,
    m: Tensor, M: Tensor, heads: Tensor, width: Tensor, pairs: Tensor, one_over_n: Tensor,
    eps: Tensor, NORM: tl.constexpr, WEIGHT: tl.constexpr, TURN: tl.constexpr,
    HALF: tl.constexpr, HB: tl.constexpr, DP: tl.constexpr, STEPS: tl.constexpr,
) -> Tensor:  # fmt: skip
    """Heads m of x [M, width], normed and turned, canonical, zero past their end: [HB, DP]."""
    live, i = m < M, tl.arange(0, DP)
    inside = live[:, None] & (i < width)[None, :]
    base = m.to(tl.int64)[:, None] * width
    flags = faults + (m // heads)[:, None] + i[None, :] * 0
    y = tl.load(x + base + i[None, :], mask=inside, other=0.0)
    turned = i < 2 * pairs
    first = i < pairs if HALF else i % 2 == 0
    partner = tl.where(first, i + pairs, i - pairs) if HALF else i ^ 1
    partner = tl.where(turned, partner, i)
    if TURN:
        other = tl.load(x + base + partner[None, :], mask=inside, other=0.0)
    if NORM:
        root = head_root(y, one_over_n, eps, HB, DP, STEPS)
        y = y * root
        if WEIGHT:
            y = y * tl.load(weight + i, mask=i < width, other=0.0)[None, :]
        tl.store(flags, 1, mask=inside & outside(y))
        y = snapped(y)
        if TURN:
            other = other * root
            if WEIGHT:
                other = other * tl.load(weight + partner, mask=i < width, other=0.0)[None, :]
            other = snapped(other)
    if TURN:
        pair = i % pairs if HALF else i // 2
        position = tl.load(positions + m // heads, mask=live, other=0).to(tl.int64)[:, None]
        mask, angle = live[:, None] & turned[None, :], position * pairs + pair[None, :]
        along = y * tl.load(cos + angle, mask=mask, other=0.0)
        across = other * tl.load(sin + angle, mask=mask, other=0.0)
        z = tl.where(first[None, :], along - across, along + across)
        z = tl.where(turned[None, :], z, y)
        tl.store(flags, 1, mask=inside & outside(z))
        y = snapped(z)
    return y


@kernel
def head_rows(
    x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, high: Tensor,
    low: Tensor, exponent: Tensor, faults: Tensor, M: Tensor, heads: Tensor, width: Tensor,
    pairs: Tensor, padded: Tensor, one_over_n: Tensor, eps: Tensor, NORM: tl.constexpr,
    WEIGHT: tl.constexpr, TURN: tl.constexpr, HALF: tl.constexpr, HB: tl.constexpr,
    DP: tl.constexpr, STEPS: tl.constexpr,
) -> None:  # fmt: skip
    """Queries: heads of x [M, width] to planes [M, padded] and exponents."""
    m, i = tl.program_id(0) * HB + tl.arange(0, HB), tl.arange(0, DP)
    y = head_values(
        x, weight, cos, sin, positions, faults, m, M, heads, width, pairs, one_over_n, eps, NORM,
        WEIGHT, TURN, HALF, HB, DP, STEPS,
    )  # fmt: skip
    largest = tl.max(magnitude_bits(y), 1)[:, None]
    e = exponent_of(largest)
    q_high, q_low = split_planes(quantised(y, largest, e))
    mask = (m < M)[:, None] & (i < padded)[None, :]
    at = m.to(tl.int64)[:, None] * padded + i[None, :]
    tl.store(high + at, q_high, mask=mask)
    tl.store(low + at, q_low, mask=mask)
    tl.store(exponent + m[:, None], e, mask=(m < M)[:, None])


@kernel
def head_store(
    x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, owners: Tensor,
    table: Tensor, faults: Tensor, M: Tensor, width: Tensor, pairs: Tensor, pages: Tensor,
    plane: Tensor, numbers: Tensor, one_over_n: Tensor, eps: Tensor, G: tl.constexpr,
    NORM: tl.constexpr, WEIGHT: tl.constexpr, TURN: tl.constexpr, HALF: tl.constexpr,
    KEYS: tl.constexpr, HB: tl.constexpr, DP: tl.constexpr, STEPS: tl.constexpr,
) -> None:  # fmt: skip
    """Keys or values: heads of x [M, width] into their rows' pages.

    `plane` is where the slot's planes of them begin in a page, `numbers` where its exponents do.
    """
    m, i = tl.program_id(0) * HB + tl.arange(0, HB), tl.arange(0, DP)
    y = head_values(
        x, weight, cos, sin, positions, faults, m, M, G, width, pairs, one_over_n, eps, NORM,
        WEIGHT, TURN, HALF, HB, DP, STEPS,
    )  # fmt: skip
    largest = tl.max(magnitude_bits(y), 1)[:, None]
    e = exponent_of(largest)
    q_high, q_low = split_planes(quantised(y, largest, e))
    live, g = m < M, m % G
    position = tl.load(positions + m // G, mask=live, other=0)
    sequence = tl.load(owners + m // G, mask=live, other=0).to(tl.int64)
    address = tl.load(table + sequence * pages + position // 64, mask=live, other=0)
    page, t = address.to(tl.pointer_type(tl.int8)), position % 64
    if KEYS:
        inner = ((g * 64 + t) * width)[:, None] + i[None, :]
    else:
        inner = ((g * width)[:, None] + i[None, :]) * 64 + t[:, None]
    mask = live[:, None] & (i < width)[None, :]
    tl.store(page[:, None] + plane + inner, q_high, mask=mask)
    tl.store(page[:, None] + plane + G * 64 * width + inner, q_low, mask=mask)
    tl.store((page + numbers + g * 64 + t)[:, None], e.to(tl.int8), mask=live[:, None])


@dataclass(frozen=True)
class Way:
    """What happens to heads before they are quantised.

    Attributes
    ----------
    norm : eps of an RMSNorm, or None. turn : a `Rope` without sections, or None.
    """

    norm: float | None
    turn: Any


def _arguments(
    call: Call, way: Way, x: torch.Tensor
) -> tuple[tuple[Any, ...], dict[str, Any], int]:
    """Tensors that come first, compile-time constants, and pairs that are turned."""
    weight, width = call.weights.get("weight"), x.shape[-1]
    cos = sin = x
    pairs = 1
    if way.turn is not None:
        cos, sin, _ = call.shared.angles.of(way.turn)
        pairs = cos.shape[1]
    width_p = max(16, pow2(width))
    how = {
        "NORM": way.norm is not None,
        "WEIGHT": weight is not None,
        "TURN": way.turn is not None,
        "HALF": way.turn is not None and way.turn.pairing == "half",
        "HB": min(HEADS, pow2(x.shape[0] * x.shape[1])),
        "DP": width_p,
        "STEPS": width_p.bit_length() - 1,
    }
    return (x, x if weight is None else weight, cos, sin, call.rows.positions), how, pairs


def _constants(way: Way, width: int) -> tuple[float, float]:
    return float(F32(1) / F32(width)), float(F32(way.norm or 0))


def query_rows(call: Call, way: Way, x: torch.Tensor) -> Rows:
    """Quantised heads of x [rows, heads, width]; their sums are not there."""
    rows, heads, width = x.shape
    out = empty_rows((rows, heads), width, x.device)
    first, how, pairs = _arguments(call, way, x)
    padded = out.high.shape[-1]
    how["DP"] = max(how["DP"], padded)
    how["STEPS"] = how["DP"].bit_length() - 1
    launch(
        head_rows, (ceil_div(rows * heads, how["HB"]),), *first, *out[:3], call.faults,
        rows * heads, heads, width, pairs, padded, *_constants(way, width), **how,
    )  # fmt: skip
    return out


def store_heads(call: Call, way: Way, x: torch.Tensor, keys: bool) -> None:
    """Heads of x [rows, heads, width] into the cache, as keys or as values."""
    slot, offset = call.slot("kv")
    (rows, heads, width), at = x.shape, call.rows
    first, how, pairs = _arguments(call, way, x)
    planes = offset if keys else offset + 2 * slot.heads * 64 * slot.key_dim
    numbers = offset + 2 * slot.heads * 64 * (slot.key_dim + slot.value_dim)
    launch(
        head_store, (ceil_div(rows * heads, how["HB"]),), *first, at.owners, at.table,
        call.faults, rows * heads, width, pairs, at.pages, planes,
        numbers if keys else numbers + slot.heads * 64, *_constants(way, width), G=heads,
        KEYS=keys, **how,
    )  # fmt: skip
