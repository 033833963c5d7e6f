"""Products and sums in float64 that have the same bits on every machine, with any library."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

_HIGH, _LOW = 21, 42
"""Bits of the two integers that a factor of a product is split into, below its row's largest."""
_MAX_RANK = 1 << 10
"""Terms of a product whose sum float64 holds exactly: 2 · 21 + 10 bits."""


def exact_product(b: Doubles, a: Doubles) -> Doubles:
    """Return b·a [n, columns] for [n, r] and [r, columns], the same bits on every machine.

    Rows of b and columns of a are divided by a power of two and split into two integers, of 21 bits
    and what remains to 42. Sums of products of such integers are exact, whatever order a library
    adds in; what is left out is below r·2⁻⁴⁰ of the largest possible product.
    """
    total = np.zeros((len(b), a.shape[1]))
    for first in range(0, a.shape[0], _MAX_RANK):
        left, right = b[:, first : first + _MAX_RANK], a[first : first + _MAX_RANK]
        (b_high, b_low, b_scale), (a_high, a_low, a_scale) = _split(left, 1), _split(right, 0)
        high = b_high @ a_high
        low = (b_high @ a_low + b_low @ a_high) * 2.0**-_HIGH
        total += (high + low) * 2.0 ** (-2 * _HIGH) * b_scale * a_scale
    return total


def _split(values: Doubles, axis: int) -> tuple[Doubles, Doubles, Doubles]:
    """Return two matrices of integers and the powers of two that scale the vectors of an axis."""
    largest = np.abs(values).max(axis=axis, keepdims=True, initial=0.0)
    scale = np.ldexp(1.0, np.frexp(largest)[1])
    part = values / scale
    high = np.rint(part * 2.0**_HIGH)
    low = np.rint((part * 2.0**_HIGH - high) * 2.0 ** (_LOW - _HIGH))
    return high, low, scale


def row_sums(values: Doubles) -> Doubles:
    """Return the sum of each row [n, 1], added in a fixed order: halves of the columns."""
    while values.shape[1] > 1:
        half = -(-values.shape[1] // 2)
        rest = values.shape[1] - half
        values = np.concatenate((values[:, :rest] + values[:, half:], values[:, rest:half]), axis=1)
    return values
