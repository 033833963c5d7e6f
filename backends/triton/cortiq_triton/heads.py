"""Heads on their way into attention, in one kernel: norm, rotary turn, quantised rows; keys and
values go straight into the cache.
"""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.language import Tensor, begin, constant, device, kernel
from cortiq_triton.rows import exponent_of, quantised
from cortiq_triton.scalar import (
    LARGEST_BITS,
    inverse_root,
    magnitude_bits,
    snapped,
    split_planes,
)

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
    cos: Tensor, sin: Tensor, places: Tensor, axes: Tensor, r: Tensor, live: Tensor,
    position: Tensor, pairs: Tensor, WAY: tl.constexpr, AXES: tl.constexpr, RB: tl.constexpr,
    DP: tl.constexpr,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Cosines and sines of rows' columns [RB, DP], of heads that are turned WHOLE of their pairs;
    and `begin`: angles of positions are asked for before the launches that make heads have ended.

    With AXES a pair turns by its axis's place in `places` [rows, AXES], which such a launch may
    write; else by the row's position.
    """
    i, c = tl.arange(0, DP), tl.full((RB, DP), 0.0, tl.float32)
    s = c
    if AXES:
        begin()
    if WAY & TURNED:
        if WAY & WHOLE:
            pair, turned = i, live[:, None] & (i < pairs)[None, :]
        else:
            _, pair, _ = partner_of(i, pairs, WAY)
            turned = live[:, None] & (i < 2 * pairs)[None, :]
        if AXES:
            axis = tl.load(axes + pair, mask=pair < pairs, other=0)
            where = r.to(tl.int64)[:, None] * AXES + axis[None, :]
            along = tl.load(places + where, mask=turned, other=0).to(tl.int64)
        else:
            along = position.to(tl.int64)[:, None]
        angle = along * pairs + pair[None, :]
        c = tl.load(cos + angle, mask=turned, other=0.0)
        s = tl.load(sin + angle, mask=turned, other=0.0)
    if AXES == 0:
        begin()
    return c, s


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
    x: Tensor, weight: Tensor, c: Tensor, s: Tensor, live: Tensor, width: tl.constexpr,
    pairs: Tensor, one_over_n: Tensor, eps: Tensor, WAY: tl.constexpr, RB: tl.constexpr,
    DP: tl.constexpr,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Heads at x [RB], normed and turned, zero past their end; bits of magnitudes before they were
    snapped, and before they were turned if they were normed: [RB, DP].
    """
    i = tl.arange(0, DP)
    inside = live[:, None] & (i < width)[None, :]
    partner, _, first = partner_of(i, pairs, WAY)
    y = tl.load(x[:, None] + i[None, :], mask=inside, other=0.0)
    if WAY & TURNED:
        other = tl.load(x[:, None] + partner[None, :], mask=inside, other=0.0)
    bits = magnitude_bits(y)
    if WAY & NORMED:
        root = head_root(y * y, one_over_n, eps, RB, DP)
        y = normed(y, root, weight, i, width, WAY)
        bits = magnitude_bits(y)
        y = snapped(y)
        if WAY & TURNED:
            other = snapped(normed(other, root, weight, partner, width, WAY))
    before = bits
    if WAY & TURNED:
        along, across = y * c, other * s
        z = tl.where(first[None, :], along - across, along + across)
        y = tl.where((live[:, None] & (i < 2 * pairs)[None, :]), z, y)
        bits = magnitude_bits(y)
        y = snapped(y)
    return y, bits, before


@device
def head_halves(
    x: Tensor, weight: Tensor, c: Tensor, s: Tensor, live: Tensor, pairs: tl.constexpr,
    one_over_n: Tensor, eps: Tensor, WAY: tl.constexpr, RB: tl.constexpr, HALF: tl.constexpr,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """As `head_values`, of heads that are all turned: both halves, and both bits, [RB, HALF]."""
    i = tl.arange(0, HALF)
    mask, place = live[:, None] & (i < pairs)[None, :], x[:, None] + i[None, :]
    a = tl.load(place, mask=mask, other=0.0)
    b = tl.load(place + pairs, mask=mask, other=0.0)
    before = magnitude_bits(a)
    if WAY & NORMED:
        root = head_root(a * a + b * b, one_over_n, eps, RB, HALF)
        a = normed(a, root, weight, i, 2 * HALF, WAY)
        b = normed(b, root, weight, i + HALF, 2 * HALF, WAY)
        before = tl.maximum(magnitude_bits(a), magnitude_bits(b))
        a, b = snapped(a), snapped(b)
    first, second = a * c - b * s, b * c + a * s
    bits = tl.maximum(magnitude_bits(first), magnitude_bits(second))
    return snapped(first), snapped(second), bits, before


@device
def largest_of(
    bits: Tensor, before: Tensor, flags: Tensor, live: Tensor, WAY: tl.constexpr
) -> Tensor:
    """The largest bits of rows [RB, n]: [RB, 1]; rows with a fault are flagged.

    What is snapped to 0 alters no row but one of such values alone, whose integers are 0 anyway.
    """
    largest = tl.max(bits, 1)
    worst = largest
    if (WAY & NORMED) and (WAY & TURNED):
        worst = tl.maximum(largest, tl.max(before, 1))
    tl.store(flags, 1, mask=live & (worst >= LARGEST_BITS))
    return largest[:, None]


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
def store_heads(
    x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, places: Tensor, axes: Tensor,
    faults: Tensor, r: Tensor, live: Tensor, position: Tensor, head: Tensor, pairs: Tensor,
    one_over_n: Tensor, eps: Tensor, place: Tensor, further: Tensor, plane: Tensor,
    exponent: Tensor, stride: Tensor, padded: Tensor, heads: tl.constexpr, width: tl.constexpr,
    WAY: tl.constexpr, AXES: tl.constexpr, RB: tl.constexpr, DP: tl.constexpr,
    ACROSS: tl.constexpr, EACH: tl.constexpr,
) -> None:  # fmt: skip
    """EACH heads of rows of x [rows, heads, width], quantised: planes from `place` [RB] on, columns
    64 bytes apart if ACROSS; of the next head `further` on, its exponent `stride` on.
    """
    source = x + (r.to(tl.int64) * heads + head) * width
    HALF: tl.constexpr = DP // 2 if WAY & WHOLE else DP
    c, s = angles_of(cos, sin, places, axes, r, live, position, pairs, WAY, AXES, RB, HALF)
    for _ in range(EACH):
        if WAY & WHOLE:
            first, second, bits, before = head_halves(
                source, weight, c, s, live, width // 2, one_over_n, eps, WAY, RB, HALF
            )
            largest = largest_of(bits, before, faults + r, live, WAY)
            i = tl.arange(0, HALF)
            at, mask = place[:, None] + i[None, :], live[:, None] & (i < width // 2)[None, :]
            store_planes(first, largest, at, plane, mask, False)
            store_planes(second, largest, at + width // 2, plane, mask, False)
        else:
            y, bits, before = head_values(
                source, weight, c, s, live, width, pairs, one_over_n, eps, WAY, RB, DP
            )
            largest, j = largest_of(bits, before, faults + r, live, WAY), tl.arange(0, DP)
            if ACROSS:
                there, filled = place[None, :] + j[:, None] * 64, (j < padded)[:, None]
                filled = filled & live[None, :]
                store_planes(y, largest, there, plane, filled, ACROSS)
            else:
                there, filled = place[:, None] + j[None, :], live[:, None] & (j < padded)[None, :]
                store_planes(y, largest, there, plane, filled, ACROSS)
        e = exponent_of(largest).to(exponent.dtype.element_ty)
        tl.store(exponent[:, None], e, mask=live[:, None])
        source, place, exponent = source + width, place + further, exponent + stride


@kernel
def head_rows(
    xq: Tensor, xk: Tensor, xv: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, cq: Tensor, sq: Tensor,
    ck: Tensor, sk: Tensor, cv: Tensor, sv: Tensor, places: Tensor, axes: Tensor,
    positions: Tensor, owners: Tensor, table: Tensor, high: Tensor, exponent: Tensor,
    faults: Tensor, R: Tensor, q_pairs: Tensor, k_pairs: Tensor, v_pairs: Tensor, padded: Tensor,
    plane: Tensor, pages: Tensor, slot: Tensor,
    k_over_n: Tensor, v_over_n: Tensor, q_eps: Tensor, k_eps: Tensor, v_eps: Tensor,
    H: tl.constexpr, G: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, Q_WAY: tl.constexpr,
    K_WAY: tl.constexpr, V_WAY: tl.constexpr, AXES: tl.constexpr, RB: tl.constexpr,
    KP: tl.constexpr, VP: tl.constexpr, EACH: tl.constexpr,
) -> None:  # fmt: skip
    """EACH heads of RB rows: of the H queries to planes [R, H, padded], of G keys or values to
    pages, in which columns of values are rows of their planes. `plane` is where low planes begin.

    Where rows go is read before the launches that make them have ended.
    """
    h, r = tl.program_id(0) * EACH, tl.program_id(1) * RB + tl.arange(0, RB)
    live = r < R
    position = tl.load(positions + r, mask=live, other=0)
    if h < H:
        at = r.to(tl.int64) * H + h
        store_heads(
            xq, wq, cq, sq, places, axes, faults, r, live, position, h, q_pairs, k_over_n, q_eps,
            high + at * padded, padded, plane, exponent + at, 1, padded, H, DK, Q_WAY, AXES, RB,
            KP, False, EACH,
        )  # fmt: skip
    elif G > 0:
        sequence = tl.load(owners + r, mask=live, other=0).to(tl.int64)
        address = tl.load(table + sequence * pages + position // 64, mask=live, other=0)
        page = tl.multiple_of((address + slot).to(tl.pointer_type(tl.int8)), 16)
        t, numbers = position % 64, 2 * G * 64 * (DK + DV)
        if h < H + G:
            g = h - H
            store_heads(
                xk, wk, ck, sk, places, axes, faults, r, live, position, g, k_pairs, k_over_n,
                k_eps, page + (g * 64 + t) * DK, 64 * DK, G * 64 * DK,
                page + numbers + g * 64 + t, 64, DK, G, DK, K_WAY, AXES, RB, KP, False, EACH,
            )  # fmt: skip
        else:
            n = h - H - G
            store_heads(
                xv, wv, cv, sv, places, axes, faults, r, live, position, n, v_pairs, v_over_n,
                v_eps, page + 2 * G * 64 * DK + n * DV * 64 + t, DV * 64, G * 64 * DV,
                page + numbers + (G + n) * 64 + t, 64, DV, G, DV, V_WAY, AXES, RB, VP, True, EACH,
            )  # fmt: skip
