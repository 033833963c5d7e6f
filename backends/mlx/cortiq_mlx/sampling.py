"""Outputs of a row's logits on the device: argmax, the sampling chain, top, digest.

See `cortiq.numerics.sampling` and `digest` for what each step is. Orders are those of integers that
hold value and index together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cortiq.backend import Draw
from cortiq.numerics import philox as words
from cortiq.numerics import sampling as contract
from cortiq.numerics.contract import F32
from cortiq.numerics.digest import INDEX_KEY, LANE_KEYS, MIX_MULTIPLIERS
from cortiq.numerics.sampling import Sampling
from cortiq_mlx.array_library import FLOATS
from cortiq_mlx.exact_sums import count, running_sum, wrapping_sum
from cortiq_mlx.library import mx
from cortiq_mlx.quantised_rows import Faults, snap

INDEX_BITS = 24
"""Bits that hold an id."""
INDEX = (1 << INDEX_BITS) - 1
UNIT = 1 << contract.SHARE_BITS
HALF_WEIGHT = 1 << (contract.WEIGHT_BITS // 2)
LAST = (1 << 62) - 1
"""Behind every key."""


def keys_of(x: mx.array, ids: mx.array) -> mx.array:
    """Return integers in the order of (value descending, id ascending), all different: int64."""
    return (FLOATS.descending(x) << INDEX_BITS) | ids.astype(mx.int64)


def argmax(x: mx.array) -> mx.array:
    """Return the index of the largest value of [n], the lowest on ties: int64."""
    return keys_of(x, mx.arange(x.size)).min() & INDEX


def ordered(x: mx.array, number: int) -> mx.array:
    """Return the first `number` indices by (value descending, index ascending): int64."""
    keys = keys_of(x, mx.arange(x.size))
    if number < x.size:
        keys = mx.partition(keys, number - 1)[:number]
    return mx.sort(keys) & INDEX


def log_sum_exp(x: mx.array) -> mx.array:
    """Compute ln Σ e^x over [n]: [1]; canonical x cannot leave the domain."""
    highest = x.max()
    total = highest + FLOATS.log(FLOATS.canonical_sum(FLOATS.exp(x - highest)))
    return snap(total, Faults(1))


def mixed(w: mx.array) -> mx.array:
    """Apply the digest's bijection to 32-bit words."""
    first, second = (mx.array(multiplier, mx.uint32) for multiplier in MIX_MULTIPLIERS)
    w = (w ^ (w >> 16)) * first
    w = (w ^ (w >> 15)) * second
    return w ^ (w >> 16)


def digest(x: mx.array) -> mx.array:
    """Compute the four words of x's digest, uint32 [4]."""
    bits = x.reshape(-1).view(mx.uint32)
    index = mx.arange(bits.size).astype(mx.uint32)
    w = bits ^ mixed(index + mx.array(INDEX_KEY, mx.uint32))
    return mx.stack([wrapping_sum(mixed(w + mx.array(key, mx.uint32))) for key in LANE_KEYS])


def allowed(mask: bytes | None, vocabulary: int) -> np.ndarray | None:
    """Return the ids that a mask allows, ascending; None for all."""
    if mask is None:
        return None
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), count=vocabulary, bitorder="little")
    return np.flatnonzero(bits)


def draw(
    logits: mx.array, want: Draw, history: Sequence[int], position: int, faults: Faults
) -> mx.array:
    """Draw a token from a row of logits [vocabulary]: int64.

    history : ids for the penalties. position : that of the drawn token.
    """
    s, ids = want.sampling, allowed(want.mask, logits.size)
    x = _adjusted(logits, s, history, ids, faults)
    chosen = mx.arange(x.size) if ids is None else mx.array(ids.astype(np.int32))
    x = x if ids is None else mx.take(x, chosen)
    if s.temperature == 0:
        return mx.take(chosen, argmax(x)).astype(mx.int64)
    scaled = snap(x[None] * float(F32(1) / F32(s.temperature)), faults)
    distance = snap(scaled - scaled.max(), faults)[0]
    kept, distance, chosen = _kept(distance, chosen, s)
    z = distance + noise(chosen, s.seed, want.choice, position)
    keys = keys_of(z, chosen)
    return (keys if kept is None else mx.where(kept, keys, LAST)).min() & INDEX


def penalises(s: Sampling) -> bool:
    """Check whether a draw looks at the history."""
    return bool(s.repetition_penalty != 1 or s.presence_penalty or s.frequency_penalty)


def _adjusted(
    logits: mx.array, s: Sampling, history: Sequence[int], ids: np.ndarray | None, faults: Faults
) -> mx.array:
    """Apply bias and penalties; logits outside the mask stay as they are."""
    touched = np.ones(logits.size, bool)
    if ids is not None:
        touched[:] = False
        touched[ids] = True
    x = logits[:]
    where = np.array([t for t in s.logit_bias if touched[t]], np.int32)
    if where.size:
        bias = np.array([s.logit_bias[int(t)] for t in where], np.float64).astype(F32)
        place = mx.array(where)
        x[place] = snap((mx.take(x, place) + mx.array(bias))[None], faults)[0]
    if not penalises(s):
        return x
    seen, counts = np.unique(np.asarray(history, np.int32), return_counts=True)
    seen, counts = seen[touched[seen]], counts[touched[seen]]
    if seen.size:
        place = mx.array(seen)
        times = mx.array(counts.astype(F32))
        x[place] = snap(_penalised(mx.take(x, place), s, times)[None], faults)[0]
    return x


def _penalised(x: mx.array, s: Sampling, times: mx.array) -> mx.array:
    if s.repetition_penalty != 1:
        penalty = F32(s.repetition_penalty)
        x = mx.where(x > 0.0, x * float(F32(1) / penalty), x * float(penalty))
    if s.presence_penalty != 0:
        x = x - float(F32(s.presence_penalty))
    if s.frequency_penalty != 0:
        x = x - times * float(F32(s.frequency_penalty))
    return x


def _kept(
    distance: mx.array, ids: mx.array, s: Sampling
) -> tuple[mx.array | None, mx.array, mx.array]:
    """Return flags of the ids that survive top_k, top_p and min_p (None: all), and these ids."""
    number = min(s.top_k or distance.size, distance.size)
    if number < distance.size or s.top_p < 1:
        place = ordered(distance, number)
        distance, ids = mx.take(distance, place), mx.take(ids, place)
    if s.top_p >= 1 and s.min_p == 0:
        return None, distance, ids
    weights = _weights(distance)
    kept = weights >= _share(mx.array(1 << contract.WEIGHT_BITS, mx.int64), s.min_p)
    if s.top_p < 1:
        sums = running_sum(weights, number << contract.WEIGHT_BITS)
        length = count(sums < _share(sums[-1], s.top_p), 0) + 1
        kept = kept & (mx.arange(number) < length)
    return kept | (distance == 0.0) & (ids == _first(distance, ids)), distance, ids


def _first(distance: mx.array, ids: mx.array) -> mx.array:
    """Return the first id, which always survives."""
    return keys_of(distance, ids).min() & INDEX


def _weights(distance: mx.array) -> mx.array:
    """Compute ⌊p·2⁴⁰⌋, p = FLOATS.exp(distance): int64, from two halves of 20 bits."""
    scaled = FLOATS.exp(distance) * float(HALF_WEIGHT)
    high = mx.floor(scaled)
    low = mx.floor((scaled - high) * float(HALF_WEIGHT))
    return high.astype(mx.int64) * HALF_WEIGHT + low.astype(mx.int64)


def _share(total: mx.array, fraction: float) -> mx.array:
    """Compute ⌈total·f/2²⁴⌉, f = rint(fraction·2²⁴), from two parts of the total that fit int64."""
    f = round(fraction * UNIT)
    high = total >> contract.SHARE_BITS
    low = total - (high << contract.SHARE_BITS)
    return high * f + ((low * f + (UNIT - 1)) >> contract.SHARE_BITS)


def _product(a: mx.array, multiplier: int) -> tuple[mx.array, mx.array]:
    """Return high and low word of a·multiplier."""
    whole = a.astype(mx.uint64) * mx.array(multiplier, mx.uint64)
    return (whole >> 32).astype(mx.uint32), whole.astype(mx.uint32)


def philox_word(ids: mx.array, counter: tuple[int, int, int], seed: int) -> mx.array:
    """Compute word 0 of Philox 4×32-10 for the counters (id, *counter): uint32."""
    c0 = ids.astype(mx.uint32)
    c1, c2, c3 = (mx.full(c0.shape, word & 0xFFFFFFFF, mx.uint32) for word in counter)
    key = [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF]
    for _ in range(words.ROUNDS):
        k0, k1 = (mx.array(word, mx.uint32) for word in key)
        high0, low0 = _product(c0, words.MULTIPLIERS[0])
        high1, low1 = _product(c2, words.MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        key = [(k + more) & 0xFFFFFFFF for k, more in zip(key, words.KEY_INCREMENTS, strict=True)]
    return c0


def uniform(w: mx.array) -> mx.array:
    """Compute (w + ½)/2³² of words."""
    odd = ((w & 255) << 1) + 1
    return (w >> 8).astype(mx.float32) * 2.0**-24 + odd.astype(mx.float32) * 2.0**-33


def gumbel(w: mx.array) -> mx.array:
    """Compute Gumbel noise of words; see `cortiq.numerics.sampling.gumbel`."""
    low = w < mx.array(1 << 31, mx.uint32)
    near = -FLOATS.log1p(-uniform(mx.where(low, w, mx.zeros_like(w))))
    far = -FLOATS.log(uniform(mx.where(low, mx.zeros_like(w), mx.bitwise_invert(w))))
    return -FLOATS.log(mx.where(low, near, far))


def noise(ids: mx.array, seed: int, choice: int, position: int) -> mx.array:
    """Compute the noise of each id."""
    return gumbel(philox_word(ids, (position, choice, contract.GUMBEL_STREAM), seed))
