"""Drawing a token from a row of logits: the contract's chain, and noise that belongs to the id.

Sorting and summing of integers is torch's; everything that rounds is here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton.language as tl

from cortiq.backend import Draw
from cortiq.numerics.contract import F32
from cortiq.numerics.philox import KEY_INCREMENTS, MULTIPLIERS
from cortiq.numerics.sampling import GUMBEL_STREAM, SHARE_BITS, WEIGHT_BITS, Sampling
from cortiq_triton.language import Tensor, ceil_div, constant, device, kernel, launch, pow2, signed
from cortiq_triton.scalar import exp, log, log1p, outside, snapped
from cortiq_triton.tail import BLOCK, argmax, shifted

M0, M1 = map(constant, MULTIPLIERS)
K0, K1 = map(constant, KEY_INCREMENTS)
STREAM = constant(GUMBEL_STREAM)


@kernel
def adjust(
    x: Tensor, out: Tensor, faults: Tensor, ids: Tensor, bias: Tensor, counts: Tensor,
    allowed: Tensor, count: Tensor, repetition: Tensor, one_over: Tensor, presence: Tensor,
    frequency: Tensor,
    REPETITION: tl.constexpr, PRESENCE: tl.constexpr, FREQUENCY: tl.constexpr,
    MASKED: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Bias and penalties of one row's ids. counts: how often an id was seen, and 2³⁰ for a bias."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < count
    token = tl.load(ids + i, mask=inside, other=0)
    if MASKED:
        inside = inside & (tl.load(allowed + token, mask=inside, other=0) != 0)
    y = tl.load(x + token, mask=inside, other=0.0)
    number = tl.load(counts + i, mask=inside, other=0)
    biased = (number & 1073741824) != 0
    moved = y + tl.load(bias + i, mask=inside, other=0.0)
    fault = inside & biased & outside(moved)
    y = tl.where(biased, snapped(moved), y)
    seen = number & 1073741823
    z = y
    if REPETITION:
        z = tl.where(z > 0.0, z * one_over, z * repetition)
    if PRESENCE:
        z = z - presence
    if FREQUENCY:
        z = z - frequency * seen.to(tl.float32)
    fault = fault | (inside & (seen > 0) & outside(z))
    tl.store(out + token, tl.where(seen > 0, snapped(z), y), mask=inside)
    tl.store(faults + i * 0, 1, mask=fault)


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


@kernel
def distance(
    x: Tensor, largest: Tensor, allowed: Tensor, out: Tensor, faults: Tensor, n: Tensor,
    one_over_t: Tensor, SECOND: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """snap(x·RN(1/T)); in the SECOND pass snap(that − its largest), `largest` names the place."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    y = tl.load(x + i, mask=inside, other=0.0)
    y = y - tl.load(x + tl.load(largest)) if SECOND else y * one_over_t
    bad = inside & outside(y)
    if MASKED:
        bad = bad & (tl.load(allowed + i, mask=inside, other=0) != 0)
    tl.store(out + i, snapped(y), mask=inside)
    tl.store(faults + i * 0, 1, mask=bad)


@kernel
def noisy(
    d: Tensor, out: Tensor, n: Tensor, position: Tensor, choice: Tensor, low: Tensor, high: Tensor,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """d + noise of each id."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    noise = gumbel(philox_words(i, position, choice, STREAM, low, high)[0])
    tl.store(out + i, tl.load(d + i, mask=i < n, other=0.0) + noise, mask=i < n)


@kernel
def weigh(d: Tensor, out: Tensor, n: Tensor, BLOCK: tl.constexpr) -> None:
    """⌊exp(d)·2⁴⁰⌋, int64."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    p = exp(tl.load(d + i, mask=i < n, other=0.0)) * 1099511627776.0
    tl.store(out + i, p.to(tl.int64), mask=i < n)


@dataclass(frozen=True)
class DrawInputs:
    """What a draw needs from the host besides the options.

    ids int32, bias float32 and counts int32 (2³⁰ added where an id has a bias) of the ids that
    bias or penalties concern; allowed int8 [vocabulary], or None.
    """

    ids: torch.Tensor
    bias: torch.Tensor
    counts: torch.Tensor
    allowed: torch.Tensor | None
    allowed_count: int


def penalises(sampling: Sampling) -> bool:
    """Whether a draw depends on the ids so far."""
    off = (sampling.presence_penalty, sampling.frequency_penalty) == (0, 0)
    return not off or sampling.repetition_penalty != 1


def draw_inputs(want: Draw, history: list[int], n: int, where: str) -> DrawInputs:
    """The lists of a draw, on the device."""
    sampling = want.sampling
    seen, times = np.unique(
        np.array(history if penalises(sampling) else [], np.int64), return_counts=True
    )
    ids = np.union1d(seen, np.array(list(sampling.logit_bias), np.int64)).astype(np.int64)
    counts, bias = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.float32)
    counts[np.searchsorted(ids, seen)] = times
    for token, value in sampling.logit_bias.items():
        at = int(np.searchsorted(ids, token))
        counts[at] += 1 << 30
        bias[at] = F32(value)
    allowed, count = None, n
    if want.mask is not None:
        bits = np.unpackbits(np.frombuffer(want.mask, np.uint8), count=n, bitorder="little")
        allowed, count = torch.tensor(bits.view(np.int8), device=where), int(bits.sum())
    lists = (ids.astype(np.int32), bias, counts.astype(np.int32))
    there = [torch.tensor(part, device=where) for part in lists]
    return DrawInputs(there[0], there[1], there[2], allowed, count)


def _word(value: int) -> int:
    return signed(value & 0xFFFFFFFF)


def draw(
    x: torch.Tensor, want: Draw, position: int, given: DrawInputs, fault: torch.Tensor
) -> torch.Tensor:
    """The token drawn from logits x [n]: int32 [1]; see `cortiq.numerics.sampling.draw`."""
    sampling, n = want.sampling, x.numel()
    allowed, masked = given.allowed, given.allowed is not None
    block = min(BLOCK, pow2(n))
    grid, mask = (ceil_div(n, block),), x if allowed is None else allowed
    kept = None if allowed is None else allowed[None]
    if len(given.ids):
        x = _adjusted(x, sampling, given, fault)
    if sampling.temperature == 0:
        return argmax(x[None], kept)
    scaled, d, noise = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
    over = float(F32(1) / F32(sampling.temperature))
    launch(
        distance, grid, x, x, mask, scaled, fault, n, over, SECOND=False, MASKED=masked, BLOCK=block
    )
    largest = argmax(scaled[None], kept)
    launch(
        distance, grid, scaled, largest, mask, d, fault, n, over, SECOND=True, MASKED=masked,
        BLOCK=block,
    )  # fmt: skip
    seed, position = sampling.seed, _word(position)
    keys = _word(seed), _word(seed >> 32)
    launch(noisy, grid, d, noise, n, position, _word(want.choice), *keys, BLOCK=block)
    if sampling.top_k or sampling.top_p < 1 or sampling.min_p > 0:
        kept = _kept(d, sampling, given)[None]
    return argmax(noise[None], kept)


def _adjusted(
    x: torch.Tensor, sampling: Sampling, given: DrawInputs, fault: torch.Tensor
) -> torch.Tensor:
    y, count = x.clone(), len(given.ids)
    block = min(1024, pow2(count))
    repetition = F32(sampling.repetition_penalty)
    launch(
        adjust, (ceil_div(count, block),), x, y, fault, given.ids, given.bias, given.counts,
        x if given.allowed is None else given.allowed, count, float(repetition),
        float(F32(1) / repetition), float(F32(sampling.presence_penalty)),
        float(F32(sampling.frequency_penalty)), REPETITION=sampling.repetition_penalty != 1,
        PRESENCE=sampling.presence_penalty != 0, FREQUENCY=sampling.frequency_penalty != 0,
        MASKED=given.allowed is not None, BLOCK=block,
    )  # fmt: skip
    return y


def _kept(d: torch.Tensor, sampling: Sampling, given: DrawInputs) -> torch.Tensor:
    """int8 [n]: the ids that top_k, top_p and min_p leave."""
    n = d.numel()
    bits = d.view(torch.int32)
    keys = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    if given.allowed is not None:
        keys = torch.where(given.allowed != 0, keys, -(1 << 31))
    order = torch.sort(keys, descending=True, stable=True).indices
    room = min(sampling.top_k or n, given.allowed_count)
    order = order[:room]
    first, weights = d[order], torch.empty(room, dtype=torch.int64, device=d.device)
    block = min(BLOCK, pow2(room))
    launch(weigh, (ceil_div(room, block),), first, weights, room, BLOCK=block)
    place = torch.arange(room, device=d.device)
    length = torch.full((1,), room, dtype=torch.int64, device=d.device)
    if sampling.top_p < 1:
        sums = torch.cumsum(weights, 0)
        fraction = round(sampling.top_p * 2**SHARE_BITS)
        high, low = sums[-1] >> SHARE_BITS, sums[-1] & ((1 << SHARE_BITS) - 1)
        enough = high * fraction + ((low * fraction + (1 << SHARE_BITS) - 1) >> SHARE_BITS)
        length = (sums < enough).sum(dtype=torch.int64) + 1
    least = -(-(1 << WEIGHT_BITS) * round(sampling.min_p * 2**SHARE_BITS) >> SHARE_BITS)
    length = torch.minimum(length, (weights >= least).sum(dtype=torch.int64)).clamp(min=1)
    kept = torch.zeros(n, dtype=torch.int8, device=d.device)
    kept[order] = (place < length).to(torch.int8)
    return kept
