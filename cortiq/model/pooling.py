"""Poolings: the rows of a text's tokens become one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from cortiq.numerics.contract import F32, Floats, snap
from cortiq.numerics.sums import canonical_sum

MEAN, FIRST, LAST = "mean", "cls", "last"
MAX, WEIGHTED, ROOT = "max", "weightedmean", "mean_sqrt_len"


def places_of(pooling: str, count: int) -> range:
    """Return the rows of a text that a pooling reads."""
    return {FIRST: range(1), LAST: range(count - 1, count)}.get(pooling, range(count))


def pooled(rows: Floats, pooling: str, faults: np.ndarray) -> Floats:
    """Return one row of those that a pooling reads: float32 [width] of [rows, width].

    `faults` is that of `snap`. docs/NUMERICS.md has the order of operations.
    """
    if pooling in (FIRST, LAST):
        return rows[-1]
    return snap(FORMULAS[pooling](rows)[None], faults)[0]


def _mean(rows: Floats) -> Floats:
    return canonical_sum(rows, axis=-2) * (F32(1) / F32(len(rows)))


def _root(rows: Floats) -> Floats:
    return canonical_sum(rows, axis=-2) * (F32(1) / np.sqrt(F32(len(rows))))


def _weighted(rows: Floats) -> Floats:
    """Weight row i of n by i / (1 + … + n), of which both are exact in float64."""
    count = len(rows)
    shares = (np.arange(1, count + 1) / (count * (count + 1) / 2)).astype(F32)
    return canonical_sum(rows * shares[:, None], axis=-2)


def _largest(rows: Floats) -> Floats:
    """Take the largest of each column; of zeros +0."""
    return rows.max(axis=0) + F32(0)


FORMULAS: Mapping[str, Callable[[Floats], Floats]] = {
    MEAN: _mean, MAX: _largest, WEIGHTED: _weighted, ROOT: _root,
}  # fmt: skip
POOLINGS = (MEAN, FIRST, LAST, *list(FORMULAS)[1:])
"""All that there are."""
