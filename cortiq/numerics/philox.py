"""Philox 4×32-10: random words as a pure function of a counter and a key.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A
backend needs only the high and low half of a 32 × 32 bit product.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = npt.NDArray[np.uint32]
Counter: TypeAlias = tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
"""Increments of the two key words after each round: the golden ratio and √3 − 1, times 2³²."""

LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


def philox(counter: Counter, key: tuple[int, int]) -> tuple[Words, Words, Words, Words]:
    """Return four random 32-bit words for each counter.

    Ten rounds of (c0, c1, c2, c3) → (hi(M1·c2) ^ c1 ^ k0, lo(M1·c2), hi(M0·c0) ^ c3 ^ k1,
    lo(M0·c0)), the key words growing by `KEY_INCREMENTS` modulo 2³² between rounds.

    Parameters
    ----------
    counter : four words below 2³², arrays or integers that broadcast together.
    key : two words below 2³².
    """
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(word, np.uint64) for word in counter))
    m0, m1 = (np.uint64(multiplier) for multiplier in MULTIPLIERS)
    k0, k1 = key
    for _ in range(ROUNDS):
        first, second = m0 * c0, m1 * c2
        c0, c1 = (second >> HALF) ^ c1 ^ np.uint64(k0), second & LOW
        c2, c3 = (first >> HALF) ^ c3 ^ np.uint64(k1), first & LOW
        k0 = (k0 + KEY_INCREMENTS[0]) & 0xFFFFFFFF
        k1 = (k1 + KEY_INCREMENTS[1]) & 0xFFFFFFFF
    return tuple(word.astype(np.uint32) for word in (c0, c1, c2, c3))  # type: ignore[return-value]


def key_of_seed(seed: int) -> tuple[int, int]:
    """Return the Philox key of a 64-bit seed: its low word, then its high word."""
    return seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
