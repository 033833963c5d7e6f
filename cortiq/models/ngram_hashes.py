"""Hashes of n-grams that follow from a seed: factors of tokens, and rows that heads have."""

from __future__ import annotations

from math import isqrt

BITS, GAMMA, STRIDE = 2**64 - 1, 0x9E3779B97F4A7C15, 10007
"""Integers of 64 bits, the step of splitmix64, and that of a seed from one table to the next."""


def multipliers(vocabulary: int, size: int, seed: int, place: int) -> tuple[int, ...]:
    """Return the odd factors of an n-gram's tokens, by splitmix64 of the seed and the place.

    Parameters
    ----------
    size : tokens of the longest n-gram. place : of the table among those of the model.
    """
    half = max(1, (2**63 - 1) // vocabulary // 2)
    found = []
    for n in range(size):
        x = (seed + STRIDE * place + GAMMA * (n + 2)) & BITS
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & BITS
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & BITS
        found.append(2 * ((x ^ (x >> 31)) % half) + 1)
    return tuple(found)


def primes(after: int, count: int) -> list[int]:
    """Return the first primes after a number."""
    found: list[int] = []
    while len(found) < count:
        after += 1
        if after > 1 and all(after % d for d in range(2, isqrt(after) + 1)):
            found.append(after)
    return found
