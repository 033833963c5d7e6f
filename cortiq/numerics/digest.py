"""Digest of a float32 array: four 32-bit words that depend on every bit and every position.

Order-free, so that any device can compute it in place and slices can be added up; 32-bit unsigned
integers only, since WGSL has no others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from cortiq.numerics.contract import F32, Floats

Digest: TypeAlias = tuple[int, int, int, int]
Words: TypeAlias = npt.NDArray[np.uint32]

LANE_KEYS = (0x9E3779B9, 0x3C6EF372, 0xDAA66D2B, 0x78DDE6E4)
"""Multiples 1 to 4 of the golden ratio times 2³², modulo 2³²: they tell the four words apart."""
INDEX_KEY = 0x85EBCA6B
MIX_MULTIPLIERS = (0x7FEB352D, 0x846CA68B)
"""A bijection of 32-bit words with little bias (C. Wellons, "Prospecting for hash functions")."""
CHUNK = 1 << 16
EMPTY: Digest = (0, 0, 0, 0)


def mix(word: Words) -> Words:
    """Mix w ^= w >> 16; w *= 0x7FEB352D; w ^= w >> 15; w *= 0x846CA68B; w ^= w >> 16 in 32 bits."""
    word = (word ^ (word >> np.uint32(16))) * np.uint32(MIX_MULTIPLIERS[0])
    word = (word ^ (word >> np.uint32(15))) * np.uint32(MIX_MULTIPLIERS[1])
    return word ^ (word >> np.uint32(16))


def digest(x: Floats, start: int = 0) -> Digest:
    """Return the contract's digest of x.

    For each element, with i its index and b the bits of its float32: w = b ^ mix(i + INDEX_KEY);
    word l of the digest is Σ mix(w + LANE_KEYS[l]) modulo 2³², in any order.

    Parameters
    ----------
    x : float32, any shape; elements are counted in C order.
    start : index of the first element, for a slice of a longer array.
    """
    bits = np.ascontiguousarray(x, F32).reshape(-1).view(np.uint32)
    if start < 0 or start + bits.size > 1 << 32:
        raise ValueError(f"elements {start} to {start + bits.size} do not fit 32-bit indices")
    parts = (bits[at : at + CHUNK] for at in range(0, bits.size, CHUNK))
    return combine(_digest_of_part(part, start + at * CHUNK) for at, part in enumerate(parts))


def _digest_of_part(bits: Words, start: int) -> Digest:
    index = np.arange(start, start + bits.size, dtype=np.int64).astype(np.uint32)
    word = bits ^ mix(index + np.uint32(INDEX_KEY))
    sums = [int(mix(word + np.uint32(key)).sum(dtype=np.uint64)) & 0xFFFFFFFF for key in LANE_KEYS]
    return sums[0], sums[1], sums[2], sums[3]


def combine(digests: Iterable[Digest]) -> Digest:
    """Combine the digests of an array's slices into its digest: word-wise sums modulo 2³²."""
    total = EMPTY
    for words in digests:
        total = tuple((a + b) & 0xFFFFFFFF for a, b in zip(total, words, strict=True))  # type: ignore[assignment]
    return total


def hexadecimal(words: Digest) -> str:
    """Return the digest as 32 hexadecimal digits."""
    return "".join(f"{word:08x}" for word in words)
