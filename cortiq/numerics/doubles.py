"""Logarithm and exponential in float64, in a written order: no library's own functions."""

from __future__ import annotations

from math import factorial

import numpy as np
import numpy.typing as npt

from cortiq.numerics.rope import taylor

Doubles = npt.NDArray[np.float64]
LN2, LN10 = 0.6931471805599453, 2.302585092994046
SQRT_HALF = 0.7071067811865476
LOG_TERMS = tuple(2.0 / (2 * k + 1) for k in range(11, -1, -1))
"""Of 2·artanh(s)/s in s², highest power first; what is left out is below 2⁻⁶⁴."""
EXP_TERMS = tuple(1.0 / factorial(k) for k in range(14, -1, -1))


def log64(x: Doubles) -> Doubles:
    """Return the natural logarithm of positive numbers.

    x = m·2^e with m in [√½, √2); s = (m − 1)/(m + 1); the series of 2·artanh(s) times s, plus
    e·ln 2.
    """
    m, e = np.frexp(x)
    small = m < SQRT_HALF
    m, e = np.where(small, m + m, m), np.where(small, e - 1, e)
    s = (m - 1.0) / (m + 1.0)
    return taylor(s * s, LOG_TERMS) * s + e * LN2


def exp64(x: Doubles) -> Doubles:
    """Return e^x: with q = rint(x/ln 2) the Taylor polynomial of x − q·ln 2, times 2^q."""
    q = np.rint(x / LN2)
    return np.ldexp(taylor(x - q * LN2, EXP_TERMS), q.astype(np.int64))
