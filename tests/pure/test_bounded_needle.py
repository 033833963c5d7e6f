"""A far row in Nyström attention: what a float64 evaluation finds of it, and what ours does."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from cortiq.numerics.contract import F32
from cortiq_bounded import nystrom
from cortiq_bounded.nystrom import parts
from cortiq_bounded.ops import NystromAttend

DIM, VALUES, WINDOW, SINKS, LOGIT = 64, 16, 128, 4, 12
WORDS = 0x1000, 0x1000 + 0x9E3779B9


def draws(seed, count):
    """Numbers of the original's generator, in [−1, 0): its shift leaves the top bit out."""
    factors = np.multiply.accumulate(np.full(count, 6364136223846793005, np.uint64))
    sums = np.concatenate([[np.uint64(1)], np.uint64(1) + np.cumsum(factors)[:-1]])
    states = factors * np.uint64(seed) + sums * np.uint64(1442695040888963407)
    return (states >> np.uint64(33)).astype(float) / 2**31 - 1


def sequence(landmarks, depth, seed, centred):
    """Queries and keys of unit variance; a far key's score for the last query is 12 higher."""
    seal = 8 * landmarks + WINDOW + depth
    numbers = draws(seed, 2 * (seal + 1) * DIM).reshape(2, seal + 1, DIM)
    k, q = np.sqrt(3) * (2 * numbers + 1 if centred else numbers)
    far = 8 * landmarks
    k[far] += LOGIT * DIM**0.5 * q[seal] / (q[seal] @ q[seal])
    v = np.zeros((seal + 1, VALUES))
    v[far, 0] = 1
    found = [x.astype(F32) for x in (q, k, v)]
    return NystromAttend(1, 1, DIM, VALUES, DIM**-0.5, seal, landmarks, WINDOW, SINKS), found


def ours(op, q, k, v):
    """The last row's output of the definition, from a state sealed before it."""
    state = np.zeros(op.slot_kinds()["state"].shape, F32)
    held = parts(state, op.collected_shapes())
    for name, rows in (("queries", q), ("keys", k), ("values", v)):
        held[name][:] = rows[:-1, None]
    row = (x[-1:] for x in (q, k, v))
    return nystrom.step(op, nystrom.sealed(op, state, None), *row, np.int32(op.seal))[1][0]


def written_out(op, q, k, v):
    """The formula of attention with landmarks, each far row's weight by itself, in float64."""
    q, k, v = (x.astype(float) for x in (q, k, v))
    ends = [i * op.seal // op.landmarks for i in range(op.landmarks + 1)]
    q_means, k_means = (
        np.array([x[a:b].mean(axis=0) for a, b in pairwise(ends)])
        for x in (q, k)
    )  # fmt: skip
    kernel = np.exp(op.scale * q_means @ k_means.T)
    square = kernel.T @ kernel
    ridge = 1e-6 * np.trace(square) / len(square)
    inverse = np.linalg.inv(square + ridge * np.eye(len(square))) @ kernel.T
    mixed, total = np.zeros(VALUES), 0.0
    for j in range(op.seal + 1):
        if j < op.sinks or op.seal - j < op.window:
            weight = np.exp(op.scale * q[-1] @ k[j])
        else:
            weight = np.exp(op.scale * k_means @ q[-1]) @ inverse
            weight = weight @ np.exp(op.scale * q_means @ k[j])
        mixed, total = mixed + weight * v[j], total + weight
    return mixed / total


def exact(op, q, k, v):
    weights = np.exp(op.scale * k.astype(float) @ q[-1].astype(float))
    return weights @ v / weights.sum()


@pytest.mark.parametrize("depth", [256, 1024])
@pytest.mark.parametrize("landmarks", [16, 32, 64])
def test_a_needle_is_found_as_far_as_the_formula_finds_it(landmarks, depth):
    for seed in WORDS:
        op, rows = sequence(landmarks, depth, seed, centred=False)
        found, want = ours(op, *rows), written_out(op, *rows)
        assert np.abs(found - want).max() < 1e-4
        assert found[0] > 0.5 and exact(op, *rows)[0] > 0.97


@pytest.mark.parametrize("landmarks", [16, 64])
def test_among_keys_without_a_common_direction_the_formula_does_not_find_it_either(landmarks):
    op, rows = sequence(landmarks, 256, WORDS[0], centred=True)
    found, want = ours(op, *rows), written_out(op, *rows)
    assert np.abs(found - want).max() < 1e-4
    assert want[0] < 0.05 and exact(op, *rows)[0] > 0.95
