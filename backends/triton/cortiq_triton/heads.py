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
from cortiq_triton.language import (
    INTERPRETED,
    Tensor,
    begin,
    ceil_div,
    constant,
    device,
    kernel,
    launch,
    pow2,
)
from cortiq_triton.rows import Rows, empty_rows, exponent_of, quantised
from cortiq_triton.scalar import inverse_root, magnitude_bits, outside, snapped, split_planes

ROWS = 64 if INTERPRETED else 32
"""Rows of a program, which computes one head of them."""
FEW_ROWS = 64
"""Rows up to which a program computes one of them, by one warp."""
WIDEST = 256
"""Columns of a head up to which its norm is one chunk of lanes."""
NORMED, WEIGHTED, TURNED, HALVES = map(constant, (1, 2, 4, 8))
"""Bits of what happens to heads: an RMSNorm, with a weight; a turn, of pairs half a head apart."""


@device
def head_root(
    value: Tensor, one_over_n: Tensor, eps: Tensor, RB: tl.constexpr, DP: tl.constexpr
) -> Tensor:
    """RN(1/RN(√(mean + eps))) of heads [RB, DP], DP ≤ 256 a power of two: [RB, 1]."""
    lanes = value * value
    for step in tl.static_range(8):
        if DP >> (step + 1) > 0:
            halves = tl.permute(tl.reshape(lanes, (RB, 2, DP >> (step + 1))), (0, 2, 1))
            first, second = tl.split(halves)
            lanes = first + second
    return inverse_root(lanes * one_over_n + eps)


@device
def partner_of(i: Tensor, pairs: Tensor, WAY: tl.constexpr) -> tuple[Tensor, Tensor, Tensor]:
    """The column that is turned with column i, their pair, and whether i is its first."""
    if WAY & HALVES:
        first, pair = i < pairs, i % pairs
        partner = tl.where(first, i + pairs, i - pairs)
    else:
        first, pair, partner = i % 2 == 0, i // 2, i ^ 1
    return tl.where(i < 2 * pairs, partner, i), pair, first


@device
def normed(
    x: Tensor, root: Tensor, weight: Tensor, column: Tensor, width: tl.constexpr, WAY: tl.constexpr
) -> Tensor:
    """(x·r)·w, not yet snapped."""
    y = x * root
    if WAY & WEIGHTED:
        y = y * tl.load(weight + column, mask=column < width, other=0.0)[None, :]
    return y


@device
def head_values(
    x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, faults: Tensor, r: Tensor, live: Tensor,
    position: Tensor, head: Tensor, heads: tl.constexpr, width: tl.constexpr, pairs: Tensor,
    one_over_n: Tensor, eps: Tensor, WAY: tl.constexpr, RB: tl.constexpr, DP: tl.constexpr,
) -> Tensor:  # fmt: skip
    """One head of rows of x [rows, heads, width], normed and turned, zero past its end: [RB, DP].

    Angles are asked for before the launches that make x have ended.
    """
    i = tl.arange(0, DP)
    inside = live[:, None] & (i < width)[None, :]
    flags = faults + r[:, None] + i[None, :] * 0
    base = x + (r.to(tl.int64) * heads + head)[:, None] * width
    partner, pair, first = partner_of(i, pairs, WAY)
    turned = live[:, None] & (i < 2 * pairs)[None, :]
    if WAY & TURNED:
        angle = position.to(tl.int64)[:, None] * pairs + pair[None, :]
        along = tl.load(cos + angle, mask=turned, other=0.0)
        across = tl.load(sin + angle, mask=turned, other=0.0)
    begin()
    y = tl.load(base + i[None, :], mask=inside, other=0.0)
    if WAY & TURNED:
        other = tl.load(base + partner[None, :], mask=inside, other=0.0)
    if WAY & NORMED:
        root = head_root(y, one_over_n, eps, RB, DP)
        y = normed(y, root, weight, i, width, WAY)
        tl.store(flags, 1, mask=inside & outside(y))
        y = snapped(y)
        if WAY & TURNED:
            other = snapped(normed(other, root, weight, partner, width, WAY))
    if WAY & TURNED:
        along, across = y * along, other * across
        z = tl.where(first[None, :], along - across, along + across)
        z = tl.where(turned, z, y)
        tl.store(flags, 1, mask=inside & outside(z))
        y = snapped(z)
    return y


@device
def planes_of(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Planes [RB, DP] and exponents [RB] of quantised rows."""
    largest = tl.max(magnitude_bits(y), 1)[:, None]
    e = exponent_of(largest)
    high, low = split_planes(quantised(y, largest, e))
    return high, low, tl.max(e, 1)


@device
def store_query(
    y: Tensor, high: Tensor, low: Tensor, exponent: Tensor, at: Tensor, live: Tensor,
    padded: Tensor, KP: tl.constexpr,
) -> None:  # fmt: skip
    """Heads y [RB, KP], which are rows `at` of the planes, quantised."""
    i = tl.arange(0, KP)
    q_high, q_low, e = planes_of(y)
    mask, place = live[:, None] & (i < padded)[None, :], at[:, None] * padded + i[None, :]
    tl.store(high + place, q_high, mask=mask)
    tl.store(low + place, q_low, mask=mask)
    tl.store(exponent + at, e, mask=live)


@device
def store_key(
    y: Tensor, page: Tensor, t: Tensor, g: Tensor, live: Tensor, G: tl.constexpr,
    DK: tl.constexpr, DV: tl.constexpr, KP: tl.constexpr,
) -> None:  # fmt: skip
    """Keys y [RB, KP] of head g to places t [RB] of their pages."""
    i = tl.arange(0, KP)
    k_high, k_low, e = planes_of(y)
    mask, place = live[:, None] & (i < DK)[None, :], (page + (g * 64 + t) * DK)[:, None] + i
    tl.store(place, k_high, mask=mask)
    tl.store(place + G * 64 * DK, k_low, mask=mask)
    tl.store(page + 2 * G * 64 * (DK + DV) + g * 64 + t, e.to(tl.int8), mask=live)


@device
def store_value(
    y: Tensor, page: Tensor, t: Tensor, g: Tensor, live: Tensor, G: tl.constexpr,
    DK: tl.constexpr, DV: tl.constexpr, VP: tl.constexpr,
) -> None:  # fmt: skip
    """Values y [RB, VP] of head g; planes of them are columns by positions, stored along these."""
    v = tl.arange(0, VP)[:, None]
    v_high, v_low, e = planes_of(y)
    mask, place = (v < DV) & live[None, :], (page + 2 * G * 64 * DK + t)[None, :]
    place = place + (g * DV + v) * 64
    tl.store(place, tl.trans(v_high), mask=mask)
    tl.store(place + G * 64 * DV, tl.trans(v_low), mask=mask)
    tl.store(page + 2 * G * 64 * (DK + DV) + (G + g) * 64 + t, e.to(tl.int8), mask=live)


@kernel
def head_rows(
    xq: Tensor, xk: Tensor, xv: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, cq: Tensor, sq: Tensor,
    ck: Tensor, sk: Tensor, cv: Tensor, sv: Tensor, positions: Tensor, owners: Tensor,
    table: Tensor, high: Tensor, low: Tensor, exponent: Tensor, faults: Tensor, R: Tensor,
    q_pairs: Tensor, k_pairs: Tensor, v_pairs: Tensor, padded: Tensor, pages: Tensor, slot: Tensor,
    k_over_n: Tensor, v_over_n: Tensor, q_eps: Tensor, k_eps: Tensor, v_eps: Tensor,
    H: tl.constexpr, G: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, Q_WAY: tl.constexpr,
    K_WAY: tl.constexpr, V_WAY: tl.constexpr, RB: tl.constexpr, KP: tl.constexpr,
    VP: tl.constexpr,
) -> None:  # fmt: skip
    """Head h of RB rows: of the H queries to planes [R, H, padded], of G keys or values to pages.

    Where rows go is read before the launches that make them have ended.
    """
    h, r = tl.program_id(0), tl.program_id(1) * RB + tl.arange(0, RB)
    live = r < R
    position = tl.load(positions + r, mask=live, other=0)
    if h < H:
        y = head_values(
            xq, wq, cq, sq, faults, r, live, position, h, H, DK, q_pairs, k_over_n, q_eps, Q_WAY,
            RB, KP,
        )  # fmt: skip
        store_query(y, high, low, exponent, r.to(tl.int64) * H + h, live, padded, KP)
    elif G > 0:
        sequence = tl.load(owners + r, mask=live, other=0).to(tl.int64)
        address = tl.load(table + sequence * pages + position // 64, mask=live, other=0) + slot
        page, t = address.to(tl.pointer_type(tl.int8)), position % 64
        if h < H + G:
            k = head_values(
                xk, wk, ck, sk, faults, r, live, position, h - H, G, DK, k_pairs, k_over_n, k_eps,
                K_WAY, RB, KP,
            )  # fmt: skip
            store_key(k, page, t, h - H, live, G, DK, DV, KP)
        else:
            v = head_values(
                xv, wv, cv, sv, faults, r, live, position, h - H - G, G, DV, v_pairs, v_over_n,
                v_eps, V_WAY, RB, VP,
            )  # fmt: skip
            store_value(v, page, t, h - H - G, live, G, DK, DV, VP)


@dataclass(frozen=True)
class Way:
    """What happens to heads before they are quantised.

    Attributes
    ----------
    shape : heads and their width. norm : eps of an RMSNorm, or None.
    turn : a `Rope` without sections, or None.
    """

    shape: tuple[int, ...]
    norm: float | None
    turn: Any


@dataclass(frozen=True)
class _Part:
    """Arguments of a kind of heads; `weight` and the angles stand in as x where there are none."""

    x: torch.Tensor
    weight: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    pairs: int
    eps: float
    bits: int


def _part(call: Call, way: Way | None, x: torch.Tensor, role: str) -> _Part:
    x = x.contiguous()
    if way is None:
        return _Part(x, x, x, x, 1, 0.0, 0)
    weight, cos, sin, pairs = call.weights.get(role), x, x, 1
    if way.turn is not None:
        cos, sin, _ = call.shared.angles.of(way.turn)
        pairs = cos.shape[1]
    bits = (way.norm is not None) + 2 * (weight is not None) + 4 * (way.turn is not None)
    bits += 8 * (way.turn is not None and way.turn.pairing == "half")
    eps = float(F32(way.norm or 0))
    return _Part(x, x if weight is None else weight, cos, sin, pairs, eps, bits)


def into_attention(
    call: Call, ways: dict[str, Way], given: dict[str, torch.Tensor]
) -> Rows | tuple[()]:
    """Heads of "query", "key" and "value", or of some of these: quantised queries (their sums are
    not there), keys and values in the cache.
    """
    x = next(iter(given.values()))
    q, k, v = (_part(call, ways.get(n), given.get(n, x), n) for n in ("query", "key", "value"))
    count, at = len(x), call.rows
    (heads, width), (groups, value_width) = (
        ways[name].shape if name in ways else (0, 0) for name in ("query", "value")
    )
    offset = call.slot("kv")[1] if groups else 0
    key_width = ways["key"].shape[1] if groups else width
    out = empty_rows((count, heads), key_width, x.device)
    padded, each = out.high.shape[-1], ROWS if INTERPRETED or count > FEW_ROWS else 1
    each = min(each, pow2(count))
    launch(
        head_rows, (heads + 2 * groups, ceil_div(count, each)), q.x, k.x, v.x, q.weight, k.weight,
        v.weight, q.cos, q.sin, k.cos, k.sin, v.cos, v.sin, at.positions, at.owners, at.table,
        *out[:3], call.faults, count, q.pairs, k.pairs, v.pairs, padded, at.pages, offset,
        _inverse(key_width), _inverse(value_width), q.eps, k.eps, v.eps, H=heads, G=groups,
        DK=key_width, DV=value_width, Q_WAY=q.bits, K_WAY=k.bits, V_WAY=v.bits, RB=each,
        KP=max(16, padded, pow2(key_width)), VP=max(16, pow2(max(1, value_width))),
        warps=1 if each == 1 else 4, early=True,
    )  # fmt: skip
    return out if heads else ()


def _inverse(n: int) -> float:
    return float(F32(1) / F32(max(1, n)))
