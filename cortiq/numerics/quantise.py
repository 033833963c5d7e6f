"""Quantised rows: 16-bit integers with a power-of-two scale, as two int8 planes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cortiq.numerics.contract import (
    F32,
    SMALLEST_BITS,
    Floats,
    Ints,
    exp2_int,
    magnitude_bits,
    snap,
)

ZERO_ROW_EXPONENT = -54
"""e of a row of zeros: that of a row whose largest magnitude is 2⁻⁴⁰."""

LARGEST_ROW_EXPONENT = 36
"""e of a row whose largest magnitude is just below 2⁵⁰."""
LARGEST_CODE = 32512
"""The largest |q| of a row."""


class Quantised(NamedTuple):
    """Rows x ≈ q·2^e: `q` int32 [..., K] with |q| ≤ 32512, `e` int32 [...]."""

    q: Ints
    e: Ints


def quantise_rows(x: Floats) -> Quantised:
    """Quantise each row (last axis) of canonical x to 16 bits.

    m = max of the magnitude bits. m < bits(2⁻⁴⁰): q = 0 and e = −54, the exponent of the smallest
    row, so that a zero value row never sets the scale of an attention tile. Otherwise
    e = ((m + 0x20000) >> 23) − 141, so that 16256 ≤ max|q| ≤ 32512, and q = rint(x·2^−e), half to
    even; the product is exact. Idempotent: quantising q·2^e gives (q, e) again.

    Parameters
    ----------
    x : float32 [..., K], canonical.
    """
    x = np.asarray(x, F32)
    m = magnitude_bits(x).max(axis=-1, initial=0)
    empty = m < SMALLEST_BITS
    e = np.where(empty, ZERO_ROW_EXPONENT, ((m + np.int32(0x20000)) >> 23) - 141).astype(np.int32)
    scaled = np.rint(x * exp2_int(-e)[..., None])
    return Quantised(np.where(empty[..., None], F32(0), scaled).astype(np.int32), e)


def dequantise(row: Quantised) -> Floats:
    """Return q·2^e, exact in float32."""
    return row.q.astype(F32) * exp2_int(row.e)[..., None]


def recalled(row: Quantised) -> Floats:
    """Return snap(q·2^e): a stored row as a value of a graph."""
    return snap(dequantise(row))


def planes(q: Ints) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int8]]:
    """Split q into int8 planes (hi, lo) with q = 256·hi + lo: hi = (q + 128) >> 8."""
    hi = (q + np.int32(128)) >> np.int32(8)
    return hi.astype(np.int8), (q - (hi << np.int32(8))).astype(np.int8)


def from_planes(hi: npt.NDArray[np.int8], lo: npt.NDArray[np.int8]) -> Ints:
    """Return the integers of `planes`."""
    return (hi.astype(np.int32) << np.int32(8)) + lo.astype(np.int32)


def no_values(rows: int, heads: int) -> Quantised:
    """Return value rows [rows, heads, 0] for a slot of keys only: the exponent of a zero row."""
    exponents = np.full((rows, heads), ZERO_ROW_EXPONENT, np.int32)
    return Quantised(np.zeros((rows, heads, 0), np.int32), exponents)
