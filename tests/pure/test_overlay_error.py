"""The error of an overlay's product, against the plain formula in float64."""

from __future__ import annotations

import numpy as np
import pytest

from cortiq.numerics.layouts import Weight, decode
from cortiq.numerics.matmul import matmul
from cortiq.numerics.quantise import quantise_rows
from cortiq.numerics.weights import convert

TYPICAL_ERROR = 6 * 2.0**-16
"""Of the largest output, for data of one size (docs/NUMERICS.md, section 16)."""


@pytest.mark.parametrize(("rank", "columns"), [(1, 64), (16, 576), (64, 1536)])
def test_the_error_of_a_low_rank_product(rank, columns):
    random = np.random.default_rng(rank)
    x, a, b = (random.normal(size=s) for s in ((40, columns), (rank, columns), (200, rank)))
    x, a, b = (values.astype(np.float32) for values in (x, a, b))
    made = quantise_rows(x)
    for factor in (a, b):
        faults = np.zeros(len(x), np.bool_)
        weight = convert(Weight.from_floats(factor), "w16", "factor")
        y = matmul(made, decode(weight), faults)
        made = quantise_rows(y)
    exact = x.astype(np.float64) @ a.T.astype(np.float64) @ b.T.astype(np.float64)
    worst = np.abs(y - exact).max(axis=1) / np.abs(exact).max(axis=1)
    assert TYPICAL_ERROR / 20 < np.median(worst) < TYPICAL_ERROR
