"""The keys that queries choose one by one: their scores, tile by tile, and the best of them."""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.attention import load_queries
from cortiq_triton.language import Tensor, device, kernel
from cortiq_triton.scalar import exp2_int
from cortiq_triton.tile import dot_planes, page_of


@device
def sum_of_heads(terms: Tensor, COUNT: tl.constexpr, WIDTH: tl.constexpr) -> Tensor:
    """The canonical sum of [COUNT, WIDTH] over the first axis, COUNT a power of two up to 256."""
    if COUNT > 1:
        halves = tl.permute(tl.reshape(terms, (2, COUNT // 2, WIDTH)), (1, 2, 0))
        first, second = tl.split(halves)
        return sum_of_heads(first + second, COUNT // 2, WIDTH)
    else:  # noqa: RET505 - a branch that is compiled
        return tl.reshape(terms, (WIDTH,))


@kernel
def score_keys(
    qh: Tensor, ql: Tensor, qe: Tensor, weights: Tensor, table: Tensor, owners: Tensor,
    positions: Tensor, scores: Tensor, stride: Tensor, pages: Tensor, slot: Tensor, room: Tensor,
    H: tl.constexpr, DK: tl.constexpr, KP: tl.constexpr, HP: tl.constexpr, SPAN: tl.constexpr,
    EVERY: tl.constexpr,
) -> None:  # fmt: skip
    """Scores of a row's keys in SPAN tiles to scores [R, room], as integers in their order."""
    r, span = tl.program_id(0), tl.program_id(1)
    position, sequence = tl.load(positions + r), tl.load(owners + r)
    h, t, d = tl.arange(0, HP), tl.arange(0, 64), tl.arange(0, KP)
    live = h < H
    row = tl.full((HP,), 0, tl.int32) + r
    high, low, exponent = load_queries(
        qh, ql, qe, row, tl.where(live, h, 0), live, stride, H, DK, KP
    )
    weight = tl.load(weights + r * H + h, mask=live, other=0.0)
    keys = t[:, None] * DK + d[None, :]
    inside = (d < DK)[None, :] & (t >= 0)[:, None]
    for tile in range(span * SPAN, tl.minimum((span + 1) * SPAN, position // 64 + 1)):
        page = page_of(table, sequence, pages, tile, slot)
        kh = tl.load(page + keys, mask=inside, other=0)
        kl = tl.load(page + keys + 64 * DK, mask=inside, other=0)
        seen = tile * 64 + t <= position
        ke = tl.where(seen, tl.load(page + 128 * DK + t).to(tl.int32), 0)
        dots = dot_planes(high, low, tl.trans(kh), tl.trans(kl), HP, 64, False)
        s = dots * exp2_int(exponent[:, None] + ke[None, :])
        relu = tl.where(s >= 2.0**-40, tl.minimum(s, 2.0**50), 0.0)
        total = sum_of_heads(relu * weight[:, None], HP, 64)
        total = tl.where(total == 0.0, 0.0, total)  # no -0
        bits = total.to(tl.int32, bitcast=True)
        order = bits ^ ((bits >> 31) & 0x7FFFFFFF)
        closing = tile * 64 + t + 1
        there = seen & (closing % EVERY == 0)
        tl.store(scores + r.to(tl.int64) * room + closing // EVERY - 1, order, mask=there)


@kernel
def select_keys(
    scores: Tensor, positions: Tensor, out: Tensor, room: Tensor, TOP: tl.constexpr,
    WIDTH: tl.constexpr, EVERY: tl.constexpr,
) -> None:  # fmt: skip
    """The best TOP keys of a row, ascending, to out [R, TOP]; of equal ones the first.

    The TOP-th largest score is found bit by bit, by counting.
    """
    r, i = tl.program_id(0), tl.arange(0, WIDTH)
    position = tl.load(positions + r)
    count = (position + 1) // EVERY
    at, place = scores + r.to(tl.int64) * room, out + r.to(tl.int64) * TOP
    if count <= TOP:
        for start in range(0, TOP, WIDTH):
            entry = start + i
            beyond = position + 1 + entry - count
            key = tl.where(entry < count, (entry + 1) * EVERY - 1, beyond)
            tl.store(place + entry, key, mask=entry < TOP)
    else:
        first = tl.load(at + i, mask=i < count, other=-2147483648)
        least, one = tl.full((1,), -2147483648, tl.int32), tl.full((1,), 1, tl.int32)
        for bit in range(32):
            tried = least ^ (one << (31 - bit))
            reached = tl.sum((first >= tried).to(tl.int32), 0)
            for start in range(WIDTH, count, WIDTH):
                score = tl.load(at + start + i, mask=start + i < count, other=-2147483648)
                reached += tl.sum((score >= tried).to(tl.int32), 0)
            least = tl.where(reached >= TOP, tried, least)
        more = tl.sum((first > least).to(tl.int32), 0)
        for start in range(WIDTH, count, WIDTH):
            score = tl.load(at + start + i, mask=start + i < count, other=-2147483648)
            more += tl.sum((score > least).to(tl.int32), 0)
        kept, equal = tl.full((1,), 0, tl.int32), tl.full((1,), 0, tl.int32)
        for start in range(0, count, WIDTH):
            score = tl.load(at + start + i, mask=start + i < count, other=-2147483648)
            larger = ((start + i < count) & (score > least)).to(tl.int32)
            same = ((start + i < count) & (score == least)).to(tl.int32)
            both = larger + (same << 16)  # at most WIDTH ≤ 2¹⁵ of each: two counts in a word
            upto = tl.cumsum(both, 0)
            before = equal + ((upto >> 16) & 0xFFFF)  # equal ones up to here
            taken = (larger > 0) | ((same > 0) & (before <= TOP - more))
            where = kept + (upto & 0xFFFF) + tl.minimum(before, TOP - more) - 1
            tl.store(place + where, (start + i + 1) * EVERY - 1, mask=taken)
            together = tl.sum(both, 0)
            kept += together & 0xFFFF
            equal += (together >> 16) & 0xFFFF
