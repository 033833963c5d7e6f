"""Float32 helpers of the tests: bits, strided exhaustive ranges, errors in ulps, flush-to-zero."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from cortiq_conformance import flush

F32 = np.float32
LOWEST = F32(2.0**-40)
LIMIT = F32(2.0**50)


def bits(x):
    return np.ascontiguousarray(x, F32).view(np.uint32)


def same_bits(a, b):
    return np.array_equal(bits(a), bits(b))


def every(low, high, step=1):
    """Every step-th float32 between two positive numbers, by its bits."""
    first, last = (int(F32(end).view(np.int32)) for end in (low, high))
    return np.arange(first, last + 1, step, dtype=np.int64).astype(np.int32).view(F32)


def ulps(y, exact):
    """|y − exact| in units in the last place of the exact value, as float64."""
    unit = np.spacing(np.abs(exact).astype(F32)).astype(np.float64)
    return np.abs(np.asarray(y, np.float64) - exact) / unit


def next_up(x):
    return np.nextafter(F32(x), F32(np.inf))


def next_down(x):
    return np.nextafter(F32(x), F32(0))


def canonical(rng, shape, low=-40, high=50):
    """Canonical values over the whole domain: random exponents, some zeros."""
    exponent = rng.integers(low, high, shape)
    magnitude = np.ldexp(1 + rng.random(shape), exponent).astype(F32)
    magnitude = np.minimum(magnitude, next_down(2.0**high))
    sign = rng.choice(np.array([-1, 1], F32), shape)
    return np.where(rng.random(shape) < 0.05, F32(0), magnitude * sign).astype(F32)


@contextlib.contextmanager
def flush_to_zero():
    """Set flush-to-zero and denormals-are-zero in this thread's control register."""
    if reason := flush.available():
        pytest.skip(reason)
    with flush.flush_to_zero():
        tiny = np.full(64, 1e-40, F32)
        assert not (tiny * F32(1)).any(), "flush-to-zero is not in force"
        yield
