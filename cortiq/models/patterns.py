"""The generator of the fixtures' weights."""

from __future__ import annotations

import numpy as np

from cortiq.numerics.contract import F32, Floats


def pattern(
    count: int, salt: int, *, a: int = 31, b: int = 17, c: int = 7, period: int = 97,
    size: float = 0.4,
) -> Floats:  # fmt: skip
    """Return ((i·a + salt·b + c) mod period / period − ½)·size in float32, for i < count."""
    steps = (np.arange(count, dtype=np.int64) * a + salt * b + c) % period
    return (steps.astype(F32) / F32(period) - F32(0.5)) * F32(size)
