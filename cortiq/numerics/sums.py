"""`canonical_sum`: the one written order of a float sum."""

from __future__ import annotations

import numpy as np

from cortiq.numerics.contract import F32, LANES, Floats


def canonical_sum(x: Floats) -> Floats:
    """Sum the last axis of x in the contract's order; no snap.

    Lane i (0…255) starts at +0 and adds x[i], x[i+256], … in order, missing terms being +0; then
    lane i += lane i+h for h = 128, 64, …, 1; lane 0 is the sum.

    Parameters
    ----------
    x : float32 [..., n], canonical values or products of two of them.

    Returns
    -------
    float32 [...].
    """
    x = np.asarray(x, F32)
    steps = -(-x.shape[-1] // LANES)
    padded = np.zeros((*x.shape[:-1], steps * LANES), F32)
    padded[..., : x.shape[-1]] = x
    lanes = np.zeros((*x.shape[:-1], LANES), F32)
    for step in range(steps):
        lanes = lanes + padded[..., step * LANES : (step + 1) * LANES]
    half = LANES // 2
    while half:
        lanes = lanes[..., :half] + lanes[..., half : 2 * half]
        half //= 2
    return lanes[..., 0]


def canonical_mean(x: Floats) -> Floats:
    """Mean over the last axis: RN(S·RN(1/n)), S the canonical sum and 1/n rounded on the host."""
    return canonical_sum(x) * (F32(1) / F32(x.shape[-1]))
