"""Samples of sound: another rate by a filter whose sums have a written order."""

from __future__ import annotations

from functools import lru_cache
from math import ceil, gcd

import numpy as np
import numpy.typing as npt

from cortiq.numerics.pixels import Doubles, sine_of_half_turns

CROSSINGS = 16
"""Zeros of the sinc function on either side of a sample of the filter."""
ROLL_OFF = 0.95
"""Share of the band that the filter lets through."""
PHASES = 256
"""Phases whose weights are computed at a time; no bit depends on it."""
CHUNK = 1 << 16
"""Samples that are made at a time."""


@lru_cache(maxsize=2)  # a table has 100 MB where the rates have no common factor
def resample_weights(up: int, down: int) -> tuple[int, Doubles]:
    """Return how far back a sample reads, and the weights of the samples that it reads.

    With c = ROLL_OFF·min(1, up/down), reach = CROSSINGS/c and R = ⌈reach⌉, a sample at place
    i + phase/up reads the places i − R … i + R + 1. At distance d it weighs
    sinc(c·d)·cos²(π·d/(2·reach)) within the reach, else 0, divided by the sum of all from +0 in
    ascending order. All of it in float64, in the order written.

    Returns
    -------
    R, and float64 [up, 2·R + 2], a row for each phase.
    """
    cut = ROLL_OFF * min(1.0, up / down)
    reach = CROSSINGS / cut
    back = ceil(reach)
    weights = np.empty((up, 2 * back + 2))
    for start in range(0, up, PHASES):
        phases = np.arange(start, min(start + PHASES, up))
        far = np.arange(-back, back + 2) - (phases / up)[:, None]
        weights[phases] = _weights(far, cut, reach)
    return back, weights


def _weights(far: Doubles, cut: float, reach: float) -> Doubles:
    """Return the weights of places at these distances, float64 [phases, places]."""
    near = far * cut
    safe = np.where(near == 0.0, 1.0, near)
    sinc = np.where(near == 0.0, 1.0, sine_of_half_turns(safe) / (safe * np.pi))
    window = sine_of_half_turns(0.5 - far / (2.0 * reach))
    weights = np.where(np.abs(far) < reach, sinc * (window * window), 0.0)
    total = np.zeros(len(far))
    for column in weights.T:
        total = total + column
    return weights / total[:, None]


def resample(samples: npt.NDArray[np.floating], rate: int, wanted: int) -> Doubles:
    """Return samples at another rate: ⌈n·wanted/rate⌉ of them.

    With up/down = wanted/rate in lowest terms, sample n is at place n·down/up; it is the sum from
    +0, in ascending order of places, of the products of samples and weights
    (`resample_weights`). There are zeros before the first sample and after the last.
    """
    x = np.asarray(samples, np.float64)
    if rate == wanted:
        return x
    up, down = wanted // gcd(rate, wanted), rate // gcd(rate, wanted)
    back, weights = resample_weights(up, down)
    count = -(-len(x) * up // down)
    padded = np.concatenate([np.zeros(back), x, np.zeros(back + 2)])
    out = np.zeros(count)
    for start in range(0, count, CHUNK):
        place, phase = np.divmod(np.arange(start, min(start + CHUNK, count)) * down, up)
        part = out[start : start + CHUNK]
        for tap in range(weights.shape[1]):
            part += padded[place + tap] * weights[phase, tap]
    return out
