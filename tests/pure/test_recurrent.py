"""Convolution and delta rule: the written order on rationals, float64, and chunks."""

from __future__ import annotations

import importlib
from fractions import Fraction

import numpy as np
import pytest
from rational import exact, rounded

from cortiq.numerics.contract import snap
from cortiq.numerics.ideal_mixers import (
    causal_conv_ideal,
    delta_rule_ideal,
    diagonal_delta_ideal,
    state_space_ideal,
)
from cortiq.numerics.recurrent import (
    CONV_UNIT_ERROR,
    DELTA_TYPICAL_ERROR,
    STATE_SPACE_TYPICAL_ERROR,
    causal_conv,
    conv_history,
    delta_step,
    diagonal_delta_step,
    in_order,
    state_space_step,
)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def bits(x):
    return np.ascontiguousarray(x).view(np.int32)


def same(a, b):
    return np.array_equal(bits(a), bits(b))


def conv_case(taps, rows=9, channels=5):
    return (
        normal(taps - 1, channels),
        normal(rows, channels, seed=1),
        normal(channels, taps, seed=2),
    )


@pytest.mark.parametrize("taps", [1, 3, 4, 7])
@pytest.mark.parametrize("with_bias", [False, True])
def test_conv_adds_taps_from_the_oldest_row_on(taps, with_bias):
    history, x, weight = conv_case(taps)
    bias = normal(5, seed=3) if with_bias else None
    y = causal_conv(history, x, weight, bias)
    padded = np.concatenate([history, x])
    for i, c in np.ndindex(x.shape):
        total = Fraction(0)
        for tap in range(taps):
            product = rounded(exact(weight[c, tap]) * exact(padded[i + tap, c]))
            total = rounded(total + product)
        if with_bias:
            total = rounded(total + exact(bias[c]))
        assert exact(y[i, c]) == total


def test_conv_is_close_to_float64():
    history, x, weight = conv_case(4, rows=200)
    ideal = causal_conv_ideal(history, x, weight)
    size = causal_conv_ideal(np.abs(history), np.abs(x), np.abs(weight))
    error = np.abs(causal_conv(history, x, weight) - ideal)
    assert (error <= (4 + 2) * CONV_UNIT_ERROR * size).all()
    assert error.any()


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_conv_in_chunks_equals_whole(chunk):
    history, x, weight = conv_case(4)
    whole = causal_conv(history, x, weight)
    parts = []
    for start in range(0, len(x), chunk):
        piece = x[start : start + chunk]
        parts.append(causal_conv(history, piece, weight))
        history = conv_history(history, piece)
    assert same(np.concatenate(parts), whole)
    assert same(history, x[-3:])


def test_conv_results_are_canonical_or_faults_of_their_row():
    history, x, weight = (np.zeros(s, np.float32) for s in ((1, 1), (3, 1), (1, 2)))
    weight[:] = [[0, -1]]
    x[:, 0] = [0.0, 2.0**-41, 2.0**50]
    faults = np.zeros(3, np.bool_)
    assert not bits(causal_conv(history, x, weight, faults=faults)).any()
    assert faults.tolist() == [False, False, True]


def test_conv_refuses_a_history_of_another_length():
    history, x, weight = conv_case(4)
    with pytest.raises(ValueError, match="history"):
        causal_conv(history[1:], x, weight)


def delta_case(rows=64, heads=2, dk=16, dv=8, per_channel=False):
    """Unit keys and queries, decays in (0.8, 1), strengths in (0, 1)."""
    rng = np.random.default_rng(7)
    q, k = normal(rows, heads, dk, seed=1), normal(rows, heads, dk, seed=2)
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    alpha = rng.uniform(0.8, 1, (rows, heads, dk) if per_channel else (rows, heads))
    beta = rng.uniform(0, 1, (rows, heads))
    state = normal(heads, dk, dv, seed=3)
    return (
        state,
        q,
        k,
        normal(rows, heads, dv, seed=4),
        *(x.astype(np.float32) for x in (alpha, beta)),
    )


def delta_rule(state, q, k, v, alpha, beta, faults=None):
    return in_order(delta_step, state, (q, k, v, alpha, beta), faults)


def state_space(state, *rows):
    return in_order(state_space_step, state, rows)


def sum3(terms):
    """The canonical sum of three values: lane 0 takes lane 2, then lane 1."""
    return rounded(rounded(terms[0] + terms[2]) + terms[1])


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_delta_step_equals_its_definition_in_rational_arithmetic(per_channel):
    case = [x[0] for x in delta_case(1, 1, 3, 2, per_channel)[1:]]
    state = delta_case(1, 1, 3, 2)[0]
    after, out = delta_step(state, *case)
    q, k, v, alpha, beta = ([exact(n) for n in np.ravel(x)] for x in case)
    alpha = [alpha[i % len(alpha)] for i in range(3)]
    for j in range(2):
        old = [exact(state[0, i, j]) for i in range(3)]
        m = sum3([rounded(old[i] * rounded(k[i] * alpha[i])) for i in range(3)])
        d = rounded(rounded(v[j] - m) * beta[0])
        s = [rounded(rounded(old[i] * alpha[i]) + rounded(k[i] * d)) for i in range(3)]
        assert [exact(x) for x in after[0, :, j]] == s
        assert exact(out[0, j]) == sum3([rounded(s[i] * q[i]) for i in range(3)])


@pytest.mark.parametrize("per_channel", [False, True])
def test_delta_rule_is_close_to_float64(per_channel):
    case = delta_case(dk=64, per_channel=per_channel)
    state, out = delta_rule(*case)
    ideal_state, ideal_out = delta_rule_ideal(*case)
    for ours, ideal in ((state, ideal_state), (out, ideal_out)):
        error = np.abs(ours - ideal).max() / np.abs(ideal).max()
        assert 0 < error <= DELTA_TYPICAL_ERROR


def diagonal_case(rows=64, heads=3, dk=16, dv=8):
    """Unit removal keys, and strengths that are a part of them."""
    state, q, k, v, alpha, _ = delta_case(rows, heads, dk, dv, per_channel=True)
    kappa = normal(rows, heads, dk, seed=9)
    kappa = kappa / np.linalg.norm(kappa, axis=-1, keepdims=True)
    share = np.random.default_rng(8).uniform(0, 1, kappa.shape).astype(np.float32)
    return [state, q, k, v, alpha, kappa, snap(kappa * share)]


def test_a_diagonal_delta_step_equals_its_definition_in_rational_arithmetic():
    state, *rows = diagonal_case(1, 1, 3, 2)
    after, out = diagonal_delta_step(state, *(x[0] for x in rows))
    q, k, v, alpha, kappa, beta = ([exact(n) for n in np.ravel(x)] for x in rows)
    for j in range(2):
        old = [exact(state[0, i, j]) for i in range(3)]
        m = sum3([rounded(old[i] * kappa[i]) for i in range(3)])
        kept = [rounded(rounded(old[i] * alpha[i]) - rounded(beta[i] * m)) for i in range(3)]
        s = [rounded(kept[i] + rounded(k[i] * v[j])) for i in range(3)]
        assert [exact(x) for x in after[0, :, j]] == s
        assert exact(out[0, j]) == sum3([rounded(s[i] * q[i]) for i in range(3)])


@pytest.mark.parametrize("dk", [64, 5])
def test_diagonal_delta_rule_is_close_to_float64(dk):
    state, *rows = diagonal_case(dk=dk)
    found = in_order(diagonal_delta_step, state, rows)
    for ours, ideal in zip(found, diagonal_delta_ideal(state, *rows), strict=True):
        error = np.abs(ours - ideal).max() / np.abs(ideal).max()
        assert 0 < error <= DELTA_TYPICAL_ERROR


def test_a_diagonal_rule_that_removes_what_it_writes_is_the_delta_rule():
    """With κ = k·α, β·k as strengths and β·v as values, in float64."""
    state, q, k, v, alpha, beta = (x.astype(float) for x in delta_case(per_channel=True))
    state, out = state.copy(), delta_rule_ideal(state, q, k, v, alpha, beta)[1]
    rows = (q, k, v * beta[..., None], alpha, k * alpha, k * beta[..., None])
    np.testing.assert_allclose(diagonal_delta_ideal(state, *rows)[1], out, rtol=1e-9, atol=1e-12)


def test_diagonal_delta_rule_in_chunks_equals_whole():
    state, *rows = diagonal_case(rows=9)
    end, whole = in_order(diagonal_delta_step, state, rows)
    middle, first = in_order(diagonal_delta_step, state, [x[:4] for x in rows])
    after, second = in_order(diagonal_delta_step, middle, [x[4:] for x in rows])
    assert same(after, end) and same(np.concatenate([first, second]), whole)


def test_a_head_takes_the_key_of_its_group():
    state, q, k, *rest = delta_case(heads=6)
    few = delta_rule(state, q[:, :2], k[:, :2], *rest)
    many = delta_rule(state, *(np.repeat(x[:, :2], 3, axis=1) for x in (q, k)), *rest)
    assert all(same(a, b) for a, b in zip(few, many, strict=True))
    wide = delta_rule_ideal(state, q[:, :2], k[:, :2], *rest)
    assert np.abs(few[1] - wide[1]).max() <= DELTA_TYPICAL_ERROR * np.abs(wide[1]).max()


def state_space_case(rows=64, heads=4, groups=2, p=8, n=16):
    """Normal inputs, steps in (0, 1), decays e^(−step)."""
    delta = np.random.default_rng(5).uniform(0, 1, (rows, heads)).astype(np.float32)
    return (
        normal(heads, n, p), normal(rows, heads, p, seed=1), normal(rows, groups, n, seed=2),
        normal(rows, groups, n, seed=3), np.exp(-delta), delta,
    )  # fmt: skip


def test_a_state_space_step_equals_its_definition_in_rational_arithmetic():
    state, *rows = state_space_case(1, 1, 1, 2, 3)
    after, out = state_space_step(state, *(x[0] for x in rows))
    x, b, c, alpha, delta = ([exact(n) for n in np.ravel(row)] for row in rows)
    for j in range(2):
        u = rounded(delta[0] * x[j])
        kept = [rounded(exact(state[0, n, j]) * alpha[0]) for n in range(3)]
        s = [rounded(kept[n] + rounded(b[n] * u)) for n in range(3)]
        assert [exact(v) for v in after[0, :, j]] == s
        assert exact(out[0, j]) == sum3([rounded(s[n] * c[n]) for n in range(3)])


def test_a_state_space_is_close_to_float64_and_in_chunks_the_same():
    state, *rows = state_space_case()
    whole = state_space(state, *rows)
    for ours, ideal in zip(whole, state_space_ideal(state, *rows), strict=True):
        error = np.abs(ours - ideal).max() / np.abs(ideal).max()
        assert 0 < error <= STATE_SPACE_TYPICAL_ERROR
    middle, first = state_space(state, *(x[:7] for x in rows))
    end, second = state_space(middle, *(x[7:] for x in rows))
    assert same(end, whole[0])
    assert same(np.concatenate([first, second]), whole[1])


@pytest.mark.parametrize("per_channel", [False, True])
def test_delta_rule_equals_transformers(per_channel):
    """Their recurrent functions, in double, on the same rows."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    name = "kimi_linear" if per_channel else "qwen3_next"
    code = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    theirs = (
        code.recurrent_kimi_delta_attention
        if per_channel
        else code.torch_recurrent_gated_delta_rule
    )
    state, q, k, v, alpha, beta = delta_case(dk=16, per_channel=per_channel)
    wide = [torch.tensor(x, dtype=torch.float64)[None] for x in (q * 4, k, v, np.log(alpha), beta)]
    start = torch.tensor(state, dtype=torch.float64)[None]
    out, end = theirs(*wide, initial_state=start, output_final_state=True)
    ideal_state, ideal = delta_rule_ideal(state, q, k, v, alpha, beta)
    np.testing.assert_allclose(out[0].numpy(), ideal, atol=1e-6)
    np.testing.assert_allclose(end[0].numpy(), ideal_state, atol=1e-6)


@pytest.mark.parametrize("cut", [1, 7, 63])
def test_delta_rule_in_chunks_equals_whole(cut):
    state, *rows = delta_case()
    whole_state, whole = delta_rule(state, *rows)
    middle, first = delta_rule(state, *(x[:cut] for x in rows))
    end, second = delta_rule(middle, *(x[cut:] for x in rows))
    assert same(end, whole_state)
    assert same(np.concatenate([first, second]), whole)


def test_delta_state_is_canonical_and_overflow_is_the_rows_fault():
    state, *rows = delta_case(rows=3)
    rows[2][1] = 2.0**49
    rows[1][1] *= 4
    rows[4][1] = 1
    faults = np.zeros(3, np.bool_)
    after, out = delta_rule(state, *rows, faults)
    assert faults[1]
    assert not faults[0]
    for x in (after, out):
        assert ((x == 0) | (np.abs(x) >= 2.0**-40)).all()
        assert not np.signbit(x[x == 0]).any()
