"""Heads on their way into attention: norm, rotary turn, quantised rows."""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.language import Tensor, begin, constant, device
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
    write; else by the row's position. Each axis is a load of its own, along which a row's pairs
    are known to lie side by side.
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
            axis = tl.load(axes + pair, mask=pair < pairs, other=AXES)
            for each in tl.static_range(AXES):
                along = tl.load(places + r.to(tl.int64) * AXES + each, mask=live, other=0)
                angle = along.to(tl.int64)[:, None] * pairs + pair[None, :]
                own = turned & (axis == each)[None, :]
                c = tl.load(cos + angle, mask=own, other=c)
                s = tl.load(sin + angle, mask=own, other=s)
        else:
            angle = position.to(tl.int64)[:, None] * pairs + pair[None, :]
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
def flag(worst: Tensor, flags: Tensor, live: Tensor) -> None:
    """Flag rows whose largest bits [RB] are those of a fault."""
    tl.store(flags, 1, mask=live & (worst >= LARGEST_BITS))


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
    flag(worst, flags, live)
    return largest[:, None]


@device
def store_planes(y: Tensor, largest: Tensor, place: Tensor, plane: Tensor, mask: Tensor) -> None:
    """Columns of quantised rows y to a plane and the next, `plane` bytes further."""
    high, low = split_planes(quantised(y, largest, exponent_of(largest)))
    tl.store(place, high, mask=mask)
    tl.store(place + plane, low, mask=mask)


@device
def store_columns(
    y: Tensor, largest: Tensor, place: Tensor, plane: Tensor, live: Tensor, j: Tensor,
    width: tl.constexpr, BESIDE: tl.constexpr,
) -> None:  # fmt: skip
    """Columns j of quantised rows y to two planes, in which they are rows of 64 bytes.

    Neighbouring threads store neighbouring rows: where those all live and lie BESIDE each other,
    words of them; else each its own, as Triton puts threads along the first axis of two that it
    knows nothing of.
    """
    high, low = split_planes(quantised(y, largest, exponent_of(largest)))
    if BESIDE:
        there, mask = place[None, :] + j[:, None] * 64, (j < width)[:, None]
        high, low = tl.trans(high), tl.trans(low)
    else:
        there, mask = place[:, None] + j[None, :] * 64, live[:, None] & (j < width)[None, :]
    tl.store(there, high, mask=mask)
    tl.store(there + plane, low, mask=mask)


@device
def store_heads(
    x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, places: Tensor, axes: Tensor,
    faults: Tensor, r: Tensor, live: Tensor, position: Tensor, head: Tensor, pairs: Tensor,
    one_over_n: Tensor, eps: Tensor, place: Tensor, further: Tensor, plane: Tensor,
    exponent: Tensor, stride: Tensor, padded: Tensor, heads: tl.constexpr, width: tl.constexpr,
    WAY: tl.constexpr, AXES: tl.constexpr, RB: tl.constexpr, DP: tl.constexpr,
    COLUMNS: tl.constexpr, BESIDE: tl.constexpr, EACH: tl.constexpr,
) -> None:  # fmt: skip
    """EACH heads of rows of x [rows, heads, width], quantised: planes from `place` [RB] on, as
    COLUMNS or as rows; of the next head `further` on, its exponent `stride` on.
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
            store_planes(first, largest, at, plane, mask)
            store_planes(second, largest, at + width // 2, plane, mask)
        else:
            y, bits, before = head_values(
                source, weight, c, s, live, width, pairs, one_over_n, eps, WAY, RB, DP
            )
            largest, j = largest_of(bits, before, faults + r, live, WAY), tl.arange(0, DP)
            if COLUMNS:
                store_columns(y, largest, place, plane, live, j, width, BESIDE)
            else:
                mask = live[:, None] & (j < padded)[None, :]
                store_planes(y, largest, place[:, None] + j[None, :], plane, mask)
        e = exponent_of(largest).to(exponent.dtype.element_ty)
        tl.store(exponent[:, None], e, mask=live[:, None])
        source, place, exponent = source + width, place + further, exponent + stride
