"""`canonical_sum`: the written order, along any axis."""

from __future__ import annotations

import numpy as np
import pytest

from cortiq.numerics.contract import F32, LANES
from cortiq.numerics.sums import canonical_sum

LENGTHS = (0, 1, 2, 3, 5, 127, 128, 129, 255, 256, 257, 511, 513, 1000)


def by_definition(values):
    """256 lanes, each from +0; then the lanes in halves."""
    lanes = [F32(0)] * LANES
    for i, value in enumerate(values):
        lanes[i % LANES] = lanes[i % LANES] + value
    half = LANES // 2
    while half:
        lanes = [lanes[i] + lanes[i + half] for i in range(half)]
        half //= 2
    return lanes[0]


def values_of(length, width):
    """Values of every size, zeros of both signs among them."""
    rng = np.random.default_rng(length)
    x = rng.standard_normal((length, width)) * 2.0 ** rng.integers(-30, 30, (length, width))
    return np.where(rng.random(x.shape) < 0.1, -0.0, x).astype(F32)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("negative_zeros", [False, True])
def test_the_order_is_that_of_the_definition_along_each_axis(length, negative_zeros):
    x = np.full((length, 3), -0.0, F32) if negative_zeros else values_of(length, 3)
    expected = np.array([by_definition(column) for column in x.T], F32)
    assert canonical_sum(x.T).tobytes() == expected.tobytes()
    assert canonical_sum(x, axis=-2).tobytes() == expected.tobytes()
    assert canonical_sum(x[None, :, :, None], axis=-3).tobytes() == expected.tobytes()


def test_the_order_matters():
    x = values_of(1000, 20)
    assert (canonical_sum(x, axis=-2) != np.add.reduce(x, axis=0)).any()
