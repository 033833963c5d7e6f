"""Norms: error against float64, exact rows, eps, faults, and bits that no subnormal can change."""

from __future__ import annotations

import numpy as np
import pytest
from floats import LIMIT, canonical, flush_to_zero, same_bits

from cortiq.errors import UnsupportedError
from cortiq.numerics import ideal, norms
from cortiq.numerics.contract import F32

WIDTHS = (1, 5, 64, 255, 256, 257, 576, 4099)


def relative(y, exact):
    kept = np.abs(exact) >= 2.0**-39
    return (np.abs(y - exact)[kept] / np.abs(exact)[kept]).max()


@pytest.mark.parametrize("n", WIDTHS)
def test_rms_norm_error(n):
    rng = np.random.default_rng(n)
    x, w = canonical(rng, (20, n), -8, 8), canonical(rng, n, -3, 3)
    for weight in (w, None):
        exact = ideal.rms_norm(x, weight, 1e-6)
        assert relative(norms.rms_norm(x, weight, 1e-6), exact) < norms.RMS_NORM_MAX_ERROR


@pytest.mark.parametrize("n", WIDTHS)
def test_l2_norm_error(n):
    x = canonical(np.random.default_rng(n), (20, n), -8, 8)
    exact = ideal.l2_norm(x, 1e-6)
    assert relative(norms.l2_norm(x, 1e-6), exact) < norms.RMS_NORM_MAX_ERROR


@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("offset", [0, 100])
def test_layer_norm_error(n, offset):
    """An offset far from zero is where E[x²] − m² would lose the variance."""
    rng = np.random.default_rng(n)
    x = (rng.standard_normal((20, n)) + offset).astype(F32)
    w, b = canonical(rng, n, -3, 3), canonical(rng, n, -3, 3)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    r = 1 / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    unit = (np.abs(wide).max(axis=-1, keepdims=True) * r + 1) * np.abs(w) + np.abs(b)
    error = np.abs(norms.layer_norm(x, w, b, 1e-5) - ideal.layer_norm(x, w, b, 1e-5))
    assert (error <= norms.LAYER_NORM_MAX_ERROR * unit).all()
    assert n == 1 or (error > norms.LAYER_NORM_MAX_ERROR / 40 * unit).any()
    assert not np.array_equal(norms.layer_norm(x, w, b, 1e-5), norms.layer_norm(x, w, None, 1e-5))


def test_float64_twins_equal_torch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    x, w, b = rng.standard_normal((5, 40)), rng.standard_normal(40), rng.standard_normal(40)
    rows, weight, bias = map(torch.tensor, (x, w, b))
    pairs = [
        (ideal.rms_norm(x, w, 1e-3), torch.nn.functional.rms_norm(rows, (40,), weight, 1e-3)),
        (ideal.layer_norm(x, w, b, 1e-3), torch.layer_norm(rows, (40,), weight, bias, 1e-3)),
        (ideal.layer_norm(x, w, None, 1e-3), torch.layer_norm(rows, (40,), weight, None, 1e-3)),
    ]
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-12)


def test_rows_of_zeros_give_zeros():
    x = np.zeros((2, 300), F32)
    ones = np.ones(300, F32)
    assert not norms.rms_norm(x, ones, 2.0**-40).any()
    assert not norms.l2_norm(x, 2.0**-40).any()
    assert same_bits(norms.layer_norm(x, ones, ones, 2.0**-40), np.ones((2, 300), F32))


def test_a_constant_row_has_no_variance():
    x = np.full((1, 256), F32(3.25))
    assert not norms.layer_norm(x, np.ones(256, F32), None, 1e-5).any()


def test_powers_of_two_are_exact():
    x = np.array([[2, -2, 2, -2]], F32)
    with_tiny_eps = norms.rms_norm(x, None, 2.0**-40)
    assert same_bits(with_tiny_eps, np.array([[1, -1, 1, -1]], F32))


def test_a_row_is_its_own_whatever_the_batch():
    rng = np.random.default_rng(0)
    x, w = canonical(rng, (7, 3, 100), -4, 4), canonical(rng, 100, -1, 1)
    for function in (
        lambda rows: norms.rms_norm(rows, w, 1e-5),
        lambda rows: norms.layer_norm(rows, w, w, 1e-5),
        lambda rows: norms.l2_norm(rows, 1e-5),
    ):
        assert same_bits(function(x)[4], function(x[4:5])[0])


@pytest.mark.parametrize("eps", [0.0, 1e-13, -1.0, float("nan"), float("inf")])
def test_an_eps_out_of_range_is_refused(eps):
    x = np.ones((1, 4), F32)
    for call in (
        lambda: norms.rms_norm(x, None, eps),
        lambda: norms.layer_norm(x, x[0], None, eps),
        lambda: norms.l2_norm(x, eps),
    ):
        with pytest.raises(UnsupportedError, match=r"from 2\^-40 to below 2\^50"):
            call()


def test_faults_flag_the_row():
    x = np.ones((3, 4), F32)
    x[2, 1] = LIMIT / 4
    faults = np.zeros(3, bool)
    norms.rms_norm(x, np.full(4, LIMIT * F32(0.75), F32), 1e-6, faults)
    assert faults.tolist() == [False, False, True]
    faults[:] = False
    x[0] = np.nan
    norms.layer_norm(x, np.ones(4, F32), None, 1e-6, faults)
    assert faults.tolist() == [True, False, False]


def test_weights_stored_without_their_one():
    w = np.array([0, -1, 0.5, 2.0**-30], F32)
    assert same_bits(norms.offset_weight(w, 1.0), np.array([1, 0, 1.5, 1], F32))


def test_flush_to_zero_changes_no_bit():
    rng = np.random.default_rng(9)
    x = canonical(rng, (60, 300))
    x[:20] = canonical(rng, (20, 300), -40, -30)
    w, b = canonical(rng, 300, -40, -1), canonical(rng, 300, -40, 20)

    def compute():
        faults = np.zeros(60, bool)
        return (
            norms.rms_norm(x, w, 2.0**-40, faults),
            norms.layer_norm(x, w, b, 2.0**-40, faults),
            norms.layer_norm(x, w, None, 2.0**-40, faults),
            norms.l2_norm(x, 2.0**-40, faults),
        )

    plain = compute()
    with flush_to_zero():
        flushed = compute()
    assert all(same_bits(p, f) for p, f in zip(plain, flushed, strict=True))
