"""Hyper-connections: the doubly stochastic matrix that mixes residual streams."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from cortiq.domains import Integer
from cortiq.numerics.contract import F32, Flags, Floats, snap
from cortiq.numerics.route import softmax

MOST_STREAMS = 64
"""Streams at most: their sums are added one by one."""
Streams = Annotated[int, Integer(2, MOST_STREAMS)]
"""Residual streams of a model."""


def sinkhorn(x: Floats, rounds: int, eps: float, faults: Flags | None = None) -> Floats:
    """Make matrices doubly stochastic by rounds of the Sinkhorn-Knopp iteration; one primitive.

    c = snap(RN(softmax(x) + RN(eps))) over each row; columns; and in every round after the first
    rows, then columns. To normalise rows is c[i, j] = snap(RN(c[i, j]/RN(s + RN(eps)))), s = +0;
    s = RN(s + c[i, j]) for j in ascending order; columns likewise.

    Parameters
    ----------
    x : float32 [rows, ..., n, n], canonical. rounds : at least 1. eps : at least 2⁻⁴⁰.
    faults : bool [rows], see `snap`.

    Source: Xie et al., "mHC: manifold-constrained hyper-connections", 2025.
    """
    floor = F32(eps)
    c = _normalised(snap(softmax(x, faults=faults) + floor, faults), floor, -2)
    for _ in range(rounds - 1):
        c = _normalised(_normalised(c, floor, -1), floor, -2)
    return c


def _normalised(c: Floats, floor: np.float32, axis: int) -> Floats:
    total = np.zeros_like(np.take(c, [0], axis=axis))
    for at in range(c.shape[axis]):
        total = total + np.take(c, [at], axis=axis)
    return snap(c / (total + floor))
