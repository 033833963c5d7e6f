"""Gains formed on the host, shifts and clamps: exact values, bounds, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from floats import LIMIT, canonical, every, same_bits, ulps

from cortiq.errors import FormatError, UnsupportedError
from cortiq.numerics import ideal, scalar
from cortiq.numerics.contract import F32
from cortiq.numerics.scaling import check_gain_form, clamp, gain, shift

X = np.concatenate([canonical(np.random.default_rng(0), 5000), np.zeros(3, F32)])


@pytest.mark.parametrize("form", ["exp", "negative_exp"])
def test_gains_of_logarithms_are_close_to_their_exponential(form):
    """Bases of e from 2⁻⁴⁰ on; below that a gain is +0."""
    w = np.concatenate([-every(2.0**-30, 27, 1013), every(2.0**-30, 34, 1013)])
    sign = -1 if form == "negative_exp" else 1
    formed = gain(w, form)
    assert ulps(sign * formed, np.exp(w.astype(np.float64))).max() <= scalar.EXPONENTIAL_MAX_ULP
    assert same_bits(gain(np.array([-30, -100], F32), form), np.zeros(2, F32))


def test_a_gain_by_softplus_is_close_to_it():
    w = every(2.0**-30, 34, 1013)
    w = np.concatenate([-w, w])
    exact = np.logaddexp(0, w.astype(np.float64))
    assert (np.abs(gain(w, "softplus") - exact) <= 2.0**-22 * np.maximum(exact, 1)).all()


def test_squares_and_magnitudes_are_exact_or_rounded_once():
    w = np.concatenate([X[np.abs(X) < 2.0**24], F32([2.0**-41, -(2.0**-21), -3])])
    square = (w.astype(np.float64) ** 2).astype(F32)
    assert same_bits(gain(w, "square"), np.where(square < 2.0**-40, F32(0), square))
    assert same_bits(gain(w, "magnitude"), np.where(np.abs(w) < 2.0**-40, F32(0), np.abs(w)))


def test_a_plain_gain_is_the_weight():
    assert gain(X) is X


def test_gains_out_of_the_domain_name_their_weight():
    with pytest.raises(FormatError, match=r"layers\.3\.A_log: holds a logarithm"):
        gain(np.array([1, 35], F32), "exp", "layers.3.A_log")
    with pytest.raises(FormatError, match=r"sqk: holds a number whose square"):
        gain(np.array([1, -(2.0**25)], F32), "square", "sqk")
    with pytest.raises(
        UnsupportedError, match="forms: plain, exp, negative_exp, negative, softplus, square"
    ):
        check_gain_form("log")


def test_a_decay_above_nothing_is_refused():
    w = np.array([-3, -(2.0**-41), 0], F32)
    assert same_bits(gain(w, "negative"), np.array([-3, 0, 0], F32))
    with pytest.raises(FormatError, match=r"blk\.0\.ssm_a: holds the decay 0\.5"):
        gain(np.array([-1, 0.5], F32), "negative", "blk.0.ssm_a")
    with pytest.raises(FormatError, match="nan"):
        gain(np.array([np.nan], F32), "negative")


@pytest.mark.parametrize("amount", [1.0, -0.3, 2.0**-40, 1e15])
def test_a_shift_is_one_rounded_sum(amount):
    faults = np.zeros(len(X), bool)
    y = shift(X[:, None], amount, faults)[:, 0]
    exact = X.astype(np.float64) + np.float64(F32(amount))
    assert np.array_equal(faults, np.abs(exact.astype(F32)) >= LIMIT)
    kept = ~faults & (np.abs(exact) >= 2.0**-40)
    assert same_bits(y[kept], exact[kept].astype(F32))
    assert not y[~kept].view(np.uint32).any()


@pytest.mark.parametrize(("low", "high"), [(-7.0, 7.0), (None, 0.7), (0.0, None), (None, None)])
def test_a_clamp_is_exact(low, high):
    y = clamp(X, low, high)
    assert np.array_equal(y.astype(np.float64), ideal.clamp(X, low, high))
    assert not np.signbit(y[y == 0]).any()


@pytest.mark.parametrize(
    "bounds", [(2.0, 1.0), (float("nan"), None), (None, 2.0**-41), (-1e300, 0)]
)
def test_bounds_without_a_meaning_are_refused(bounds):
    with pytest.raises(UnsupportedError, match=r"ascend|out of range"):
        clamp(X, *bounds)
