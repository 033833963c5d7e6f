"""Positions as sines and cosines, by the polynomials that rotary tables are made with."""

from __future__ import annotations

import numpy as np

from cortiq.numerics.contract import Floats
from cortiq.numerics.doubles import Doubles, exp64, log64
from cortiq.numerics.rope import RopeTable

TIMESCALE = 10000.0


def sinusoids(count: int, width: int) -> Floats:
    """Return a row for each of `count` positions: sines, then cosines, float32 [count, width].

    Number i of the width/2 angles of position p is p·10000^(−i/(width/2 − 1)): that of a rotary
    table of `width` dimensions whose base is exp64(log64(10000)·(width/(width − 2))).
    """
    base = exp64(log64(np.array([TIMESCALE])) * (width / (width - 2)))
    cos, sin = RopeTable(float(base[0]), width).compute(np.arange(count))
    return np.concatenate([sin, cos], axis=1)


def projected_sinusoids(matrix: Doubles, count: int) -> Doubles:
    """Return the product of a matrix [outputs, width] and the row of each of `count` positions.

    float64 [count, outputs]: Σ weight·value in ascending order of columns, from +0.
    """
    rows = sinusoids(count, matrix.shape[1]).astype(np.float64)
    total = np.zeros((count, len(matrix)))
    for column, values in zip(matrix.T, rows.T, strict=True):
        total += column[None, :] * values[:, None]
    return total
