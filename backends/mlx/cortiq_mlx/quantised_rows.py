"""Quantised rows, flags of faults, `snap`, and constants that need no broadcast."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from cortiq.numerics import contract, quantise
from cortiq_mlx.library import mx

MAGNITUDE = int(contract.MAGNITUDE_BITS)
SMALLEST = int(contract.SMALLEST_BITS)
LARGEST = int(contract.LARGEST_BITS)
LARGEST_Q = quantise.LARGEST_CODE
SMALL = 1 << 12
"""Values of an array beside which constants are held in its own shape."""


class MlxRows(NamedTuple):
    """Quantised rows x ≈ q·2^e: q int16 [..., K], e int32 [...]."""

    q: mx.array
    e: mx.array

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of q."""
        return tuple(self.q.shape)


class Faults:
    """The largest magnitude, as bits, that a value of each row had where it was snapped.

    Attributes
    ----------
    rows : how many. peaks : int32 [rows, 1], one of each snap.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.peaks: list[mx.array] = []

    def see(self, bits: mx.array) -> None:
        """Note bits of magnitudes [rows, ...]."""
        if bits.ndim > 2:
            bits = bits.reshape(self.rows, -1)
        self.peaks.append(bits.max(axis=-1, keepdims=True) if bits.ndim > 1 else bits[:, None])

    def seen(self) -> mx.array:
        """Return the largest of each row, int32 [rows]; something was snapped."""
        return mx.concatenate(self.peaks, axis=1).max(axis=1)


@lru_cache(maxsize=1 << 11)
def _held(value: float, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    constant = mx.full(shape, value, dtype)
    mx.eval(constant)
    return constant


def fixed(value: float, x: mx.array) -> Any:
    """Return a constant for x: of x's shape if that is small, so that no node has to broadcast it.

    A decode step is thousands of small operations, and what they cost is mostly their nodes.
    """
    return _held(value, tuple(x.shape), x.dtype) if x.size <= SMALL else value


def magnitude_bits(x: mx.array) -> mx.array:
    """Return the bits of |x| as int32."""
    return mx.abs(x).view(mx.int32)


def snap(y: mx.array, faults: Faults) -> mx.array:
    """Make y [rows, ...] canonical; `faults` sees the magnitudes of each row."""
    bits = magnitude_bits(y)
    faults.see(bits)
    # One unsigned comparison: below 2⁻⁴⁰ the difference wraps to a large word.
    above = (bits - fixed(SMALLEST, bits)).view(mx.uint32)
    return mx.where(above < fixed(LARGEST - SMALLEST, above), y, fixed(0.0, y))


class CachedPlanes(NamedTuple):
    """Rows of a cache: int8 planes [n, heads, 2, dim], int8 exponents [n, heads]."""

    q: mx.array
    e: mx.array
