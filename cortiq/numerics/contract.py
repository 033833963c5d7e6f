"""Version and constants of the contract, the canonical domain, and `snap`, which ends primitives.

A change of any constant here, or of any bit a function of this package returns, is a change of
`CONTRACT_VERSION`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

CONTRACT_VERSION = 1

F32 = np.float32
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

MAGNITUDE_BITS = np.int32(0x7FFFFFFF)
SMALLEST_EXPONENT = -40
LARGEST_EXPONENT = 50
SMALLEST_BITS = np.int32((127 + SMALLEST_EXPONENT) << 23)
"""Bits of 2⁻⁴⁰: the smallest magnitude a canonical value has, zero aside."""
LARGEST_BITS = np.int32((127 + LARGEST_EXPONENT) << 23)
"""Bits of 2⁵⁰: magnitudes from here on (infinities and NaNs included) are faults."""

LANES = 256
"""Lanes of `canonical_sum`."""
RUN_BLOCKS = 8
"""Consecutive blocks of a matmul row that are summed to one run."""
TILE = 64
"""Keys of an attention tile, at absolute positions [64i, 64i+64)."""
RUN_TILES = 16
"""Consecutive tiles of an attention run."""


class OutOfDomainError(ArithmeticError):
    """A value left the canonical domain, and the caller passed no fault flags to record it."""


def magnitude_bits(x: Floats) -> Ints:
    """Return the bits of |x| as int32: ordered like magnitudes, NaN above infinity above all."""
    return np.ascontiguousarray(x, F32).view(np.int32) & MAGNITUDE_BITS


def snap(y: Floats, faults: Flags | None = None) -> Floats:
    """End a primitive: make every value canonical, +0 or 2⁻⁴⁰ ≤ |y| < 2⁵⁰.

    Magnitudes below 2⁻⁴⁰ and −0 become +0. A value of magnitude 2⁵⁰ or more, an infinity or a NaN
    is a fault: it is recorded in `faults` (its leading axes' flag is set) and replaced by +0, so
    that no infinity or NaN ever exists inside a kernel.

    Parameters
    ----------
    y : float32 [rows, ...].
    faults : bool [rows], or-ed in place; without it a fault raises `OutOfDomainError`.
    """
    bits = magnitude_bits(y)
    kept = bits >= SMALLEST_BITS
    if bits.max(initial=0) >= LARGEST_BITS:
        if faults is None:
            raise OutOfDomainError("a value is not finite, or its magnitude is 2^50 or more")
        fault = bits >= LARGEST_BITS
        faults |= fault.reshape(len(faults), -1).any(axis=1)
        kept &= ~fault
    return np.where(kept, y, F32(0))


def exp2_int(n: npt.ArrayLike) -> Floats:
    """Return 2ⁿ as float32, built from bits; n is an integer with −126 ≤ n ≤ 127."""
    return ((np.asarray(n, np.int32) + np.int32(127)) << np.int32(23)).view(F32)


def round_to_f32(total: npt.NDArray[np.int64]) -> Floats:
    """Return RN(I): an integer as float32 with one rounding (half to even)."""
    return total.astype(np.int64, copy=False).astype(F32)
