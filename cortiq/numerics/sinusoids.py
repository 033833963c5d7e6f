"""Positions as sines and cosines, by the polynomials that rotary tables are made with."""

from __future__ import annotations

import numpy as np

from cortiq.numerics.contract import Floats
from cortiq.numerics.doubles import exp64, log64
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
