"""The tail of a model: argmax, the sampling chain, and the most likely tokens.

A draw is a pure function of one row of logits, the options, the ids so far, the seed, the number of
the completion ("choice") and the position. So a drafted token can be checked by drawing it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

import numpy as np
import numpy.typing as npt

from cortiq.errors import RequestError
from cortiq.numerics.contract import F32, Flags, Floats, Ints, snap
from cortiq.numerics.masks import Mask, allowed_ids
from cortiq.numerics.philox import Words, key_of_seed, philox
from cortiq.numerics.scalar import exp, log, log1p
from cortiq.numerics.sums import canonical_sum

WEIGHT_BITS = 40
"""A token's weight is ⌊p·2⁴⁰⌋, p = exp(x − max) in [0, 1]."""
SHARE_BITS = 24
"""top_p and min_p are used as rint(value·2²⁴)/2²⁴."""
GUMBEL_STREAM = 0x47554D42
"""Last counter word of the noise: keeps these random words apart from any other use of Philox."""
GUMBEL_MAX_ERROR = 2.0**-19
"""Largest |error| of the Gumbel noise, an ulp of values from 16 on."""

Weights = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Sampling:
    """Options of the chain; the defaults draw from the unchanged distribution.

    Parameters
    ----------
    temperature : 0 (argmax), or 2⁻²⁰ to 2²⁰.
    top_k : keep this many; 0 keeps all.
    top_p : keep the shortest prefix with this share of what top_k kept; 0 < top_p ≤ 1, 1 is off.
    min_p : keep what has at least this share of the most likely token's probability; 0 is off.
    repetition_penalty : above 0; seen ids' positive logits are divided by it, others multiplied.
    presence_penalty : subtracted once from the logit of every id seen.
    frequency_penalty : subtracted once for each time an id was seen.
    logit_bias : added to the logits, by id.
    seed : 0 ≤ seed < 2⁶⁴.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    seed: int = 0

    def __post_init__(self) -> None:
        unit = 2.0**20
        _check(
            "temperature",
            self.temperature,
            "is 0 or between 2^-20 and 2^20",
            self.temperature == 0 or 1 / unit <= self.temperature <= unit,
        )
        _check("top_k", self.top_k, "is 0 (off) or a number of tokens", self.top_k >= 0)
        _check("top_p", self.top_p, "is above 0 and at most 1", 0 < self.top_p <= 1)
        _check("min_p", self.min_p, "is at least 0 and at most 1", 0 <= self.min_p <= 1)
        _check(
            "repetition_penalty",
            self.repetition_penalty,
            "is between 2^-20 and 2^20",
            1 / unit <= self.repetition_penalty <= unit,
        )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _check(name, value, "is between -2^20 and 2^20", abs(value) <= unit)
        for token, bias in self.logit_bias.items():
            _check(
                f"logit_bias[{token}]",
                bias,
                "is a finite number of at most 2^20 for an id",
                token >= 0 and isfinite(bias) and abs(bias) <= unit,
            )
        _check("seed", self.seed, "is at least 0 and below 2^64", 0 <= self.seed < 1 << 64)


def _check(name: str, value: float, rule: str, holds: bool) -> None:
    if not holds:
        raise RequestError(f"{name} = {value}", where="sampling", hint=f"{name} {rule}")


def argmax(x: Floats) -> Ints:
    """Return the int32 index of the last axis's largest value; the lowest index wins a tie."""
    return np.argmax(np.asarray(x, F32), axis=-1).astype(np.int32)


def adjusted(
    logits: Floats,
    sampling: Sampling,
    history: Sequence[int],
    faults: Flags | None = None,
    mask: Mask | None = None,
) -> Floats:
    """Return logits after bias and penalties; each of the two steps is a primitive.

    Bias: snap(RN(x + RN(bias))) for the ids it names. Penalties, for ids with a count c > 0 in
    `history`: x > 0 ? RN(x·RN(1/RN(repetition))) : RN(x·RN(repetition)); RN(x − RN(presence));
    RN(x − RN(RN(frequency)·c)); snap. An option that is off is not computed.

    Parameters
    ----------
    logits : float32 [V], canonical.
    history : the prompt's ids and those generated so far.
    faults : bool [1], see `snap`.
    mask : ids outside it stay as they are.

    Raises
    ------
    RequestError : an id of the bias or the history is not in the vocabulary.
    """
    x = np.array(logits, F32)
    touched = np.zeros(x.size, bool)
    touched[allowed_ids(mask, x.size)] = True
    ids = _checked_ids(list(sampling.logit_bias), x.size, "logit_bias")
    bias = np.array(list(sampling.logit_bias.values()), np.float64).astype(F32)
    ids, bias = ids[touched[ids]], bias[touched[ids]]
    x[ids] = snap(x[None, ids] + bias, faults)[0]
    seen, counts = np.unique(_checked_ids(history, x.size, "history"), return_counts=True)
    seen, counts = seen[touched[seen]], counts[touched[seen]]
    x[seen] = snap(_penalised(x[None, seen], sampling, counts), faults)[0]
    return x


def _checked_ids(ids: Sequence[int], vocabulary: int, name: str) -> npt.NDArray[np.int64]:
    array = np.asarray(ids, np.int64).reshape(-1)
    wrong = array[(array < 0) | (array >= vocabulary)]
    if wrong.size:
        what = f"{name} names token {wrong[0]} of a vocabulary of {vocabulary}"
        raise RequestError(what, where="sampling")
    return array


def _penalised(x: Floats, sampling: Sampling, counts: npt.NDArray[np.int64]) -> Floats:
    if sampling.repetition_penalty != 1:
        penalty = F32(sampling.repetition_penalty)
        x = np.where(x > 0, x * (F32(1) / penalty), x * penalty)
    if sampling.presence_penalty != 0:
        x = x - F32(sampling.presence_penalty)
    if sampling.frequency_penalty != 0:
        x = x - F32(sampling.frequency_penalty) * counts.astype(F32)
    return x


def distances(logits: Floats, temperature: float, faults: Flags | None = None) -> Floats:
    """Return snap(RN(x − max x)), at most 0: x = snap(RN(logit·RN(1/T))), 1/T from the host."""
    x = snap(logits[None] * (F32(1) / F32(temperature)), faults)
    return snap(x - x.max(), faults)[0]


def integer_weights(distance: Floats) -> Weights:
    """Return ⌊p·2⁴⁰⌋ for p = exp(distance); the most likely token has 2⁴⁰.

    Portably, in 32-bit integers: h = ⌊p·2²⁰⌋, l = ⌊(p·2²⁰ − h)·2²⁰⌋, weight h·2²⁰ + l; every
    product and difference is exact.
    """
    scaled = exp(distance).astype(np.float64) * 2.0**WEIGHT_BITS
    return np.floor(scaled).astype(np.uint64)


def share(total: int, fraction: float) -> int:
    """Return ⌈total·f/2²⁴⌉ for f = rint(fraction·2²⁴), rint to even: the weight of a share."""
    return -(-total * round(fraction * 2**SHARE_BITS) >> SHARE_BITS)


def kept_ids(distance: Floats, sampling: Sampling) -> npt.NDArray[np.int64]:
    """Return the ids that survive top_k, top_p, min_p, by (distance descending, id ascending).

    All three keep a prefix of that order. top_k: its length. top_p: the shortest prefix whose
    weights add up to share(weights of what top_k kept, top_p). min_p: weights of at least
    share(2⁴⁰, min_p). Weights are `integer_weights`, their sums integers. The first id always
    survives.
    """
    order = np.argsort(-distance, kind="stable")
    order = order[: sampling.top_k or None]
    weights = integer_weights(distance[order])
    length = order.size
    if sampling.top_p < 1:
        sums = np.cumsum(weights)
        length = int(np.searchsorted(sums, np.uint64(share(int(sums[-1]), sampling.top_p)))) + 1
    enough = int((weights >= np.uint64(share(1 << WEIGHT_BITS, sampling.min_p))).sum())
    return order[: max(1, min(length, enough))]


def uniform(words: Words) -> Floats:
    """Return (w + ½)/2³²: RN(f32(w >> 8)·2⁻²⁴ + f32(2·(w & 255) + 1)·2⁻³³), both terms exact."""
    high, low = words >> np.uint32(8), words & np.uint32(255)
    odd = (low << np.uint32(1)) + np.uint32(1)
    return high.astype(F32) * F32(2.0**-24) + odd.astype(F32) * F32(2.0**-33)


def gumbel(words: Words) -> Floats:
    """Return Gumbel noise −ln(E), E = −ln(1 − v) for v = (w + ½)/2³².

    E = −log1p(−uniform(w)) for w < 2³¹, else −log(uniform(~w)); RN(−log(E)). Both tails keep their
    relative precision. Error at most `GUMBEL_MAX_ERROR`; the range is −3.2 to 22.9.
    """
    low = words < np.uint32(1 << 31)
    near = -log1p(-uniform(np.where(low, words, np.uint32(0))))
    far = -log(uniform(np.where(low, np.uint32(0), ~words)))
    return -log(np.where(low, near, far))


def noise(ids: npt.ArrayLike, seed: int, choice: int, position: int) -> Floats:
    """Return the noise of each id: gumbel(word 0 of Philox).

    Counter (id, position, choice, `GUMBEL_STREAM`), key (low, high word of the seed).
    """
    return gumbel(philox((ids, position, choice, GUMBEL_STREAM), key_of_seed(seed))[0])


def draw(
    logits: Floats,
    sampling: Sampling,
    history: Sequence[int] = (),
    position: int = 0,
    choice: int = 0,
    faults: Flags | None = None,
    mask: Mask | None = None,
) -> int:
    """Draw the token of this row: among `kept_ids`, the one with the largest distance + noise.

    Gumbel-max: x = `adjusted` logits, d = `distances`, then the argmax of RN(d + noise) over
    the kept ids; the lowest id wins a tie. Temperature 0 is the argmax of x. With a mask all of it
    is done with the logits of its ids alone; what the others are decides nothing.

    Parameters
    ----------
    logits : float32 [V], canonical.
    history : the prompt's ids and those generated so far, for the penalties.
    position : position the drawn token will have in its sequence, below 2³².
    choice : number of the completion when one prompt has several, below 2³².
    faults : bool [1], see `snap`.
    mask : ids that may be drawn; None for all.
    """
    ids = allowed_ids(mask, logits.size)
    x = adjusted(logits, sampling, history, faults, mask)[ids]
    if sampling.temperature == 0:
        return int(ids[argmax(x)])
    distance = distances(x, sampling.temperature, faults)
    kept = np.sort(kept_ids(distance, sampling))
    tokens = ids[kept]
    return int(tokens[argmax(distance[kept] + noise(tokens, sampling.seed, choice, position))])


def top(logits: Floats, n: int) -> tuple[Ints, Floats]:
    """Return the n largest logits, by (value descending, id ascending).

    Parameters
    ----------
    logits : float32 [..., V], canonical.

    Returns
    -------
    ids int32 [..., n], values float32 [..., n].
    """
    logits = np.asarray(logits, F32)
    if not 1 <= n <= logits.shape[-1]:
        what = f"the top {n} of a vocabulary of {logits.shape[-1]}"
        raise RequestError(what, where="top", hint="ask for 1 to the whole vocabulary")
    ids = np.argsort(-logits, axis=-1, kind="stable")[..., :n].astype(np.int32)
    return ids, np.take_along_axis(logits, ids, axis=-1)


def log_sum_exp(logits: Floats) -> Floats:
    """Return ln Σ e^x over the last axis: m = max x; snap(RN(m + log(canonical_sum(exp(RN(x −
    m)))))).

    A token's log-probability is its logit minus this.
    """
    logits = np.asarray(logits, F32)
    highest = logits.max(axis=-1, keepdims=True)
    total = highest[..., 0] + log(canonical_sum(exp(logits - highest)))
    return snap(total)


def drawn_logit(
    logits: Floats, token: int, scale: float | np.float32 = 1.0, faults: Flags | None = None
) -> tuple[np.float32, np.float32]:
    """Return a token's logit and the `log_sum_exp` of the row, of x = snap(RN(logit·RN(scale))).

    The token's log-probability is their difference.
    """
    x = np.asarray(logits, F32)
    x = x if scale == 1 else snap(x[None] * F32(scale), faults)[0]
    return x[token], F32(log_sum_exp(x).item())
