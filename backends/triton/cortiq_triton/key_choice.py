"""The keys that queries choose one by one: their scores, tile by tile, and the best of them."""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.attention import load_queries
from cortiq_triton.language import Tensor, begin, constant, device, kernel
from cortiq_triton.scalar import exp2_int
from cortiq_triton.tile import dot_planes, page_of

SIGN = constant(-2147483648)
"""The bit that turns the order of integers into that of their bits."""


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
def find_least(
    scores: Tensor, positions: Tensor, limits: Tensor, room: Tensor, TOP: tl.constexpr,
    WIDTH: tl.constexpr, EVERY: tl.constexpr,
) -> None:  # fmt: skip
    """The TOP-th largest score of a row and how many equal to it are taken: limits int32 [R, 2].

    It is found byte by byte, by counting. Where a row has no more than TOP there is none.
    """
    begin()
    r, i, digits = tl.program_id(0), tl.arange(0, WIDTH), tl.arange(0, 256)
    count = (tl.load(positions + r) + 1) // EVERY
    at = scores + r.to(tl.int64) * room
    if count > TOP:
        wanted, least = tl.full((1,), 0, tl.int32) + TOP, tl.full((1,), 0, tl.int32)
        for place in tl.static_range(4):
            found = tl.full((256,), 0, tl.int32)
            for start in range(0, count, WIDTH):
                score = tl.load(at + start + i, mask=start + i < count, other=0) ^ SIGN
                inside = start + i < count
                if place > 0:
                    inside = inside & (((score ^ least) >> (32 - 8 * place)) == 0)
                found += tl.histogram((score >> (24 - 8 * place)) & 255, 256, mask=inside)
            above = tl.sum(found, 0) - tl.cumsum(found, 0)
            here = (above < wanted) & (above + found >= wanted)
            least = least | (tl.sum(tl.where(here, digits, 0), 0) << (24 - 8 * place))
            wanted -= tl.sum(tl.where(here, above, 0), 0)
        one = tl.arange(0, 1)
        tl.store(limits + 2 * r + one, least ^ SIGN)
        tl.store(limits + 2 * r + 1 + one, wanted)


@kernel
def select_keys(
    scores: Tensor, positions: Tensor, limits: Tensor, out: Tensor, room: Tensor,
    TOP: tl.constexpr, WIDTH: tl.constexpr, EVERY: tl.constexpr,
) -> None:  # fmt: skip
    """The best TOP keys of a row among WIDTH of its scores, to their places in out [R, TOP].

    They ascend; of equal ones the first are taken.
    """
    begin()
    r, first, i = tl.program_id(0), tl.program_id(1) * WIDTH, tl.arange(0, WIDTH)
    position, entry = tl.load(positions + r), first + i
    count = (position + 1) // EVERY
    at, place = scores + r.to(tl.int64) * room, out + r.to(tl.int64) * TOP
    if count <= TOP:
        beyond = position + 1 + entry - count
        key = tl.where(entry < count, (entry + 1) * EVERY - 1, beyond)
        tl.store(place + entry, key, mask=entry < TOP)
    elif first < count:
        least, wanted = tl.load(limits + 2 * r), tl.load(limits + 2 * r + 1)
        before = tl.full((WIDTH,), 0, tl.int32)
        for start in range(0, first, WIDTH):  # a count of larger ones, and of equal ones above it
            score = tl.load(at + start + i)
            before += (score > least).to(tl.int32) + ((score == least).to(tl.int32) << 12)
        low, high = tl.sum(before & 4095, 0), tl.sum(before >> 12, 0)
        score = tl.load(at + entry, mask=entry < count, other=0)
        larger = ((entry < count) & (score > least)).to(tl.int32)
        same = ((entry < count) & (score == least)).to(tl.int32)
        upto = tl.cumsum(larger + (same << 16), 0)
        equal = high + (upto >> 16)
        taken = (larger > 0) | ((same > 0) & (equal <= wanted))
        where = low + (upto & 0xFFFF) + tl.minimum(equal, wanted) - 1
        tl.store(place + where, (entry + 1) * EVERY - 1, mask=taken)
