"""Scalar functions: error bounds, exact values, and bits that no subnormal can change."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from floats import LIMIT, LOWEST, bits, canonical, every, flush_to_zero, next_down, next_up, ulps
from floats import same_bits as same

from cortiq.errors import UnsupportedError
from cortiq.numerics import ideal, scalar
from cortiq.numerics.contract import F32, OutOfDomainError

STRIDE = 1013


def both_signs(low, high, negative_high=None):
    positive = every(low, high, STRIDE)
    negative = -every(low, negative_high or high, STRIDE)
    return np.concatenate([negative[::-1], np.zeros(1, F32), positive])


def sigmoid64(x):
    return 1 / (1 + np.exp(-x))


def softplus64(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


BOUNDS = [
    (scalar.exp, np.exp, -every(2.0**-40, 80, STRIDE), scalar.EXP_MAX_ULP),
    (scalar.exponential, np.exp, both_signs(2.0**-40, 80), scalar.EXPONENTIAL_MAX_ULP),
    (scalar.exp2_fraction, np.exp2, both_signs(2.0**-40, 0.5), scalar.EXP2_FRACTION_MAX_ULP),
    (scalar.sigmoid, sigmoid64, both_signs(2.0**-40, 2.0**49, 80), scalar.SIGMOID_MAX_ULP),
    (scalar.tanh, np.tanh, both_signs(2.0**-40, 2.0**49), scalar.TANH_MAX_ULP),
    (scalar.log, np.log, every(2.0**-126, 3e38, STRIDE), scalar.LOG_MAX_ULP),
    (scalar.log, np.log, every(0.5, 2, 17), scalar.LOG_MAX_ULP),
    (scalar.log1p, np.log1p, both_signs(2.0**-40, 1, 0.5), scalar.LOG1P_MAX_ULP),
    (scalar.softplus, softplus64, both_signs(2.0**-40, 2.0**49, 80), scalar.SOFTPLUS_MAX_ULP),
]


@pytest.mark.parametrize(("function", "exact", "x", "bound"), BOUNDS)
def test_error_is_within_the_stated_bound(function, exact, x, bound):
    error = ulps(function(x), exact(x.astype(np.float64))).max()
    assert bound / 3 < error <= bound


def test_silu_error():
    x = np.concatenate([-every(2.0**-39, 80, STRIDE), every(2.0**-39, 2.0**49, STRIDE)])
    exact = x.astype(np.float64) * sigmoid64(x.astype(np.float64))
    assert 1 < ulps(scalar.silu(x), exact).max() <= scalar.SILU_MAX_ULP


def test_gelu_error_relative_to_the_argument():
    x = both_signs(2.0**-39, 2.0**49)
    x = x[x != 0]
    wide = x.astype(np.float64)
    inner = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    exact = wide * sigmoid64(np.clip(2 * inner, -700, 700))
    error = (np.abs(scalar.gelu_tanh(x) - exact) / np.abs(wide)).max()
    assert scalar.GELU_TANH_MAX_ERROR / 3 < error <= scalar.GELU_TANH_MAX_ERROR


def test_erf_gelu_error_relative_to_the_argument():
    dense = every(2.0**-8, 8, 97)
    x = np.concatenate([both_signs(2.0**-39, 2.0**49), dense, -dense])
    x = x[x != 0]
    wide = x.astype(np.float64)
    error = (np.abs(scalar.gelu(x) - ideal.gelu(x)) / np.abs(wide)).max()
    assert scalar.GELU_MAX_ERROR / 3 < error <= scalar.GELU_MAX_ERROR
    ends = scalar.activation(np.array([[17, -17, 0, 2.0**49, -(2.0**49)]], F32), "gelu")
    assert same(ends, np.array([[17, 0, 0, 2.0**49, 0]], F32))


def test_oracle_agrees_with_many_digits():
    """NumPy's float64 functions are themselves held to mpmath where results are smallest."""
    for x in (-79.9, -1e-7, -0.3, -20.25):
        with mpmath.workdps(40):
            assert abs(float(mpmath.exp(mpmath.mpf(x))) / np.exp(x) - 1) < 1e-15
            assert abs(float(mpmath.log1p(mpmath.exp(mpmath.mpf(x)))) / softplus64(x) - 1) < 1e-14


def test_exact_values():
    zero = np.zeros(1, F32)
    for x in (zero, -zero):
        assert scalar.exp(x) == 1
        assert scalar.exp2_fraction(x) == 1
        assert scalar.sigmoid(x) == F32(0.5)
        assert scalar.tanh(x) == 0
    assert bits(scalar.log(F32(1))) == 0
    assert bits(scalar.log1p(zero)[0]) == 0
    assert same(scalar.exp(np.array([-80, -81, -1e30], F32)), np.repeat(scalar.exp(F32(-80)), 3))
    assert scalar.sigmoid(np.array([40], F32)) == 1
    assert scalar.tanh(np.array([20], F32)) == 1


def test_odd_functions_are_odd_to_the_bit():
    x = every(2.0**-40, 2.0**20, STRIDE)
    assert same(scalar.tanh(-x), -scalar.tanh(x))


def test_functions_are_monotonic_where_their_formulas_change():
    for function, at in ((scalar.tanh, 0.625), (scalar.log, np.sqrt(0.5)), (scalar.exp, -80)):
        centre = int(np.abs(F32(at)).view(np.int32))
        x = np.arange(centre - 2000, centre + 2000, dtype=np.int32).view(F32)
        x = x if at > 0 else -x[::-1]
        rise = np.diff(function(x).astype(np.float64))
        assert rise.min() >= -2 * np.spacing(np.abs(function(x))).max()


@pytest.mark.parametrize("kind", scalar.ACTIVATIONS)
def test_activations_end_canonical_and_flag_their_rows(kind):
    x = canonical(np.random.default_rng(1), (40, 50), high=40)
    faults = np.zeros(40, bool)
    y = scalar.activation(x, kind, faults)
    magnitude = np.abs(y[y != 0])
    assert magnitude.min() >= LOWEST
    assert not np.signbit(y[y == 0]).any()
    assert np.array_equal(faults, (scalar.ACTIVATIONS[kind](x) >= LIMIT).any(axis=1))


def test_snap_thresholds_through_a_primitive():
    x = np.array([[LOWEST, next_up(LOWEST), next_down(LOWEST), -LOWEST, -0.0]], F32)
    y = scalar.activation(x * F32(1), "relu", np.zeros(1, bool))
    assert same(y, np.array([[LOWEST, next_up(LOWEST), 0, 0, 0]], F32))
    z = scalar.scale(np.array([[LOWEST, -LOWEST]], F32), 0.5, np.zeros(1, bool))
    assert not bits(z).any()


@pytest.mark.parametrize("bad", [LIMIT, -LIMIT, np.inf, -np.inf, np.nan])
def test_a_fault_flags_its_row_only(bad):
    x = np.ones((3, 4), F32)
    x[1, 2] = bad
    faults = np.zeros(3, bool)
    y = scalar.add(x, np.zeros(4, F32), faults)
    assert faults.tolist() == [False, True, False]
    assert y[1, 2] == 0
    with pytest.raises(OutOfDomainError):
        scalar.add(x, np.zeros(4, F32))
    assert next_down(LIMIT) == scalar.add(np.array([next_down(LIMIT)]), np.zeros(1, F32))[0]


def test_large_arguments_stay_finite():
    """x³ would overflow; GELU's argument is clamped where the clamp cannot change a bit."""
    with np.errstate(all="raise", under="ignore"):
        y = scalar.gelu_tanh(np.array([next_down(LIMIT), -next_down(LIMIT), 17, -17], F32))
    assert y[0] == next_down(LIMIT)
    assert y[2] == 17
    x = np.concatenate([every(15.5, 40, STRIDE), -every(15.5, 40, STRIDE)])
    inner = scalar.GELU_SCALE * (x + scalar.GELU_CUBIC * ((x * x) * x))
    assert same(scalar.gelu_tanh(x), x * scalar.sigmoid(inner + inner))


@pytest.mark.parametrize("kind", [*scalar.ACTIVATIONS, "soft_cap"])
def test_flush_to_zero_changes_no_bit(kind):
    rng = np.random.default_rng(2)
    x = np.concatenate([canonical(rng, 20000), canonical(rng, 20000, -40, 8)])

    def compute():
        if kind == "soft_cap":
            return np.stack([scalar.soft_cap(x, cap) for cap in (2.0**-40, 0.7, 50, 2.0**49)])
        return scalar.activation(x[:, None], kind, np.zeros(len(x), bool))

    plain = compute()
    with flush_to_zero():
        flushed = compute()
    assert same(plain, flushed)


def test_flush_to_zero_changes_no_bit_of_log_and_products():
    a, b = (canonical(np.random.default_rng(seed), 50000, -40, 10) for seed in (3, 4))
    y = scalar.exp(-np.abs(a))
    plain = scalar.multiply(a, b), scalar.add(a, b), scalar.log1p(y), scalar.log(y)
    with flush_to_zero():
        flushed = scalar.multiply(a, b), scalar.add(a, b), scalar.log1p(y), scalar.log(y)
    assert all(same(p, f) for p, f in zip(plain, flushed, strict=True))


@pytest.mark.parametrize("kind", scalar.ACTIVATIONS)
def test_activations_equal_their_float64_twins(kind):
    """torch's own functions in double, where it has them, judge the twin."""
    x = canonical(np.random.default_rng(6), 20000, -20, 8)
    x = np.minimum(x, F32(30)) if kind == "exp" else x
    exact = ideal.activation(x, kind)
    error = np.abs(scalar.activation(x, kind) - exact) / (np.abs(x) + np.abs(exact) + 2.0**-20)
    assert error.max() < 2.0**-21
    torch = pytest.importorskip("torch")
    functions = {
        "silu": torch.nn.functional.silu,
        "gelu_tanh": lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
        "gelu": torch.nn.functional.gelu,
        "exp": torch.exp,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "softplus": torch.nn.functional.softplus,
        "relu": torch.relu,
        "relu2": lambda t: torch.relu(t) ** 2,
        "signed_root": lambda t: torch.sign(t) * torch.sqrt(torch.clamp(torch.abs(t), min=1e-6)),
    }
    theirs = functions[kind](torch.tensor(x, dtype=torch.float64)).numpy()
    np.testing.assert_allclose(exact, theirs, rtol=1e-8, atol=1e-8)


def test_soft_cap_matches_its_formula():
    x = canonical(np.random.default_rng(5), 20000, -20, 12)
    exact = ideal.soft_cap(x, 30.0)
    y = scalar.soft_cap(x, 30.0)
    assert np.abs(y).max() <= 30
    error = np.abs(y - exact)[exact != 0] / np.abs(exact[exact != 0])
    assert error.max() < 2.0**-21


def test_unknown_kinds_and_caps_are_refused_by_name():
    with pytest.raises(UnsupportedError, match=r"swishish.*\n.*silu, gelu_tanh"):
        scalar.activation(np.zeros((1, 1), F32), "swishish")
    for cap in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UnsupportedError, match="soft cap"):
            scalar.soft_cap(np.zeros(1, F32), cap)
