"""Cases of the original engine's tests of bounded attention, on our definition."""

from __future__ import annotations

import numpy as np
import pytest
from bounded import stepped

from cortiq.numerics.contract import F32
from cortiq_bounded import nystrom
from cortiq_bounded.nystrom import parts
from cortiq_bounded.ops import NystromAttend


def parity_draws(seed, count):
    """Numbers of the original's test of parity, in [−1, 1)."""
    found, state = [], seed
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        found.append((state >> 32) / 2**31 - 1)
    return np.array(found, F32)


def sealed_before(op, q, k, v):
    """The state sealed by all rows but those from `op.seal` on."""
    state = np.zeros(op.slot_kinds()["state"].shape, F32)
    held = parts(state, op.collected_shapes())
    for name, rows in (("queries", q), ("keys", k), ("values", v)):
        held[name][:] = rows[: op.seal]
    return nystrom.sealed(op, state, None)


def test_a_short_text_is_softmax():
    op = NystromAttend(1, 1, 16, 8, 0.25, seal=45, landmarks=4, window=32, sinks=4)
    q, k, v = (parity_draws(20260712 + n, 20 * w).reshape(20, 1, w)
               for n, w in enumerate((16, 16, 8)))  # fmt: skip
    rows = (q, k, v, np.arange(20, dtype=np.int32))
    found, _ = stepped(nystrom.step, op, op.slot_kinds()["state"].shape, rows)
    for at in range(20):
        weights = np.exp(0.25 * k[: at + 1, 0].astype(float) @ q[at, 0].astype(float))
        want = weights @ v[: at + 1, 0] / weights.sum()
        assert np.abs(found[at, 0] - want).max() < 1e-5


def test_each_row_that_leaves_the_window_is_absorbed_once():
    op = NystromAttend(3, 1, 8, 4, 8**-0.5, seal=64, landmarks=4, window=16, sinks=4)
    q, k = np.zeros((90, 3, 8), F32), np.zeros((90, 1, 8), F32)  # so that each adds a power of 1
    v = parity_draws(5, 90 * 4).reshape(90, 1, 4)
    state = sealed_before(op, q, k, v)
    for at in range(op.seal, 90):
        masses = parts(state, op.sealed_shapes())["masses"]
        assert (masses == at - op.sinks - op.window).all()
        state, _ = nystrom.step(op, state, q[at], k[at], v[at], np.int32(at))
    sums = parts(state, op.sealed_shapes())["sums"]
    far = v[op.sinks : 90 - op.window, 0].astype(float).sum(axis=0)
    assert np.abs(sums - far).max() < 1e-4


@pytest.mark.parametrize(("m", "window", "sinks"), [(8, 32, 4), (32, 128, 4), (64, 128, 4)])
@pytest.mark.parametrize("rectifier", ["aggregate", "fm"])
def test_equal_keys_give_the_mean_of_the_values(m, window, sinks, rectifier):
    seal, rest = 8 * m + window, 128
    op = NystromAttend(1, 1, 32, 24, 32**-0.5, seal, m, window, sinks, rectifier=rectifier)
    random = np.random.default_rng(m)
    q, v = (random.standard_normal((seal + rest, 1, w)).astype(F32) for w in (32, 24))
    k = np.repeat(random.standard_normal((1, 1, 32)).astype(F32), seal + rest, axis=0)
    state, out = sealed_before(op, q, k, v), None
    for at in range(seal, seal + rest):
        state, out = nystrom.step(op, state, q[at], k[at], v[at], np.int32(at))
    mean = v[:, 0].astype(float).mean(axis=0)
    assert np.abs(out[0] - mean).max() < 1e-3 * np.abs(v).max()
