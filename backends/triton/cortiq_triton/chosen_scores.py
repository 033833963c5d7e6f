"""Scores of keys chosen one by one, and where the keys of each tile begin in their list."""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.language import Tensor, begin, device, kernel
from cortiq_triton.scalar import exp2_int, round_three_planes, tanh
from cortiq_triton.tile import DEEPEST, factors, rounded, weight_of


@device
def heads_of(
    part: Tensor, H: tl.constexpr, G: tl.constexpr, BM: tl.constexpr
) -> tuple[Tensor, Tensor, Tensor]:
    """Heads [BM] of a program, which of them exist, and their keys' head."""
    chunks = (H // G + BM - 1) // BM
    within = part % chunks * BM + tl.arange(0, BM)
    g, live = part // chunks, within < H // G
    return tl.where(live, g * (H // G) + within, 0), live, g


@kernel
def score_chosen(
    qh: Tensor, ql: Tensor, qe: Tensor, table: Tensor, owners: Tensor, positions: Tensor,
    chosen: Tensor, places: Tensor, kappas: Tensor, fractions: Tensor, highs: Tensor,
    lows: Tensor, stride: Tensor, pages: Tensor, slot: Tensor, factor: Tensor, cap: Tensor,
    inverse_cap: Tensor, log2_e: Tensor, most: Tensor, H: tl.constexpr, G: tl.constexpr,
    DK: tl.constexpr, DV: tl.constexpr, KP: tl.constexpr, BM: tl.constexpr, DEEP: tl.constexpr,
    CAPPED: tl.constexpr, SETS: tl.constexpr, CHOSEN: tl.constexpr, N: tl.constexpr,
    STAGES: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """Of N chosen keys `weight_of` the scores, for BM heads of a row, or COLUMNS of the values.

    kappas, fractions : [R, CHOSEN, H]. highs, lows : f16 [R, G, CHOSEN, DV], planes of values.
    places : int32 [R, SETS, most + 1], where the keys of a tile begin in the list.
    """
    begin()
    part, r, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    position, owner = tl.load(positions + r), tl.load(owners + r)
    parts: tl.constexpr = G * ((H // G + BM - 1) // BM)
    columns: tl.constexpr = (DV + COLUMNS - 1) // COLUMNS
    head, live, g = heads_of(part, H, G, BM)
    g = tl.where(part < parts, g, (part - parts) // columns)
    each = r * SETS + g * SETS // G
    n = chunk * N + tl.arange(0, N)
    listed = chosen + each * CHOSEN + n
    key = tl.load(listed, mask=n < CHOSEN, other=2147483647)
    there = key <= position
    if tl.max(there.to(tl.int32), 0) > 0:
        seen = tl.where(there, key, 0)
        address = tl.load(table + owner.to(tl.int64) * pages + seen // 64, mask=there, other=0)
        page = tl.multiple_of((address + slot).to(tl.pointer_type(tl.int8)), [16])
        t, row = seen % 64, (r * H + head).to(tl.int64)
        if part >= parts:
            v = (part - parts) % columns * COLUMNS + tl.arange(0, COLUMNS)
            kept = ((r * G + g).to(tl.int64) * CHOSEN + n)[:, None] * DV + v[None, :]
            source = (page + 2 * G * 64 * DK + t)[:, None] + ((g * DV + v) * 64)[None, :]
            take_values(
                highs + kept, lows + kept, source, there[:, None] & (v < DV)[None, :], G, DV
            )
        else:
            keys = page + (g * 64 + t) * DK
            dots = key_dots(qh, ql, row * stride, live, keys, there, G, DK, KP, BM, N, DEEP, STAGES)
            scale = factors(tl.load(qe + row, mask=live, other=0), factor, KP)
            exponents = page + 2 * G * 64 * (DK + DV) + g * 64 + t
            s = (dots * scale) * exp2_int(tl.load(exponents, mask=there, other=0).to(tl.int32))[
                None, :
            ]
            if CAPPED:
                s = (cap * tanh(s * inverse_cap)) * log2_e
            kappa, fraction = weight_of(s)
            place = (r * CHOSEN + n).to(tl.int64)[None, :] * H + head[:, None]
            mask = live[:, None] & there[None, :]
            tl.store(kappas + place, kappa, mask=mask)
            tl.store(fractions + place, fraction, mask=mask)
    if part < parts:
        before = tl.load(listed - 1, mask=(n > 0) & (n <= CHOSEN), other=-1)
        mark_places(places + each * (most + 1), key, before, n, position, CHOSEN)


@device
def key_dots(
    qh: Tensor, ql: Tensor, rows: Tensor, live: Tensor, keys: Tensor, there: Tensor,
    G: tl.constexpr, DK: tl.constexpr, KP: tl.constexpr, BM: tl.constexpr, N: tl.constexpr,
    DEEP: tl.constexpr, STAGES: tl.constexpr,
) -> Tensor:  # fmt: skip
    """RN of the integer dots of queries at `rows` with single keys, as `dot_planes` leaves them."""
    high = tl.full((BM, N), 0, tl.int32)
    middle, low = high, high
    for first in tl.range(0, DK, DEEP, num_stages=STAGES):
        d = first + tl.arange(0, DEEP)
        mask, inside = live[:, None] & (d < DK)[None, :], there[:, None] & (d < DK)[None, :]
        at, of = keys[:, None] + d[None, :], rows[:, None] + d[None, :]
        kh = tl.trans(tl.load(at, mask=inside, other=0))
        kl = tl.trans(tl.load(at + G * 64 * DK, mask=inside, other=0))
        h = tl.load(qh + of, mask=mask, other=0)
        l = tl.load(ql + of, mask=mask, other=0)  # noqa: E741
        low = tl.dot(l, kl, low, out_dtype=tl.int32)
        middle = tl.dot(h, kl, middle, out_dtype=tl.int32)
        middle = tl.dot(l, kh, middle, out_dtype=tl.int32)
        high = tl.dot(h, kh, high, out_dtype=tl.int32)
    if KP <= DEEPEST:
        return rounded(high, middle, low)
    else:  # noqa: RET505 - a branch that is compiled
        return round_three_planes(high, middle, low)


@device
def take_values(
    highs: Tensor, lows: Tensor, source: Tensor, mask: Tensor, G: tl.constexpr, DV: tl.constexpr
) -> None:
    """Store both planes of values, bytes of pages, as numbers that nothing needs to convert."""
    high = tl.load(source, mask=mask, other=0)
    low = tl.load(source + G * 64 * DV, mask=mask, other=0)
    tl.store(highs, high.to(tl.float16), mask=mask)
    tl.store(lows, low.to(tl.float16), mask=mask)


@device
def mark_places(
    places: Tensor, key: Tensor, before: Tensor, n: Tensor, position: Tensor, CHOSEN: tl.constexpr
) -> None:
    """Store where the keys of tiles begin in an ascending list, by those of its entries n.

    An entry marks the tiles after the one of the entry before it up to its own, the first that is
    not seen and the last those that are left: up to the tile behind the row's.
    """
    end = position // 64 + 1
    tile = tl.where(key <= position, key // 64, end)
    after = tl.where(n > 0, tl.where(before <= position, before // 64, end), -1)
    steps = tl.where(n < CHOSEN, tile - after, 0)
    for i in range(tl.max(steps, 0)):
        tl.store(places + tile - i, n, mask=i < steps)
    left = tl.where(n == CHOSEN - 1, end - tile, 0)
    for i in range(tl.max(left, 0)):
        tl.store(places + tile + 1 + i, CHOSEN, mask=i < left)
