"""Conversion of float weights: formulas on rationals, ties, slices, errors."""

from __future__ import annotations

import numpy as np
import pytest
from rational import exact, rounded

from cortiq.errors import FormatError, UnsupportedError
from cortiq.numerics import weights
from cortiq.numerics.ideal_mixers import weight_ideal
from cortiq.numerics.layouts import LAYOUTS, Weight, decode, floats
from cortiq.numerics.weights import CODE_LIMITS, convert


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def as_bf16(values):
    raw = (values.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
    return Weight.from_bytes(LAYOUTS["BF16"], raw, values.shape)


@pytest.mark.parametrize("target", CODE_LIMITS)
def test_codes_and_scales_equal_the_formula_on_rationals(target):
    values = normal(3, 300)
    codes = decode(convert(Weight.from_floats(values), target, "w"))
    limit = CODE_LIMITS[target]
    block = 256 if target == "w8b256" else 300
    assert codes.block == block
    for row, start in ((0, 0), (2, 0), (1, 256 if block == 256 else 0)):
        part = [exact(x) for x in values[row, start : start + block]]
        s = rounded(max(map(abs, part)) / limit)
        assert exact(codes.scale[row, start // block]) == s
        expected = [max(-limit, min(limit, round(rounded(x / s)))) for x in part]
        assert codes.codes[row, start : start + block].tolist() == expected


def test_ties_go_to_even():
    values = np.float32([[127, 0.5, 1.5, 2.5, -0.5, -1.5, 125.5, 126.5]])
    assert decode(convert(Weight.from_floats(values), "w8", "w")).codes.tolist() == [
        [127, 0, 2, 2, 0, -2, 126, 126]
    ]


@pytest.mark.parametrize("target", CODE_LIMITS)
def test_error_is_half_a_step(target):
    values = normal(20, 512) * np.float32(0.02)
    codes = decode(convert(as_bf16(values), target, "w"))
    error = np.abs(weight_ideal(codes) - floats(as_bf16(values)))
    half_step = np.repeat(codes.scale.astype(np.float64), codes.block, axis=1) / 2
    assert (error <= half_step + np.abs(values) * 2.0**-23).all()
    assert error.max() > 0.98 * half_step.min()
    assert np.abs(codes.codes).max() == CODE_LIMITS[target]


@pytest.mark.parametrize("target", [*CODE_LIMITS, "f32"])
def test_slices_change_nothing(target, monkeypatch):
    source = Weight.from_floats(normal(37, 260))
    whole = convert(source, target, "w")
    monkeypatch.setattr(weights, "SLICE_ELEMENTS", 260 * 5)
    sliced = convert(source, target, "w")
    for part in whole.parts:
        assert np.array_equal(whole.parts[part], sliced.parts[part])


def test_float_sources_of_the_same_values_convert_alike():
    values = (normal(4, 64).view(np.int32) & np.int32(-65536)).view(np.float32)
    halves = Weight.from_bytes(LAYOUTS["F16"], values.astype("<f2").view(np.uint8), values.shape)
    for target in CODE_LIMITS:
        ours = [
            decode(convert(source, target, "w"))
            for source in (Weight.from_floats(values), as_bf16(values), halves)
        ]
        for other in ours[1:]:
            assert np.array_equal(ours[0].codes, other.codes)
            assert np.array_equal(ours[0].scale, other.scale)


def test_zero_and_tiny_rows_have_zero_scale_and_codes():
    values = np.zeros((3, 8), np.float32)
    values[1] = 2.0**-60
    values[2, 3] = 2.0**-36
    codes = decode(convert(Weight.from_floats(values), "w8", "w"))
    assert not codes.codes.any()
    assert not codes.scale.view(np.int32).any()


@pytest.mark.parametrize("target", [*CODE_LIMITS, "f32"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**50])
def test_values_that_are_not_finite_name_their_tensor(target, bad):
    values = normal(6, 16)
    values[5, 7] = bad
    with pytest.raises(FormatError, match=r"model\.layers\.3.*row 5"):
        convert(Weight.from_floats(values), target, "model.layers.3")


def test_other_targets_are_refused_with_the_list():
    with pytest.raises(UnsupportedError, match="'q4'") as caught:
        convert(Weight.from_floats(normal(1, 4)), "q4", "w")
    assert "w8, w8b256, w16, f32" in str(caught.value)
