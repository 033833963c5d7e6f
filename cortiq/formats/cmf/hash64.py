"""The 64-bit hash that CMF files hold of their parts.

Words of 8 bytes, little-endian, the last padded with zeros, are mixed one by one; their exclusive
or, with that of i·C over their numbers i and with the length, is mixed once more. The hash finds
flipped bits. It does not see words that change places, so nothing may take it for an identity.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

STEP = 0x9E3779B97F4A7C15
FACTORS = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)
CHUNK = 1 << 20
"""Bytes that are mixed at a time."""

Words = npt.NDArray[np.uint64]


def _mixed(words: Words) -> Words:
    words = words ^ words >> np.uint64(33)
    for factor in FACTORS:
        words = words * np.uint64(factor)
        words ^= words >> np.uint64(33)
    return words


def _folded_numbers(count: int) -> int:
    """Return the exclusive or of i·C mod 2⁶⁴ over i < count."""
    found = 0
    for start in range(0, count, CHUNK):
        numbers = np.arange(start, min(start + CHUNK, count), dtype=np.uint64)
        found ^= int(np.bitwise_xor.reduce(numbers * np.uint64(STEP)))
    return found


def hash64(data: bytes | memoryview | npt.NDArray[np.uint8]) -> int:
    """Return the hash of bytes."""
    raw = np.frombuffer(data, np.uint8)
    whole, found = len(raw) // 8 * 8, 0
    for start in range(0, whole, CHUNK):
        words = np.frombuffer(raw[start : min(start + CHUNK, whole)].tobytes(), "<u8")
        found ^= int(np.bitwise_xor.reduce(_mixed(words)))
    if whole < len(raw):
        last = raw[whole:].tobytes().ljust(8, b"\0")
        found ^= int(_mixed(np.frombuffer(last, "<u8"))[0])
    found ^= _folded_numbers(-(-len(raw) // 8)) ^ len(raw)
    return int(_mixed(np.array([found], np.uint64))[0])
