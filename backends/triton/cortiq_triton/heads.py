"""Heads on their way into attention, in one kernel: norm, rotary turn, quantised rows; keys and
values go straight into the cache.
"""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.language import Tensor, begin, constant, device, kernel
from cortiq_triton.rows import exponent_of, quantised
from cortiq_triton.scalar import inverse_root, magnitude_bits, outside, snapped, split_planes

NORMED, WEIGHTED, TURNED, HALVES, WHOLE = map(constant, (1, 2, 4, 8, 16))
"""Bits of what happens to heads: an RMSNorm, with a weight; a turn, of pairs that are half of what
is turned apart, which is the whole head.
"""


@device
def head_root(
    lanes: Tensor, one_over_n: Tensor, eps: Tensor, RB: tl.constexpr, DP: tl.constexpr
) -> Tensor:
    """RN(1/RN(√(mean + eps))) of squares [RB, DP], DP ≤ 256 a power of two: [RB, 1]."""
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
def angles_of(
    position: Tensor, places: Tensor, axes: Tensor, r: Tensor, pair: Tensor, pairs: Tensor,
    mask: Tensor, AXES: tl.constexpr,
) -> Tensor:  # fmt: skip
    """Places in the tables of angles of rows' pairs: by the row's `position`, or with AXES by its
    `places` [rows, AXES] on the pair's axis.
    """
    if AXES:
        axis = tl.load(axes + pair, mask=pair < pairs, other=0)
        where = r.to(tl.int64)[:, None] * AXES + axis[None, :]
        return tl.load(places + where, mask=mask, other=0).to(tl.int64) * pairs + pair[None, :]
    return position.to(tl.int64)[:, None] * pairs + pair[None, :]


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
    x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, places: Tensor, axes: Tensor,
    faults: Tensor, r: Tensor, live: Tensor, position: Tensor, head: Tensor, heads: tl.constexpr,
    width: tl.constexpr, pairs: Tensor, one_over_n: Tensor, eps: Tensor, WAY: tl.constexpr,
    AXES: tl.constexpr, RB: tl.constexpr, DP: tl.constexpr,
) -> Tensor:  # fmt: skip
    """One head of rows of x [rows, heads, width], normed and turned, zero past its end: [RB, DP].

    Angles of positions are asked for before the launches that make x have ended; places on axes may
    be what one of these writes.
    """
    i = tl.arange(0, DP)
    inside = live[:, None] & (i < width)[None, :]
    flags = faults + r[:, None] + i[None, :] * 0
    base = x + (r.to(tl.int64) * heads + head)[:, None] * width
    partner, pair, first = partner_of(i, pairs, WAY)
    turned = live[:, None] & (i < 2 * pairs)[None, :]
    if AXES:
        begin()
    if WAY & TURNED:
        angle = angles_of(position, places, axes, r, pair, pairs, turned, AXES)
        along = tl.load(cos + angle, mask=turned, other=0.0)
        across = tl.load(sin + angle, mask=turned, other=0.0)
    if AXES == 0:
        begin()
    y = tl.load(base + i[None, :], mask=inside, other=0.0)
    if WAY & TURNED:
        other = tl.load(base + partner[None, :], mask=inside, other=0.0)
    if WAY & NORMED:
        root = head_root(y * y, one_over_n, eps, RB, DP)
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
def head_halves(
    x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, places: Tensor, axes: Tensor,
    faults: Tensor, r: Tensor, live: Tensor, position: Tensor, head: Tensor, heads: tl.constexpr,
    one_over_n: Tensor, eps: Tensor, WAY: tl.constexpr, AXES: tl.constexpr, RB: tl.constexpr,
    HALF: tl.constexpr,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Normalise and turn heads of 2·HALF columns, all of them turned: both halves, [RB, HALF]."""
    i = tl.arange(0, HALF)
    mask, flags = live[:, None] & (i >= 0)[None, :], faults + r[:, None] + i[None, :] * 0
    if AXES:
        begin()
    angle = angles_of(position, places, axes, r, i, HALF, mask, AXES)
    c, s = tl.load(cos + angle, mask=mask, other=0.0), tl.load(sin + angle, mask=mask, other=0.0)
    if AXES == 0:
        begin()
    place = x + (r.to(tl.int64) * heads + head)[:, None] * (2 * HALF) + i[None, :]
    a, b = tl.load(place, mask=mask, other=0.0), tl.load(place + HALF, mask=mask, other=0.0)
    if WAY & NORMED:
        root = head_root(a * a + b * b, one_over_n, eps, RB, HALF)
        a = normed(a, root, weight, i, 2 * HALF, WAY)
        b = normed(b, root, weight, i + HALF, 2 * HALF, WAY)
        tl.store(flags, 1, mask=mask & (outside(a) | outside(b)))
        a, b = snapped(a), snapped(b)
    first, second = a * c - b * s, b * c + a * s
    tl.store(flags, 1, mask=mask & (outside(first) | outside(second)))
    return snapped(first), snapped(second)


@device
def store_planes(
    y: Tensor, largest: Tensor, place: Tensor, plane: Tensor, mask: Tensor, ACROSS: tl.constexpr
) -> None:
    """Columns of quantised rows y to a plane and the next, `plane` bytes further.

    ACROSS: as columns by rows, so that what is stored side by side is of neighbouring rows.
    """
    high, low = split_planes(quantised(y, largest, exponent_of(largest)))
    if ACROSS:
        high, low = tl.trans(high), tl.trans(low)
    tl.store(place, high, mask=mask)
    tl.store(place + plane, low, mask=mask)


@device
def largest_of(y: Tensor) -> Tensor:
    """Bits of the largest magnitudes of rows y [RB, n]: [RB, 1]."""
    return tl.max(magnitude_bits(y), 1)[:, None]


@device
def store_head(
    x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, places: Tensor, axes: Tensor,
    faults: Tensor, r: Tensor, live: Tensor, position: Tensor, head: Tensor, pairs: Tensor,
    one_over_n: Tensor, eps: Tensor, place: Tensor, plane: Tensor, exponent: Tensor,
    padded: Tensor, heads: tl.constexpr, width: tl.constexpr, WAY: tl.constexpr,
    AXES: tl.constexpr, RB: tl.constexpr, DP: tl.constexpr, ACROSS: tl.constexpr,
) -> None:  # fmt: skip
    """A head of rows, quantised: planes from `place` [RB] on, columns 64 bytes apart if ACROSS."""
    if WAY & WHOLE:
        HALF: tl.constexpr = DP // 2
        first, second = head_halves(
            x, weight, cos, sin, places, axes, faults, r, live, position, head, heads, one_over_n,
            eps, WAY, AXES, RB, HALF,
        )  # fmt: skip
        largest = tl.maximum(largest_of(first), largest_of(second))
        i = tl.arange(0, HALF)
        at, mask = place[:, None] + i[None, :], live[:, None] & (i >= 0)[None, :]
        store_planes(first, largest, at, plane, mask, False)
        store_planes(second, largest, at + HALF, plane, mask, False)
    else:
        y = head_values(
            x, weight, cos, sin, places, axes, faults, r, live, position, head, heads, width, pairs,
            one_over_n, eps, WAY, AXES, RB, DP,
        )  # fmt: skip
        largest, j = largest_of(y), tl.arange(0, DP)
        if ACROSS:
            there, filled = place[None, :] + j[:, None] * 64, (j < padded)[:, None] & live[None, :]
            store_planes(y, largest, there, plane, filled, ACROSS)
        else:
            there, filled = place[:, None] + j[None, :], live[:, None] & (j < padded)[None, :]
            store_planes(y, largest, there, plane, filled, ACROSS)
    e = exponent_of(largest).to(exponent.dtype.element_ty)
    tl.store(exponent[:, None], e, mask=live[:, None])


@kernel
def head_rows(
    xq: Tensor, xk: Tensor, xv: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, cq: Tensor, sq: Tensor,
    ck: Tensor, sk: Tensor, cv: Tensor, sv: Tensor, places: Tensor, axes: Tensor,
    positions: Tensor, owners: Tensor, table: Tensor, high: Tensor, exponent: Tensor, faults: Tensor, R: Tensor, q_pairs: Tensor,
    k_pairs: Tensor, v_pairs: Tensor, padded: Tensor, plane: Tensor, pages: Tensor, slot: Tensor,
    k_over_n: Tensor, v_over_n: Tensor, q_eps: Tensor, k_eps: Tensor, v_eps: Tensor,
    H: tl.constexpr, G: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, Q_WAY: tl.constexpr,
    K_WAY: tl.constexpr, V_WAY: tl.constexpr, AXES: tl.constexpr, RB: tl.constexpr,
    KP: tl.constexpr, VP: tl.constexpr,
) -> None:  # fmt: skip
    """Head h of RB rows: of the H queries to planes [R, H, padded], of G keys or values to pages,
    in which columns of values are rows of their planes. `plane` is where low planes begin.

    Where rows go is read before the launches that make them have ended.
    """
    h, r = tl.program_id(0), tl.program_id(1) * RB + tl.arange(0, RB)
    live = r < R
    position = tl.load(positions + r, mask=live, other=0)
    if h < H:
        at = r.to(tl.int64) * H + h
        store_head(
            xq, wq, cq, sq, places, axes, faults, r, live, position, h, q_pairs, k_over_n, q_eps,
            high + at * padded, plane, exponent + at, padded, H, DK, Q_WAY, AXES, RB, KP, False,
        )  # fmt: skip
    elif G > 0:
        sequence = tl.load(owners + r, mask=live, other=0).to(tl.int64)
        address = tl.load(table + sequence * pages + position // 64, mask=live, other=0)
        page = tl.multiple_of((address + slot).to(tl.pointer_type(tl.int8)), 16)
        t, numbers = position % 64, 2 * G * 64 * (DK + DV)
        if h < H + G:
            g = h - H
            store_head(
                xk, wk, ck, sk, places, axes, faults, r, live, position, g, k_pairs, k_over_n,
                k_eps, page + (g * 64 + t) * DK, G * 64 * DK, page + numbers + g * 64 + t, DK, G,
                DK, K_WAY, AXES, RB, KP, False,
            )  # fmt: skip
        else:
            n = h - H - G
            store_head(
                xv, wv, cv, sv, places, axes, faults, r, live, position, n, v_pairs, v_over_n,
                v_eps, page + 2 * G * 64 * DK + n * DV * 64 + t, G * 64 * DV,
                page + numbers + (G + n) * 64 + t, DV, G, DV, V_WAY, AXES, RB, VP, True,
            )  # fmt: skip
