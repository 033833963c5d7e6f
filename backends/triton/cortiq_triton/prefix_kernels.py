"""Kernels that find the prefix of an order of ids which filters keep: see `prefix.Prefixes`."""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.language import Tensor, constant, device, kernel
from cortiq_triton.listed_keys import (
    LAST,
    TOP_K,
    candidates,
    keeps_few,
    last_of_list,
    least_and_most,
    weight_of_list,
    weight_to_reach,
    weight_upto,
    weights_of_keys,
)
from cortiq_triton.order import (
    AT,
    HIGHEST,
    LOWEST,
    MASK,
    OVER_T,
    PLACE,
    allowed,
    bucket_of,
    depth_of,
    distance_of,
    extremes,
    finer,
    keys_of,
    number,
    real,
    weight_of,
)
from cortiq_triton.rows import ordered_bits
from cortiq_triton.scalar import outside, snapped

SUMS = constant(128)
"""Words of a row's sums: three tables of 16 (count, weight), then the four below."""
LISTED, CUT, KEPT, DONE = constant(96), constant(98), constant(99), constant(-2)
"""Ids listed (LISTED and LISTED + 1), last key kept, weight kept (−1: everything; DONE: top_p has
cut it already)."""
COUNT_AT = constant(52)
"""Bit from which on a part's sum of weights holds its count."""


@device
def target_of(lines: Tensor, sums: Tensor, row: Tensor, PHASE: tl.constexpr) -> Tensor:
    """The count or weight that a row's prefix has to reach; 0 where the filter cuts nothing."""
    b = tl.arange(0, 16)
    line = sums + row * SUMS
    if PHASE == 1:
        wanted = number(lines, row, TOP_K).to(tl.int64)
        target = tl.where(wanted < tl.sum(tl.load(line + 2 * b), 0), wanted, 0)
    else:
        whole = tl.sum(tl.load(line + 2 * b + 1), 0)
        kept = tl.load(line + KEPT)
        target = weight_to_reach(tl.where(kept < 0, whole, kept), lines, row)
        target = tl.where(kept == DONE, 0, target)
    return target


@device
def crossing(
    table: Tensor, count: Tensor, weight: Tensor, target: Tensor, PHASE: tl.constexpr
) -> tuple[Tensor, Tensor, Tensor]:
    """The bucket in which sums from (count, weight) on reach a target, and the sums before it."""
    b = tl.arange(0, 16)
    counts, weights = tl.load(table + 2 * b), tl.load(table + 2 * b + 1)
    reached = count + tl.cumsum(counts, 0) if PHASE == 1 else weight + tl.cumsum(weights, 0)
    bucket = tl.minimum(tl.sum((reached < target).to(tl.int32), 0), 15)
    count += tl.sum(tl.where(b < bucket, counts, 0), 0)
    weight += tl.sum(tl.where(b < bucket, weights, 0), 0)
    return bucket, count, weight


@device
def lists_all(
    lines: Tensor, line: Tensor, row: Tensor, count: Tensor, fine: Tensor, PHASE: tl.constexpr,
    FEW: tl.constexpr,
) -> Tensor:  # fmt: skip
    """Whether PHASE 1 lists all that a row's top_k may keep: `count` before its last bucket."""
    many = count + tl.load(line + 32 * PHASE + 2 * fine)
    return keeps_few(lines, row, FEW) & (many <= FEW) & (PHASE == 1)


@kernel
def survey(
    x: Tensor, out: Tensor, spread: Tensor, lines: Tensor, masks: Tensor, sums: Tensor,
    faults: Tensor, n: Tensor, parts: Tensor, words: Tensor, PLACED: tl.constexpr,
    RAW: tl.constexpr, FILTERED: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """snap(x·RN(1/T)) of a part of a row, its extremes; clears the row's sums. RAW: x as it is."""
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i = part * BLOCK + tl.arange(0, BLOCK)
    place = number(lines, row, PLACE).to(tl.int64) if PLACED else row
    inside = allowed(masks, number(lines, row, MASK), i, i < n, words, MASKED)
    y = tl.load(x + place * n + i, mask=i < n, other=0.0)
    if not RAW:
        over = real(lines, row, OVER_T)
        y = tl.where(over == 0.0, y, y * over)
        at = faults + number(lines, row, AT)
        tl.store(at + i * 0, 1, mask=inside & outside(y))
        y = snapped(y)
        tl.store(out + row * n + i, y, mask=i < n)
    order = ordered_bits(y)
    at = spread + row * 2 * parts + part
    tl.store(at, tl.max(tl.where(inside, order, LOWEST), 0))
    tl.store(at + parts, tl.min(tl.where(inside, order, HIGHEST), 0))
    if FILTERED:
        word = tl.arange(0, SUMS)
        first = tl.where(word == CUT, LAST, tl.where(word == KEPT, -1, word.to(tl.int64) * 0))
        tl.store(sums + row * SUMS + word, first, mask=word + part * SUMS < SUMS)


@kernel
def weigh(
    y: Tensor, spread: Tensor, lines: Tensor, masks: Tensor, sums: Tensor, n: Tensor,
    parts: Tensor, words: Tensor, PHASE: tl.constexpr, WEIGHTS: tl.constexpr, RAW: tl.constexpr,
    MASKED: tl.constexpr, BLOCK: tl.constexpr, FEW: tl.constexpr, PP: tl.constexpr,
) -> None:  # fmt: skip
    """Count and weigh the ids of a part by buckets: PHASE 0 all, else those of the crossing one."""
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i = part * BLOCK + tl.arange(0, BLOCK)
    line = sums + row * SUMS
    few = keeps_few(lines, row, FEW)
    if PHASE > 0:
        target = target_of(lines, sums, row, PHASE)
        if (target == 0) | ((PHASE == 2) & few):
            return
    place = number(lines, row, PLACE).to(tl.int64) if RAW else row
    inside = allowed(masks, number(lines, row, MASK), i, i < n, words, MASKED)
    largest, smallest = extremes(spread, row, parts, PP)
    value = tl.load(y + place * n + i, mask=inside, other=0.0)
    depth = depth_of(value, largest, smallest, RAW)
    bucket = bucket_of(depth)
    if PHASE > 0:
        chosen, _, _ = crossing(line, target * 0, target * 0, target, PHASE)
        inside = inside & (bucket == chosen)
        bucket = finer(depth, chosen)
    bucket = tl.where(inside, bucket, 16)
    one = inside.to(tl.int32)
    if WEIGHTS:  # a part's weights add up to 2⁵² at most: its count fits above them
        one = one.to(tl.int64) << COUNT_AT
        if ~few:
            one += weight_of(distance_of(value, largest))
    b = tl.arange(0, 16)
    total = b * tl.sum(one * 0, 0)
    for each in tl.static_range(16):
        total = tl.where(b == each, tl.sum(tl.where(bucket == each, one, 0), 0), total)
    at = line + 32 * PHASE + 2 * b
    if WEIGHTS:
        weight = total & ((1 << COUNT_AT) - 1)
        tl.atomic_add(at + 1, weight, mask=weight > 0, sem="relaxed")
        total = (total >> COUNT_AT) & 4095
    tl.atomic_add(at, total.to(tl.int64), mask=total > 0, sem="relaxed")


@kernel
def enlist(
    y: Tensor, spread: Tensor, lines: Tensor, masks: Tensor, sums: Tensor, listed: Tensor,
    n: Tensor, parts: Tensor, words: Tensor, capacity: Tensor, PHASE: tl.constexpr,
    RAW: tl.constexpr, MASKED: tl.constexpr, SHIFT: tl.constexpr, BLOCK: tl.constexpr,
    FEW: tl.constexpr, PP: tl.constexpr,
) -> None:  # fmt: skip
    """List a part's keys that lie where the target is reached; PHASE 0: those up to the cut.

    PHASE 2 lists those up to the cut, too, of a row that keeps few. See also `lists_all`.
    """
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i = part * BLOCK + tl.arange(0, BLOCK)
    line = sums + row * SUMS
    up_to_cut = (PHASE == 0) | ((PHASE == 2) & keeps_few(lines, row, FEW))
    target = row * 0
    if PHASE > 0:
        target = target_of(lines, sums, row, PHASE)
        if target == 0:
            return
    place = number(lines, row, PLACE).to(tl.int64) if RAW else row
    inside = allowed(masks, number(lines, row, MASK), i, i < n, words, MASKED)
    largest, smallest = extremes(spread, row, parts, PP)
    value = tl.load(y + place * n + i, mask=inside, other=0.0)
    key = keys_of(value, largest, i, SHIFT, RAW)
    if up_to_cut:
        inside = inside & (key <= tl.load(line + CUT))
    else:
        depth = depth_of(value, largest, smallest, RAW)
        chosen, count, weight = crossing(line, target * 0, target * 0, target, PHASE)
        fine, count, weight = crossing(line + 32 * PHASE, count, weight, target, PHASE)
        bucket, place_in = bucket_of(depth), finer(depth, chosen)
        last = (bucket == chosen) & (place_in == fine)
        if lists_all(lines, line, row, count, fine, PHASE, FEW):
            last = (bucket < chosen) | ((bucket == chosen) & (place_in <= fine))
        inside = inside & last
    found = inside.to(tl.int32)
    many = tl.sum(found, 0)
    if many > 0:
        first = tl.atomic_add(line + LISTED + PHASE % 2, many.to(tl.int64), sem="relaxed")
        at = first + tl.cumsum(found, 0) - 1
        tl.store(listed + row * capacity + at, key, mask=inside & (at < capacity))


@kernel
def settle(
    y: Tensor, spread: Tensor, lines: Tensor, masks: Tensor, sums: Tensor, listed: Tensor,
    n: Tensor, parts: Tensor, words: Tensor, capacity: Tensor, PHASE: tl.constexpr,
    WEIGHTS: tl.constexpr, RAW: tl.constexpr, MASKED: tl.constexpr, SHIFT: tl.constexpr,
    CHUNK: tl.constexpr, FEW: tl.constexpr, PP: tl.constexpr,
) -> None:  # fmt: skip
    """Find a row's last key by sixteen limits at a time; and by count also what it all weighs.

    A row that keeps few ids has all of them listed for PHASE 2, and nothing before them.
    """
    row = tl.program_id(0).to(tl.int64)
    line = sums + row * SUMS
    few = keeps_few(lines, row, FEW)
    target = target_of(lines, sums, row, PHASE)
    if target == 0:
        return
    place, mask = number(lines, row, PLACE).to(tl.int64) if RAW else row, number(lines, row, MASK)
    largest, smallest = extremes(spread, row, parts, PP)
    chosen, count, weight = crossing(line, target * 0, target * 0, target, PHASE)
    fine, count, weight = crossing(line + 32 * PHASE, count, weight, target, PHASE)
    many = tl.load(line + LISTED + PHASE % 2)
    short = many > capacity
    stop = tl.where(short, n.to(tl.int64), many)
    row_y, row_list = y + place * n, listed + row * capacity
    if lists_all(lines, line, row, count, fine, PHASE, FEW):
        known = (row_list, many, target, lines, row)
        tl.store(line + CUT, last_of_list(*known, WEIGHTS, SHIFT, CHUNK))
        tl.store(line + KEPT, DONE)
        return
    low, high = least_and_most(
        row_y, row_list, masks, mask, stop, many, short, largest, smallest, chosen, fine, n,
        words, RAW, MASKED, SHIFT, CHUNK,
    )  # fmt: skip
    before = count if PHASE == 1 else weight
    if (PHASE == 2) & few:
        before = before * 0
        target = weight_to_reach(weight_of_list(row_list, many, SHIFT, CHUNK), lines, row)
    while low < high:
        step = (high - low) // 16 + 1
        limit = low + step * (1 + tl.arange(0, 16)) - 1
        sums_up_to = tl.full((CHUNK, 16), 0, tl.int64)
        for start in range(0, stop, CHUNK):
            key, inside = candidates(
                row_y, row_list, masks, mask, start, many, short, largest, smallest, chosen, fine,
                n, words, RAW, MASKED, SHIFT, CHUNK,
            )  # fmt: skip
            each = inside.to(tl.int64)
            if PHASE == 2:
                each = tl.where(inside, weights_of_keys(key, SHIFT), 0)
            sums_up_to += tl.where(key[:, None] <= limit[None, :], each[:, None], 0)
        total = before + tl.sum(sums_up_to, 0)
        low += step * tl.sum((total < target).to(tl.int64), 0)
        high = tl.minimum(high, low + step - 1)
    tl.store(line + CUT, low)
    if (PHASE == 1) and WEIGHTS:
        weight += weight_upto(
            low, row_y, row_list, masks, mask, stop, many, short, largest, smallest, chosen, fine,
            n, words, RAW, MASKED, SHIFT, CHUNK,
        )  # fmt: skip
        tl.store(line + KEPT, weight)
