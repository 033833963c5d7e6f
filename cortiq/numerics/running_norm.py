"""A norm by all rows so far, as Gemma 3n's convolutions of sounds have it, in float64."""

from __future__ import annotations

import numpy as np

from cortiq.numerics.contract import Floats, snap


def running_norm(grid: Floats, eps: float) -> Floats:
    """Return rows less the mean of all values so far, by the root of their variance and eps.

    With n values a row, row t of float64: s_t their sum in ascending order, C_t = C_{t−1} + s_t,
    d = x − C_t/(n·(t + 1)); V_t is of d·d what C_t is of x; d·(1/√(V_t/(n·(t + 1)) + eps)), for
    float32 rows snap(RN(…)). Every operation is rounded. The variance is of what each row was
    less its own mean, as the published code has it.

    Parameters
    ----------
    grid : [times, bands, channels].
    """
    rows = grid.reshape(len(grid), -1).astype(np.float64)
    counts = rows.shape[1] * np.arange(1.0, len(rows) + 1.0)[:, None]
    rows = rows - _sums(rows) / counts
    scale = 1.0 / np.sqrt(_sums(rows * rows) / counts + eps)
    made = (rows * scale).reshape(grid.shape)
    return made if grid.dtype == np.float64 else snap(made.astype(np.float32))


def _sums(rows: np.ndarray) -> np.ndarray:
    """Return the sum of all rows so far, [rows, 1]; an accumulation has one order."""
    own = np.add.accumulate(rows, axis=1)[:, -1:]
    return np.add.accumulate(own, axis=0)
