"""`canonical_sum`: the one written order of a float sum."""

from __future__ import annotations

from typing import Any

import numpy as np

from cortiq.numerics.contract import F32, LANES, Floats


def canonical_sum(x: Floats, axis: int = -1) -> Floats:
    """Sum an axis of x in the contract's order; no snap.

    Lane i (0…255) starts at +0 and adds x[i], x[i+256], … in order, missing terms being +0; then
    lane i += lane i+h for h = 128, 64, …, 1; lane 0 is the sum. (Below 256 elements only the lanes
    up to the next power of two are held: the others are +0, which changes no lane.)

    Parameters
    ----------
    x : float32 [..., n, ...], canonical values or products of two of them.
    axis : negative, counted from the last.

    Returns
    -------
    float32, without the axis.
    """
    x = np.asarray(x, F32)
    count, shape = x.shape[axis], list(x.shape)
    shape[axis] = min(LANES, 1 << (max(count, 1) - 1).bit_length())
    lanes = np.zeros(shape, F32)
    for start in range(0, count, LANES):
        part = x[_along(axis, slice(start, start + LANES))]
        lanes[_along(axis, slice(part.shape[axis]))] += part
    while (half := lanes.shape[axis] // 2) > 0:
        lanes = lanes[_along(axis, slice(half))] + lanes[_along(axis, slice(half, 2 * half))]
    return lanes[_along(axis, 0)]


def _along(axis: int, where: slice | int) -> tuple[Any, ...]:
    """Return the index that picks from one axis."""
    return (..., where, *(slice(None),) * (-1 - axis))


def canonical_mean(x: Floats) -> Floats:
    """Return the mean over the last axis: RN(S·RN(1/n)), S the canonical sum, 1/n from the host."""
    return canonical_sum(x) * (F32(1) / F32(x.shape[-1]))
