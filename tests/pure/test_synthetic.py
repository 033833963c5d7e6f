"""Synthetic weights: slices equal the whole, names and seeds matter, sizes stay sane."""

from __future__ import annotations

import numpy as np
import pytest

from cortiq.errors import UnsupportedError
from cortiq.numerics.dequantise import dequantise_codes
from cortiq.numerics.layouts import decode, floats
from cortiq.numerics.soundness import check_finite
from cortiq.numerics.synthetic import (
    BLOCK_RECIPES,
    half_bits,
    random_bytes,
    synthetic_vector,
    synthetic_weight,
)

LAYOUT_NAMES = ["w8", "w16", "w8b256", "f32", *BLOCK_RECIPES]


def values(weight):
    if weight.layout.kind == "float":
        return floats(weight)
    return dequantise_codes(decode(weight))


@pytest.mark.parametrize("layout", LAYOUT_NAMES)
def test_rows_made_alone_equal_rows_of_the_whole(layout):
    whole = synthetic_weight(layout, "blk.0.up", 7, (9, 512))
    part = synthetic_weight(layout, "blk.0.up", 7, (9, 512), rows=(4, 6))
    assert part.shape == (2, 512)
    for name, raw in part.parts.items():
        assert np.array_equal(raw, whole.parts[name][4:6])


@pytest.mark.parametrize("layout", LAYOUT_NAMES)
def test_name_seed_and_row_select_other_weights(layout):
    one = values(synthetic_weight(layout, "a", 7, (2, 512)))
    others = [("b", 7), ("a", 8), ("a", 7 + (1 << 32))]
    for name, seed in others:
        other = values(synthetic_weight(layout, name, seed, (2, 512)))
        assert np.mean(one == other) < 0.3
    assert np.mean(one[0] == one[1]) < 0.3


@pytest.mark.parametrize("columns", [256, 4096, 14336])
@pytest.mark.parametrize("layout", LAYOUT_NAMES)
def test_a_product_keeps_the_size_of_activations(layout, columns):
    weight = synthetic_weight(layout, "w", 1, (24, columns))
    check_finite(weight, "w")
    product = values(weight).astype(np.float64).std() * columns**0.5
    assert 0.6 < product < 1.7
    mean = values(weight).astype(np.float64).mean() * columns**0.5
    assert abs(mean) < 0.25


@pytest.mark.parametrize("layout", LAYOUT_NAMES)
def test_gain_is_a_power_of_two(layout):
    plain, doubled = (
        values(synthetic_weight(layout, "w", 1, (4, 512), gain=gain)).std() for gain in (0, 3)
    )
    assert 7.5 < doubled / plain < 8.5


def test_codes_cover_their_range_and_stay_inside():
    w8 = synthetic_weight("w8", "w", 1, (64, 256)).parts["codes"]
    assert (w8.min(), w8.max()) == (-127, 127)
    w16 = decode(synthetic_weight("w16", "w", 1, (64, 256))).codes
    assert 32000 < np.abs(w16.astype(np.int32)).max() <= 32512


def test_bytes_are_sixteen_to_a_counter():
    row = random_bytes("w", 5, (3, 4), 40)
    assert np.array_equal(random_bytes("w", 5, (0, 8), 24)[3], row[0, :24])
    assert abs(random_bytes("w", 5, (0, 64), 4096).astype(float).mean() - 127.5) < 1


@pytest.mark.parametrize("exponent", range(-24, 15))
def test_half_bits_are_the_truncated_f16(exponent):
    for numerator in (1 << exponent + 30, (3 << exponent + 30) >> 1, (1 << exponent + 31) - 1):
        half = np.array(half_bits(numerator), np.uint16).view(np.float16)
        exact = numerator * 2.0**-30
        step = float(np.spacing(half))
        assert float(half) <= exact < float(half) + step


def test_vectors_lie_around_their_centre():
    norm, bias = synthetic_vector("norm", 1, 500), synthetic_vector("norm", 1, 500, 0.0)
    assert np.array_equal(norm - np.float32(1), bias)
    assert np.abs(bias).max() <= 0.125
    assert abs(norm.mean() - 1) < 0.02


def test_layouts_without_a_formula_are_refused_with_the_list():
    with pytest.raises(UnsupportedError, match="Q6_K"):
        synthetic_weight("BF16", "w", 1, (1, 256))
