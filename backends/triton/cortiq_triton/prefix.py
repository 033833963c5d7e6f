"""The prefix of an order that filters keep, found without sorting, for many rows at once.

Ids of a row are ordered by the key (order of the value, id), all of them different, smallest first.
A prefix that holds a count, or a weight, is found in two levels of buckets over the values, whose
counts and integer weights are summed by atomics (exact in any order), then by a search among the
ids of one bucket of a bucket. What is left is one number a row: the last key that is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl

from cortiq_triton import draw_numbers as columns
from cortiq_triton.language import (
    Tensor,
    ceil_div,
    constant,
    device,
    kernel,
    launch,
    pow2,
)
from cortiq_triton.rows import ordered_bits
from cortiq_triton.scalar import exp, magnitude_bits, outside, snapped

BLOCK = 2048
LOWEST, HIGHEST = constant(-2147483648), constant(2147483647)
LAST = constant(9223372036854775807)
"""A key after all others."""
FARTHEST = constant(28.0)
"""Ids whose value lies further below the largest weigh nothing."""
CAPACITY = 1 << 14
"""Ids of a bucket that are listed; more are found by reading the row again."""
CHUNK = 1024

(PLACE, AT, MASK, OVER_T, TOP_K, TOP_P) = map(
    constant, (columns.PLACE, columns.AT, columns.MASK, columns.OVER_T, columns.TOP_K, columns.TOP_P)
)  # fmt: skip
WIDTH = constant(columns.COLUMNS)
SUMS = constant(128)
"""Words of a row's sums: three tables of 16 (count, weight), then the four below."""
BY_COUNT, BY_WEIGHT = constant(1), constant(2)
COUNT_AT = constant(52)
LISTED, CUT, KEPT = constant(96), constant(98), constant(99)
"""Ids listed (by which table: LISTED and LISTED + 1), last key kept, weight kept (−1: everything)."""


@device
def number(lines: Tensor, row: Tensor, column: tl.constexpr) -> Tensor:
    """A number of a draw."""
    return tl.load(lines + row * WIDTH + column)


@device
def real(lines: Tensor, row: Tensor, column: tl.constexpr) -> Tensor:
    """A number of a draw that is a float32."""
    return number(lines, row, column).to(tl.float32, bitcast=True)


@device
def allowed(
    masks: Tensor, mask: Tensor, i: Tensor, inside: Tensor, words: Tensor, MASKED: tl.constexpr
) -> Tensor:
    """Which ids exist for a draw: those of its bit mask, or all."""
    if MASKED:
        at = masks + mask * words + (i >> 5)
        word = tl.load(at, mask=inside & (mask + i * 0 >= 0), other=-1)
        inside = inside & (((word >> (i & 31)) & 1) != 0)
    return inside


@device
def extremes(spread: Tensor, row: Tensor, parts: Tensor, PP: tl.constexpr) -> tuple[Tensor, Tensor]:
    """The largest and the smallest value of a row, of what its parts found."""
    i = tl.arange(0, PP)
    at = spread + row * 2 * parts + i
    high = tl.max(tl.load(at, mask=i < parts, other=LOWEST), 0)
    low = tl.min(tl.load(at + parts, mask=i < parts, other=HIGHEST), 0)
    largest = (high ^ ((high >> 31) & HIGHEST)).to(tl.float32, bitcast=True)
    smallest = (low ^ ((low >> 31) & HIGHEST)).to(tl.float32, bitcast=True)
    return largest, smallest


@device
def weight_of(distance: Tensor) -> Tensor:
    """⌊exp(d)·2⁴⁰⌋."""
    return (exp(distance) * 1099511627776.0).to(tl.int64)


@device
def distance_of(y: Tensor, largest: Tensor) -> Tensor:
    """snap(y − largest)."""
    return snapped(y - largest)


@device
def keys_of(
    y: Tensor, largest: Tensor, i: Tensor, SHIFT: tl.constexpr, RAW: tl.constexpr
) -> Tensor:
    """Keys of ids: by distance to the largest, or RAW by the value itself."""
    if RAW:
        order = ~ordered_bits(y)
    else:
        order = magnitude_bits(distance_of(y, largest))
    return (order.to(tl.int64) << SHIFT) + i.to(tl.int64)


@device
def depth_of(y: Tensor, largest: Tensor, smallest: Tensor, RAW: tl.constexpr) -> Tensor:
    """How far below the largest a value lies, in buckets: never less for a later key."""
    span = tl.minimum(largest - smallest, FARTHEST)
    scale = tl.div_rn(tl.where(span > 0.0, 16.0, 0.0), tl.where(span > 0.0, span, 1.0))
    below = largest - y if RAW else -distance_of(y, largest)
    return tl.maximum(tl.minimum(below * scale, 16.0), 0.0)


@device
def bucket_of(depth: Tensor) -> Tensor:
    """The bucket of a depth of 0 to 16."""
    return tl.minimum(depth.to(tl.int32), 15)


@device
def finer(depth: Tensor, bucket: Tensor) -> Tensor:
    """The bucket among the sixteen of `bucket`."""
    return tl.minimum(((depth - bucket.to(tl.float32)) * 16.0).to(tl.int32), 15)


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
        whole = tl.where(kept < 0, whole, kept)
        share = number(lines, row, TOP_P).to(tl.int64)
        target = (whole >> 24) * share + (((whole & 16777215) * share + 16777215) >> 24)
        target = tl.where(share < 0, 0, tl.maximum(target, 1))
    return target


@device
def crossing(
    table: Tensor, count: Tensor, weight: Tensor, target: Tensor, PHASE: tl.constexpr
) -> tuple[Tensor, Tensor, Tensor]:
    """The bucket in which sums from (count, weight) on reach a target, and the sums before it."""
    b = tl.arange(0, 16)
    counts, weights = tl.load(table + 2 * b), tl.load(table + 2 * b + 1)
    if PHASE == 1:
        reached = count + tl.cumsum(counts, 0)
    else:
        reached = weight + tl.cumsum(weights, 0)
    bucket = tl.minimum(tl.sum((reached < target).to(tl.int32), 0), 15)
    count += tl.sum(tl.where(b < bucket, counts, 0), 0)
    weight += tl.sum(tl.where(b < bucket, weights, 0), 0)
    return bucket, count, weight


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
    MASKED: tl.constexpr, BLOCK: tl.constexpr, PP: tl.constexpr,
) -> None:  # fmt: skip
    """Count and weigh the ids of a part by buckets: PHASE 0 all, else those of the crossing one."""
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i = part * BLOCK + tl.arange(0, BLOCK)
    line = sums + row * SUMS
    if PHASE > 0:
        target = target_of(lines, sums, row, PHASE)
        if target == 0:
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
        one = (one.to(tl.int64) << COUNT_AT) + weight_of(distance_of(value, largest))
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
    PP: tl.constexpr,
) -> None:  # fmt: skip
    """List the keys of a part that lie where the target is reached; PHASE 0: those up to the cut."""
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i = part * BLOCK + tl.arange(0, BLOCK)
    line = sums + row * SUMS
    if PHASE > 0:
        target = target_of(lines, sums, row, PHASE)
        if target == 0:
            return
    place = number(lines, row, PLACE).to(tl.int64) if RAW else row
    inside = allowed(masks, number(lines, row, MASK), i, i < n, words, MASKED)
    largest, smallest = extremes(spread, row, parts, PP)
    value = tl.load(y + place * n + i, mask=inside, other=0.0)
    key = keys_of(value, largest, i, SHIFT, RAW)
    if PHASE > 0:
        depth = depth_of(value, largest, smallest, RAW)
        chosen, count, weight = crossing(line, target * 0, target * 0, target, PHASE)
        fine, count, weight = crossing(line + 32 * PHASE, count, weight, target, PHASE)
        inside = inside & (bucket_of(depth) == chosen) & (finer(depth, chosen) == fine)
    else:
        inside = inside & (key <= tl.load(line + CUT))
    found = inside.to(tl.int32)
    many = tl.sum(found, 0)
    if many > 0:
        first = tl.atomic_add(line + LISTED + PHASE % 2, many.to(tl.int64), sem="relaxed")
        at = first + tl.cumsum(found, 0) - 1
        tl.store(listed + row * capacity + at, key, mask=inside & (at < capacity))


@device
def candidates(
    y: Tensor, listed: Tensor, masks: Tensor, mask: Tensor, start: Tensor, count: Tensor,
    short: Tensor, largest: Tensor, smallest: Tensor, chosen: Tensor, fine: Tensor, n: Tensor,
    words: Tensor, RAW: tl.constexpr, MASKED: tl.constexpr, SHIFT: tl.constexpr,
    CHUNK: tl.constexpr,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Keys of a chunk of the list, or of the row where the list is too short, and which count."""
    i = start + tl.arange(0, CHUNK)
    if short:
        inside = allowed(masks, mask, i, i < n, words, MASKED)
        value = tl.load(y + i, mask=inside, other=0.0)
        depth = depth_of(value, largest, smallest, RAW)
        inside = inside & (bucket_of(depth) == chosen) & (finer(depth, chosen) == fine)
        key = keys_of(value, largest, i, SHIFT, RAW)
    else:
        inside = i < count
        key = tl.load(listed + i, mask=inside, other=0)
    return key, inside


@device
def weights_of_keys(key: Tensor, SHIFT: tl.constexpr) -> Tensor:
    """Weights of ids by their keys, which hold the distance's bits."""
    distance = -((key >> SHIFT).to(tl.int32).to(tl.float32, bitcast=True))
    return weight_of(distance)


@kernel
def settle(
    y: Tensor, spread: Tensor, lines: Tensor, masks: Tensor, sums: Tensor, listed: Tensor,
    n: Tensor, parts: Tensor, words: Tensor, capacity: Tensor, PHASE: tl.constexpr,
    WEIGHTS: tl.constexpr, RAW: tl.constexpr, MASKED: tl.constexpr, SHIFT: tl.constexpr,
    CHUNK: tl.constexpr, PP: tl.constexpr,
) -> None:  # fmt: skip
    """Find a row's last key by sixteen limits at a time; and by count also what it all weighs."""
    row = tl.program_id(0).to(tl.int64)
    line = sums + row * SUMS
    target = target_of(lines, sums, row, PHASE)
    if target == 0:
        return
    place = number(lines, row, PLACE).to(tl.int64) if RAW else row
    mask = number(lines, row, MASK)
    largest, smallest = extremes(spread, row, parts, PP)
    chosen, count, weight = crossing(line, target * 0, target * 0, target, PHASE)
    fine, count, weight = crossing(line + 32 * PHASE, count, weight, target, PHASE)
    many = tl.load(line + LISTED + PHASE % 2)
    short = many > capacity
    stop = tl.where(short, n.to(tl.int64), many)
    row_y, row_list = y + place * n, listed + row * capacity
    low, high = target * 0 + LAST, target * 0 - LAST
    for start in range(0, stop, CHUNK):
        key, inside = candidates(
            row_y, row_list, masks, mask, start, many, short, largest, smallest, chosen, fine, n,
            words, RAW, MASKED, SHIFT, CHUNK,
        )  # fmt: skip
        low = tl.minimum(low, tl.min(tl.where(inside, key, LAST), 0))
        high = tl.maximum(high, tl.max(tl.where(inside, key, -LAST), 0))
    before = count if PHASE == 1 else weight
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
        for start in range(0, stop, CHUNK):
            key, inside = candidates(
                row_y, row_list, masks, mask, start, many, short, largest, smallest, chosen, fine,
                n, words, RAW, MASKED, SHIFT, CHUNK,
            )  # fmt: skip
            each = weights_of_keys(key, SHIFT)
            weight += tl.sum(tl.where(inside & (key <= low), each, 0), 0)
        tl.store(line + KEPT, weight)


@dataclass
class Prefixes:
    """Rows whose values were surveyed.

    Attributes
    ----------
    values : float32 [rows, n]. spread : int32 [rows, 2, parts], orders of the parts' largest and
        smallest. sums : int64 [rows, SUMS]. lines : int32 [rows, COLUMNS]. masks : int32 [., words].
    raw : ordered by the value itself; rows of `values` are then named by PLACE.
    """

    values: torch.Tensor
    spread: torch.Tensor
    sums: torch.Tensor
    lines: torch.Tensor
    masks: torch.Tensor
    raw: bool = False
    masked: bool = False

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.lines)

    @property
    def n(self) -> int:
        """Ids of a row."""
        return self.values.shape[1]

    @property
    def parts(self) -> int:
        """Parts of a row."""
        return self.spread.shape[2]

    @property
    def shift(self) -> int:
        """Bits of an id in a key."""
        return (self.n - 1).bit_length()

    @property
    def block(self) -> int:
        """Ids of a part."""
        return min(BLOCK, pow2(self.n))

    def launch(self, which: Any, *given: Any, one: bool = False, **how: Any) -> None:
        """Launch a kernel over the parts of all rows, or with `one` program a row."""
        grid = (self.rows,) if one else (self.parts, self.rows)
        launch(
            which, grid, self.values, self.spread, self.lines, self.masks, self.sums, *given,
            RAW=self.raw, MASKED=self.masked, PP=pow2(self.parts), **how,
        )  # fmt: skip

    def cut(self, top_k: bool, top_p: bool) -> None:
        """Find the last key of each row, of what its TOP_K keeps, then of its TOP_P of that."""
        sizes = (self.n, self.parts, self.masks.shape[-1])
        block, shift, chunk = self.block, self.shift, min(CHUNK, self.block)
        capacity = min(CAPACITY, self.n)
        listed = self.sums.new_empty((self.rows, capacity))
        self.launch(weigh, *sizes, PHASE=0, WEIGHTS=top_p, BLOCK=block)
        for phase, there in ((1, top_k), (2, top_p)):
            if there:
                how = {"PHASE": phase, "SHIFT": shift}
                self.launch(weigh, *sizes, PHASE=phase, WEIGHTS=top_p, BLOCK=block)
                self.launch(enlist, listed, *sizes, capacity, BLOCK=block, **how)
                self.launch(
                    settle, listed, *sizes, capacity, one=True, WEIGHTS=top_p, CHUNK=chunk,
                    warps=8, **how,
                )  # fmt: skip

    def keep(self, count: int) -> torch.Tensor:
        """Keys of the first `count` ids of each row, in no order: int64 [rows, count]."""
        kept = self.sums.new_full((self.rows, count), (1 << 63) - 1)
        self.launch(
            enlist, kept, self.n, self.parts, self.masks.shape[-1], count, PHASE=0,
            SHIFT=self.shift, BLOCK=self.block,
        )  # fmt: skip
        return kept


def surveyed(
    x: torch.Tensor, lines: torch.Tensor, masks: torch.Tensor | None, faults: torch.Tensor,
    *, raw: bool = False, placed: bool = True, filtered: bool = True,
) -> Prefixes:  # fmt: skip
    """Rows of logits ready for filters: x/T of the rows that PLACE names, or `raw` x itself.

    x : float32 [., n]. masks : bits, int32 [., words]; None where all ids exist. faults : flags of
    the rows that AT names. placed : whether PLACE names rows; else row after row is taken.
    """
    rows, n = len(lines), x.shape[1]
    block = min(BLOCK, pow2(n))
    parts = ceil_div(n, block)
    out = x if raw else torch.empty((rows, n), dtype=torch.float32, device=x.device)
    spread = torch.empty((rows, 2, parts), dtype=torch.int32, device=x.device)
    sums = torch.empty((rows if filtered else 0, 128), dtype=torch.int64, device=x.device)
    known = lines if masks is None else masks
    launch(
        survey, (parts, rows), x, out, spread, lines, known, sums, faults, n, parts,
        known.shape[-1], PLACED=placed, RAW=raw, FILTERED=filtered, MASKED=masks is not None,
        BLOCK=block,
    )  # fmt: skip
    return Prefixes(out, spread, sums, lines, known, raw, masks is not None)
