"""Flush-to-zero and denormals-are-zero change no bit of the heavy primitives."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from cortiq.numerics.attention import attend
from cortiq.numerics.contract import snap
from cortiq.numerics.matmul import matmul
from cortiq.numerics.quantise import Quantised, quantise_rows
from cortiq.numerics.recurrent import delta_step, diagonal_delta_step, state_space_step
from cortiq.numerics.unpacked_weights import Codes, widen_half

KEYS = 1300


@contextmanager
def flushing():
    """Sets FTZ and DAZ for this thread; NumPy's loops obey, as the guard shows."""
    assert torch.set_flush_denormal(True)
    try:
        assert np.float32(1e-38) * np.float32(0.1) == 0
        yield
    finally:
        torch.set_flush_denormal(False)


def scattered(rng, *shape, low=-45.0, high=5.0):
    """Canonical values of every size, a third of them zero."""
    values = rng.standard_normal(shape) * 2.0 ** rng.uniform(low, high, shape)
    return snap(np.where(rng.random(shape) < 0.3, 0, values).astype(np.float32))


def same_when_flushed(compute):
    plain = compute()
    with flushing():
        flushed = compute()
    assert np.array_equal(plain.view(np.int32), flushed.view(np.int32))
    return plain


@pytest.mark.parametrize("soft_cap", [None, 30.0])
@pytest.mark.parametrize("step", [-61, -59, -12, 12, 30, 59, 61, 70])
def test_attention_on_ladders_of_scores(step, soft_cap):
    """Scores climb or fall by `step` a tile, so that rescaled sums run through the subnormals."""
    rng = np.random.default_rng(0)
    k = scattered(rng, KEYS, 1, 4, low=-10, high=0)
    k[:, 0, 0] = (np.arange(KEYS) // 64 - 10) * step
    v = scattered(rng, KEYS, 1, 4, high=30)
    q = quantise_rows(np.ones((1, 2, 4), np.float32))
    rows = quantise_rows(k), quantise_rows(v), np.array([KEYS - 1]), 1.0
    sinks = np.float32([-30, 900])
    assert same_when_flushed(lambda: attend(q, *rows, soft_cap=soft_cap, sinks=sinks)).any()


@pytest.mark.parametrize("seed", range(40))
def test_matmul_of_small_scales_and_exponents(seed):
    rng = np.random.default_rng(seed)
    q = rng.integers(-32512, 32513, (2, 64)) * (rng.random((2, 64)) < 0.1)
    x = Quantised(q.astype(np.int32), rng.integers(-54, 15, 2).astype(np.int32))
    codes = rng.integers(-127, 128, (3, 64)).astype(np.int16)
    scale, minimum = scattered(rng, 3, 2), scattered(rng, 3, 2)
    weight = Codes(codes, 32, scale, np.ones((3, 2), np.int32), 32, minimum)
    same_when_flushed(lambda: matmul(x, weight))


@pytest.mark.parametrize("seed", range(40))
def test_delta_step_of_values_of_every_size(seed):
    rng = np.random.default_rng(seed)
    state, q, k = scattered(rng, 2, 8, 4, high=20), *(scattered(rng, 2, 8) for _ in "qk")
    v, alpha, beta = scattered(rng, 2, 4), scattered(rng, 2, high=0), scattered(rng, 2, high=0)
    for part in (0, 1):
        same_when_flushed(lambda part=part: delta_step(state, q, k, v, alpha, beta)[part])


@pytest.mark.parametrize("seed", range(20))
def test_diagonal_delta_step_of_values_of_every_size(seed):
    rng = np.random.default_rng(seed)
    state, v = scattered(rng, 2, 8, 4, high=20), scattered(rng, 2, 4)
    q, k, alpha, kappa, beta = (scattered(rng, 2, 8, high=0) for _ in range(5))
    rows = (q, k, v, alpha, kappa, beta)
    for part in (0, 1):
        same_when_flushed(lambda part=part: diagonal_delta_step(state, *rows)[part])


@pytest.mark.parametrize("seed", range(20))
def test_state_space_step_of_values_of_every_size(seed):
    rng = np.random.default_rng(seed)
    state, x = scattered(rng, 2, 8, 4, high=20), scattered(rng, 2, 4)
    b, c = (scattered(rng, 1, 8) for _ in "bc")
    alpha, delta = scattered(rng, 2, high=0), scattered(rng, 2, high=4)
    for part in (0, 1):
        same_when_flushed(lambda part=part: state_space_step(state, x, b, c, alpha, delta)[part])


def test_half_scales():
    halves = np.arange(0x7C00, dtype=np.uint32)
    assert same_when_flushed(lambda: widen_half(halves)).any()
