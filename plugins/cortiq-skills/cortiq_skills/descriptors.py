"""Fitting of a descriptor: mean and principal directions of a task's features.

The eigenvectors of the samples' Gram matrix come of cyclic Jacobi rotations in float64, a fixed
number of sweeps in a fixed order, so that no library decides a bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cortiq.errors import RequestError
from cortiq.numerics.contract import F32, Floats
from cortiq_skills.record import MAX_RANK, SkillSelection
from cortiq_skills.router import SMALLEST_DEVIATION, TINY, error_of

Doubles = npt.NDArray[np.float64]
SWEEPS = 16
DROPPED = 1e-6
"""Directions whose variance is below this share of the largest are left out."""


def fit_selection(
    features: Sequence[Floats], layer: int, rank: int = 2, metric: str = "mse_unit"
) -> SkillSelection:
    """Return the descriptor of features of a layer.

    The last fifth, at least one where there are three, is held out for calibration; errors are
    measured on the rest.

    Raises
    ------
    RequestError : there are no features, or the rank is not in [0, 16].
    """
    if not features or not 0 <= rank <= MAX_RANK:
        what = f"takes features and a rank of at most {MAX_RANK}, not {len(features)} and {rank}"
        raise RequestError(what, where="skill.selection")
    rows = np.stack([_unit(row) if metric == "mse_unit" else row for row in features])
    count = len(rows)
    held = min(max(count // 5, 1), max(count - 2, 0))
    train = rows[: count - held].astype(np.float64)
    mean = (np.add.accumulate(train)[-1] / len(train)).astype(F32)
    centred = train - mean.astype(np.float64)
    basis = principal_directions(centred, min(rank, len(train) - 1))
    kept = _halved(rows[count - held :])
    made = SkillSelection(metric, layer, _halved(mean), _halved(basis), holdout=kept)
    errors = [error_of(made, row.astype(F32))[0] for row in train]
    average = math.fsum(errors) / len(errors)
    spread = math.sqrt(math.fsum((e - average) ** 2 for e in errors) / len(errors))
    return SkillSelection(
        metric, layer, made.mean, made.basis, average, max(spread, SMALLEST_DEVIATION), made.holdout
    )


def _unit(row: Floats) -> Floats:
    length = math.sqrt(float(np.add.accumulate(row.astype(np.float64) ** 2)[-1]))
    return (row.astype(np.float64) / max(length, TINY)).astype(F32)


def _halved(values: npt.NDArray[np.floating]) -> Floats:
    """Return values as float16 holds them."""
    return values.astype(np.float16).astype(F32)


def principal_directions(centred: Doubles, rank: int) -> Floats:
    """Return the directions of largest variance, at most `rank`, float32 [n, width]: each of length
    1, with its entry of largest magnitude, the first of equal ones, positive.
    """
    gram = np.array([[float(np.add.accumulate(a * b)[-1]) for b in centred] for a in centred])
    values, vectors = jacobi_eigenvectors(gram)
    order = sorted(range(len(values)), key=lambda at: -values[at])[:rank]
    found = []
    for at in order:
        if values[at] <= DROPPED * max(values):
            continue
        row = np.zeros(centred.shape[1])
        for weight, sample in zip(vectors[:, at], centred, strict=True):
            row = row + weight * sample
        row = row / math.sqrt(float(np.add.accumulate(row * row)[-1]))
        found.append(row if row[int(np.argmax(np.abs(row)))] > 0 else -row)
    return np.array(found, F32).reshape(len(found), centred.shape[1])


def jacobi_eigenvectors(matrix: Doubles) -> tuple[list[float], Doubles]:
    """Return eigenvalues and eigenvectors (columns) of a symmetric matrix."""
    a, count = matrix.copy(), len(matrix)
    vectors = np.eye(count)
    for _ in range(SWEEPS):
        for p in range(count):
            for q in range(p + 1, count):
                if a[p, q] != 0.0:
                    _rotate(a, vectors, p, q)
    return [float(a[i, i]) for i in range(count)], vectors


def _rotate(a: Doubles, vectors: Doubles, p: int, q: int) -> None:
    """Make a[p, q] zero by a rotation."""
    theta = float(a[q, q] - a[p, p]) / (2.0 * float(a[p, q]))
    t = math.copysign(1.0, theta) / (abs(theta) + math.hypot(theta, 1.0))
    c = 1.0 / math.sqrt(t * t + 1.0)
    s = t * c
    for rows in (a, a.T, vectors.T):
        first, second = rows[p].copy(), rows[q].copy()
        rows[p], rows[q] = c * first - s * second, s * first + c * second
    a[p, q] = a[q, p] = 0.0
