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
    positions: Tensor, scores: Tensor, counts: Tensor, stride: Tensor, pages: Tensor, slot: Tensor,
    room: Tensor, H: tl.constexpr, DK: tl.constexpr, KP: tl.constexpr, HP: tl.constexpr,
    SPAN: tl.constexpr, EVERY: tl.constexpr,
) -> None:  # fmt: skip
    """Scores of a row's keys in SPAN tiles to scores [R, room], as integers in their order.

    counts : int32 [R, 4, 256], which become 0.
    """
    r, span = tl.program_id(0), tl.program_id(1)
    if span == 0:
        tl.store(counts + r * 1024 + tl.arange(0, 1024), 0)
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


@device
def narrowed(
    counts: Tensor, limits: Tensor, r: Tensor, TOP: tl.constexpr, PLACE: tl.constexpr
) -> tuple[Tensor, Tensor]:
    """The first PLACE bytes of a row's TOP-th largest score, and which of those with them it is.

    Scores are meant with their SIGN turned. Both are [1]; the last byte is found in its counts.
    """
    one = tl.arange(0, 1)
    if PLACE == 0:
        return one, one + TOP
    else:  # noqa: RET505 - a branch that is compiled
        digits, place = tl.arange(0, 256), PLACE - 1
        least, wanted = one, one + TOP
        if PLACE > 1:
            least = tl.load(limits + (r * 4 + place) * 2 + one)
            wanted = tl.load(limits + (r * 4 + place) * 2 + 1 + one)
        found = tl.load(counts + (r * 4 + place) * 256 + digits)
        above = tl.sum(found, 0) - tl.cumsum(found, 0)
        here = (above < wanted) & (above + found >= wanted)
        least = least | (tl.sum(tl.where(here, digits, 0), 0) << (32 - 8 * PLACE))
        return least, wanted - tl.sum(tl.where(here, above, 0), 0)


@kernel
def count_bytes(
    scores: Tensor, positions: Tensor, counts: Tensor, limits: Tensor, room: Tensor,
    TOP: tl.constexpr, WIDTH: tl.constexpr, EVERY: tl.constexpr, PLACE: tl.constexpr,
) -> None:  # fmt: skip
    """Count the next byte of those of WIDTH scores that begin as the TOP-th largest one does.

    counts : int32 [R, 4, 256], by PLACE of the byte. limits : int32 [R, 4, 2], what is known of it.
    """
    begin()
    r, first, i = tl.program_id(0), tl.program_id(1) * WIDTH, tl.arange(0, WIDTH)
    count = (tl.load(positions + r) + 1) // EVERY
    if (count > TOP) & (first < count):
        least, wanted = narrowed(counts, limits, r, TOP, PLACE)
        inside = first + i < count
        score = tl.load(scores + r.to(tl.int64) * room + first + i, mask=inside, other=0) ^ SIGN
        if PLACE > 0:
            inside = inside & (((score ^ least) >> (32 - 8 * PLACE)) == 0)
            if first == 0:
                one = tl.arange(0, 1)
                tl.store(limits + (r * 4 + PLACE) * 2 + one, least)
                tl.store(limits + (r * 4 + PLACE) * 2 + 1 + one, wanted)
        found = tl.histogram((score >> (24 - 8 * PLACE)) & 255, 256, mask=inside)
        at = counts + (r * 4 + PLACE) * 256 + tl.arange(0, 256)
        tl.atomic_add(at, found, mask=found > 0, sem="relaxed")


@kernel
def select_keys(
    scores: Tensor, positions: Tensor, counts: Tensor, limits: Tensor, out: Tensor, room: Tensor,
    TOP: tl.constexpr, WIDTH: tl.constexpr, EVERY: tl.constexpr, BEFORE: tl.constexpr,
) -> None:  # fmt: skip
    """The best TOP keys of a row among WIDTH of its scores, to their places in out [R, TOP].

    They ascend; of equal ones the first are taken. BEFORE : times WIDTH scores before its own that
    a program looks at at once.
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
        least, wanted = narrowed(counts, limits, r, TOP, 4)
        least = least ^ SIGN
        before, j = tl.full((BEFORE * WIDTH,), 0, tl.int32), tl.arange(0, BEFORE * WIDTH)
        for start in range(
            0, first, BEFORE * WIDTH
        ):  # larger ones, and above their count equal ones
            inside = start + j < first
            score = tl.load(at + start + j, mask=inside, other=0)
            larger, same = inside & (score > least), inside & (score == least)
            before += larger.to(tl.int32) + (same.to(tl.int32) << 12)
        low, high = tl.sum(before & 4095, 0), tl.sum(before >> 12, 0)
        score = tl.load(at + entry, mask=entry < count, other=0)
        larger = ((entry < count) & (score > least)).to(tl.int32)
        same = ((entry < count) & (score == least)).to(tl.int32)
        upto = tl.cumsum(larger + (same << 16), 0)
        equal = high + (upto >> 16)
        taken = (larger > 0) | ((same > 0) & (equal <= wanted))
        where = low + (upto & 0xFFFF) + tl.minimum(equal, wanted) - 1
        tl.store(place + where, (entry + 1) * EVERY - 1, mask=taken)
