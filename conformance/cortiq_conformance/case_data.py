"""Data of a case: a pure function of its id, through Philox; nothing random without replay."""

from __future__ import annotations

import hashlib
from math import prod

import numpy as np
import numpy.typing as npt

from cortiq.numerics.contract import F32, LARGEST_BITS, SMALLEST_BITS, Floats, Ints, snap
from cortiq.numerics.philox import philox

STREAM_TAG = 0x434F4E46
"""Last counter word: keeps these words apart from every other use of Philox."""


class CaseData:
    """Arrays in the order they are requested; an id gives the same bits on every machine."""

    def __init__(self, name: str) -> None:
        digest = hashlib.sha256(name.encode()).digest()
        self._key = (int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little"))
        self._stream = 0

    def words(self, count: int) -> npt.NDArray[np.uint32]:
        """Return random 32-bit words."""
        index = np.arange(-(-count // 4), dtype=np.uint32)
        drawn = philox((index, self._stream, 0, STREAM_TAG), self._key)
        self._stream += 1
        return np.stack(drawn, axis=-1).reshape(-1)[:count]

    def integers(self, low: int, high: int, *shape: int) -> Ints:
        """Return integers low ≤ i < high, int32."""
        spread = self.words(prod(shape)) % np.uint32(high - low)
        return (spread.astype(np.int64) + low).astype(np.int32).reshape(shape)

    def floats(self, *shape: int, amplitude: float = 1.0) -> Floats:
        """Return bell-shaped canonical values with full mantissas: sums of 4 uniform integers."""
        parts = self.integers(-(1 << 21), 1 << 21, 4, prod(shape)).sum(axis=0, dtype=np.int32)
        values = parts.astype(F32) * F32(2.0**-21) * F32(amplitude)
        return snap(values.reshape(shape))

    def spread(self, *shape: int, low: int = -40, high: int = 50) -> Floats:
        """Return random signs and mantissas with exponents evenly in low ≤ e < high."""
        words = self.words(prod(shape))
        mantissa, sign = words & np.uint32(0x7FFFFF), words & np.uint32(1 << 31)
        exponent = (self.integers(low, high, prod(shape)) + 127).astype(np.uint32)
        return (sign | (exponent << np.uint32(23)) | mantissa).view(F32).reshape(shape)

    def permutation(self, count: int) -> npt.NDArray[np.int64]:
        """Return a random order of 0…count−1."""
        return np.argsort(self.words(count), kind="stable")


def edges() -> Floats:
    """Return values at which formulas change: ±0, 2⁻⁴⁰ and 2⁵⁰ with neighbours, powers, halves."""
    small = SMALLEST_BITS + np.arange(-2, 3, dtype=np.int32)
    large = LARGEST_BITS - np.arange(1, 4, dtype=np.int32)
    powers = (np.arange(-39, 50, 4, dtype=np.int32) + 127) << np.int32(23)
    around = np.concatenate([powers - 1, powers, powers + 1])
    halves = np.arange(1, 12, dtype=F32) / F32(2)
    positive = np.concatenate([np.concatenate([small, large, around]).view(F32), halves])
    return np.concatenate([np.array([0.0, -0.0], F32), positive, -positive])


def every_bfloat16() -> Floats:
    """Return every canonical value of 8 mantissa bits, both signs: 23,042 of them."""
    bits = np.arange(int(SMALLEST_BITS) >> 16, int(LARGEST_BITS) >> 16, dtype=np.int32)
    values = (bits << np.int32(16)).view(F32)
    return np.concatenate([np.zeros(1, F32), values, -values])


def ladder(width: int) -> Floats:
    """Return the powers of two from 2⁻⁴⁰ to 2⁴⁹ and back, signs alternating."""
    exponents = np.abs((np.arange(width) * 7) % 178 - 89) - 40
    signs = np.where(np.arange(width) % 2, -1, 1).astype(F32)
    return ((exponents + 127).astype(np.int32) << np.int32(23)).view(F32) * signs
