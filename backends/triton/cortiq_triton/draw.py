"""Drawing tokens from rows of logits: the contract's chain, and noise that belongs to the id.

One implementation serves steps, prompts and rounds that check drafts: every row has its own
options, which are data; what no row uses is not launched.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton.language as tl

from cortiq.numerics.philox import KEY_INCREMENTS, MULTIPLIERS
from cortiq.numerics.sampling import GUMBEL_STREAM
from cortiq_triton import draw_numbers as columns
from cortiq_triton.adjust import adjust
from cortiq_triton.call import Counters
from cortiq_triton.language import Tensor, constant, device, kernel, launch, pow2
from cortiq_triton.order import (
    AT,
    MASK,
    OVER_T,
    allowed,
    distance_of,
    extremes,
    keys_of,
    number,
    weight_of,
)
from cortiq_triton.prefix import surveyed
from cortiq_triton.prefix_kernels import CUT, SUMS
from cortiq_triton.rows import ordered_bits
from cortiq_triton.scalar import log, log1p, outside
from cortiq_triton.tail import argmax_whole, shifted

M0, M1 = map(constant, MULTIPLIERS)
K0, K1 = map(constant, KEY_INCREMENTS)
STREAM = constant(GUMBEL_STREAM)
MIN_P, POSITION, CHOICE, SEED_LOW, SEED_HIGH = map(
    constant,
    (columns.MIN_P, columns.POSITION, columns.CHOICE, columns.SEED_LOW, columns.SEED_HIGH),
)
NEVER = constant(-27.0)
"""A distance that no noise makes up for: noise is −3.2 to 22.9, and the largest value is kept."""
NOTHING = constant(-9223372036854775807)


@device
def philox_words(
    counter: Tensor, second: Tensor, third: Tensor, fourth: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four words of Philox 4×32-10 for each counter, as int32."""
    token, zero = counter, counter * 0
    c0, c1 = token.to(tl.uint32), (zero + second).to(tl.uint32, bitcast=True)
    c2 = (zero + third).to(tl.uint32, bitcast=True)
    c3 = (zero + fourth).to(tl.uint32, bitcast=True)
    k0 = (zero + low).to(tl.uint32, bitcast=True)
    k1 = (zero + high).to(tl.uint32, bitcast=True)
    m0, m1 = tl.full(token.shape, M0, tl.uint32), tl.full(token.shape, M1, tl.uint32)
    for _ in tl.static_range(10):
        high0, high1 = tl.umulhi(m0, c0), tl.umulhi(m1, c2)
        low0, low1 = m0 * c0, m1 * c2
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + K0, k1 + K1
    return (
        c0.to(tl.int32, bitcast=True),
        c1.to(tl.int32, bitcast=True),
        c2.to(tl.int32, bitcast=True),
        c3.to(tl.int32, bitcast=True),
    )


@device
def uniform(word: Tensor) -> Tensor:
    """(w + ½)/2³² of the unsigned word."""
    odd = ((word & 255) << 1) + 1
    high = shifted(word, 8).to(tl.float32) * 5.9604644775390625e-08
    return high + odd.to(tl.float32) * 1.1641532182693481e-10


@device
def gumbel(word: Tensor) -> Tensor:
    """−ln(E), E = −ln(1 − v) for v = (w + ½)/2³²."""
    low = word >= 0
    near = -log1p(-uniform(tl.where(low, word, 0)))
    far = -log(uniform(tl.where(low, 0, ~word)))
    return -log(tl.where(low, near, far))


@device
def most_noise(word: Tensor) -> Tensor:
    """A number that the noise of a word does not reach.

    −ln(E) ≤ −ln(v), as E = −ln(1 − v) ≥ v; and log2(1 + f) ≥ f for the fraction f of v's bits.
    """
    bits = uniform(word).to(tl.int32, bitcast=True)
    return (1065353216 - bits).to(tl.float32) * 8.262958294867817e-08 + 0.001


@device
def order_of(value: Tensor, i: Tensor) -> Tensor:
    """int64 that orders by value, of equal ones the lower id last."""
    return (ordered_bits(value).to(tl.int64) << 32) + (2147483647 - i).to(tl.int64)


@device
def exact_best(
    order: Tensor, most: Tensor, y: Tensor, largest: Tensor, position: Tensor, choice: Tensor,
    low: Tensor, high: Tensor,
) -> Tensor:  # fmt: skip
    """The best order of distance + noise, of ids whose orders are known to be at most `order`.

    The noise, which costs most, is computed for ids in turn, while one may be better.
    """
    best = most * 0 + NOTHING
    while most > best:
        i = (2147483647 - (most & 0xFFFFFFFF)).to(tl.int32) + tl.arange(0, 1)
        distance = distance_of(tl.load(y + i), largest)
        noise = gumbel(philox_words(i, position, choice, STREAM, low, high)[0])
        best = tl.maximum(best, tl.max(order_of(distance + noise, i), 0))
        order = tl.where(order == most, NOTHING, order)
        most = tl.max(order, 0)
    return best


@kernel
def best_parts(
    y: Tensor, spread: Tensor, lines: Tensor, masks: Tensor, sums: Tensor, orders: Tensor,
    faults: Tensor, n: Tensor, parts: Tensor, words: Tensor, LEAST: tl.constexpr,
    CUTS: tl.constexpr, RAW: tl.constexpr, MASKED: tl.constexpr, SHIFT: tl.constexpr,
    BLOCK: tl.constexpr, PP: tl.constexpr,
) -> None:  # fmt: skip
    """Of the kept ids of a part: the largest distance + noise and its id, as one int64.

    Rows without a temperature compare the values themselves.
    """
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i = part * BLOCK + tl.arange(0, BLOCK)
    inside = allowed(masks, number(lines, row, MASK), i, i < n, words, MASKED)
    largest, _ = extremes(spread, row, parts, PP)
    value = tl.load(y + row * n + i, mask=inside, other=0.0)
    draws = number(lines, row, OVER_T) != 0
    drawn = number(lines, row, OVER_T) + i * 0 != 0
    at = faults + number(lines, row, AT)
    tl.store(at + i * 0, 1, mask=inside & drawn & outside(value - largest))
    distance = distance_of(value, largest)
    if LEAST:
        least = number(lines, row, MIN_P).to(tl.int64) << 16
        inside = inside & (weight_of(distance) >= least)
    if CUTS:
        cut = tl.load(sums + row * SUMS + CUT)
        inside = inside & (keys_of(value, largest, i, SHIFT, RAW) <= cut)
    inside = inside & ((distance > NEVER) | ~drawn)
    best = row * 0 + NOTHING
    if tl.sum(inside.to(tl.int32), 0) > 0:
        low, high = number(lines, row, SEED_LOW), number(lines, row, SEED_HIGH)
        position, choice = number(lines, row, POSITION), number(lines, row, CHOICE)
        if draws:
            word = philox_words(i, position, choice, STREAM, low, high)[0]
            value = distance + most_noise(word)
        order = tl.where(inside, order_of(value, i), NOTHING)
        best = tl.max(order, 0)
        if draws:
            known = (y + row * n, largest, position, choice, low, high)
            best = exact_best(order, best, *known)
    tl.store(orders + row * parts + part, best)


def draw(
    x: torch.Tensor,
    features: columns.Features,
    there: Mapping[str, torch.Tensor],
    faults: torch.Tensor,
    counts: Counters,
    longest: int = 0,
    own: torch.Tensor | None = None,
) -> torch.Tensor:
    """The tokens drawn from rows of logits: int32 [draws]; see `cortiq.numerics.sampling.draw`.

    Parameters
    ----------
    x : float32 [., n]. there : arrays of `draw_numbers.arrays_of`, on the device.
    faults : int32, the flags that the draws' AT name.
    longest, own : of histories, see `adjust.adjust`.
    """
    lines, n = there["lines"], x.shape[1]
    adjusts = features.biases > 0 or features.penalties
    if adjusts:
        x = x.index_select(0, lines[:, columns.PLACE])
        table = counts.of(x.numel()) if features.penalties else lines
        adjust(x, features, there, faults, table, longest, own)
    cuts = features.top_k or features.top_p
    found = surveyed(x, lines, there.get("masks"), faults, placed=not adjusts, filtered=cuts)
    if cuts:
        found.cut(features.top_k, features.top_p)
    orders = torch.empty((len(lines), found.parts), dtype=torch.int64, device=x.device)
    found.launch(
        best_parts, orders, faults, n, found.parts, found.masks.shape[-1],
        LEAST=features.min_p, CUTS=cuts, SHIFT=found.shift, BLOCK=found.block,
    )  # fmt: skip
    out = torch.empty(len(lines), dtype=torch.int32, device=x.device)
    launch(argmax_whole, (len(lines),), orders, out, found.parts, PP=pow2(found.parts))
    return out
