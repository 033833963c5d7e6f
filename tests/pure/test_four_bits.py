"""Four-bit formats: the bytes that a search finds, read by the library that defines them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from test_flush_to_zero import same_when_flushed

from cortiq.errors import UnsupportedError
from cortiq.numerics import weights
from cortiq.numerics.dequantise import dequantise_codes
from cortiq.numerics.four_bits import BLOCKS, four_bit_rows
from cortiq.numerics.layouts import LAYOUTS, Weight, decode
from cortiq.numerics.synthetic import synthetic_weight
from cortiq.numerics.weights import convert, target_layout, weight_values

F32 = np.float32


def normal(*shape, seed=0, tails=False):
    rng = np.random.default_rng(seed)
    values = rng.standard_t(4, shape) if tails else rng.standard_normal(shape)
    return (values * 0.02).astype(F32)


def read(layout, values):
    """What the package `gguf` reads of our bytes, float64."""
    raw = four_bit_rows(layout, values)
    return gguf.dequantize(raw, gguf.GGMLQuantizationType[layout]).astype(np.float64)


def squares(found, values):
    return ((found - values.astype(np.float64)) ** 2).reshape(len(values), -1, 32).sum(axis=-1)


@pytest.mark.parametrize("layout", BLOCKS)
@pytest.mark.parametrize("tails", [False, True])
def test_bytes_mean_to_gguf_what_they_mean_here_and_are_near(layout, tails):
    values = normal(6, 512, tails=tails)
    found = read(layout, values)
    weight = Weight.from_bytes(LAYOUTS[layout], four_bit_rows(layout, values), values.shape)
    assert np.array_equal(dequantise_codes(decode(weight)).astype(np.float64), found + 0.0)
    lows, highs = (values.reshape(6, -1, 32).min(-1), values.reshape(6, -1, 32).max(-1))
    step = (np.maximum(highs, 0) - np.minimum(lows, 0)) / 15
    if layout == "Q4_0":  # half its codes are for the other sign
        step = np.maximum(np.abs(highs), np.abs(lows)) / 7.5
    assert (np.sqrt(squares(found, values) / 32) < 0.4 * step).all()


def test_the_search_beats_scaling_by_the_range_in_every_block():
    """gguf's own Q4_1 takes a block's least and largest value; ours is never worse by more than
    rounding to f16."""
    values = normal(40, 256, tails=True)
    kind = gguf.GGMLQuantizationType.Q4_1
    plain = squares(gguf.dequantize(gguf.quantize(values, kind), kind), values)
    ours = squares(read("Q4_1", values), values)
    assert (ours <= plain * 1.02).all() and ours.sum() < 0.9 * plain.sum()


def test_five_bits_beat_rounding_and_keep_what_rounding_made():
    """gguf's own Q5_0 divides by the largest value; a file of it loses nothing under w4-5."""
    values = normal(40, 640, tails=True)
    kind = gguf.GGMLQuantizationType.Q5_0
    rounded = gguf.dequantize(gguf.quantize(values, kind), kind)
    ours, plain = squares(read("Q5_0", values), values), squares(rounded, values)
    assert (ours <= plain * 1.02).all() and ours.sum() < 0.95 * plain.sum()
    assert np.array_equal(read("Q5_0", rounded), rounded)
    assert not read("Q5_0", np.zeros((2, 64), F32)).any()


def test_rows_of_no_whole_blocks_of_256_get_five_bits():
    names = [target_layout("w4-5", columns).name for columns in (512, 640, 100)]
    assert names == ["Q4_K", "Q5_0", "w8"]
    assert [target_layout("w4", columns).name for columns in (512, 640)] == ["Q4_K", "Q4_1"]


def test_neighbours_and_least_squares_beat_the_nearest_integers(monkeypatch):
    values = normal(20, 512)
    ours = squares(read("Q4_K", values), values).sum()
    monkeypatch.setattr("cortiq.numerics.four_bits.NEIGHBOURS", ((0, 0),))
    monkeypatch.setattr("cortiq.numerics.four_bits.WideBlocks._fit_halves", lambda self: None)
    assert ours < 0.97 * squares(read("Q4_K", values), values).sum()


def test_values_of_q4_1_are_found_again_where_all_its_range_is_used():
    weight = synthetic_weight("Q4_1", "w", 3, (30, 96))
    weight.parts["raw"].reshape(30, 3, 20)[..., 4] = 0xF0  # codes 0 and 15
    values = weight_values(weight, "w")
    assert np.array_equal(read("Q4_1", values), values.astype(np.float64))


@pytest.mark.parametrize("layout", BLOCKS)
def test_zeros_constants_and_every_size_are_kept(layout):
    values = np.zeros((5, 256), F32)
    values[1] = 0.25
    values[2] = -0.25
    values[3] = normal(1, 256)[0] * F32(2.0**-20)
    values[4, 7] = 1.0
    found = read(layout, values)
    assert not found[0].any()
    assert np.abs(found[1:3] - values[1:3]).max() < 0.25 * 2**-5
    assert found[4, 7] == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize("layout", BLOCKS)
@pytest.mark.parametrize("top", [-36, -25, -21, 0, 30])
def test_flushing_to_zero_changes_no_byte(layout, top):
    """Blocks around f16's least scales, with elements down to the least canonical ones."""
    rng = np.random.default_rng(top + 40)
    values = rng.standard_normal((16, 256)) * 2.0 ** rng.uniform(-40, top, (16, 256))
    values[8:] = np.rint(values[8:] * 2.0 ** (4 - top)) * 2.0 ** (top - 4)  # nearly on a grid
    values = values.astype(F32)
    values = np.where(np.abs(values) < 2.0**-40, F32(0), values)
    same_when_flushed(lambda: four_bit_rows(layout, values))


def test_rows_get_the_widest_blocks_that_they_are_whole_of():
    names = {columns: target_layout("w4", columns).name for columns in (512, 576, 40)}
    assert names == {512: "Q4_K", 576: "Q4_1", 40: "w8"}


@pytest.mark.parametrize("columns", [256, 96])
def test_slices_of_rows_change_nothing(columns, monkeypatch):
    source = Weight.from_floats(normal(17, columns))
    whole = convert(source, "w4", "w").parts["raw"]
    monkeypatch.setattr(weights, "SEARCH_ELEMENTS", columns * 3)
    assert np.array_equal(convert(source, "w4", "w").parts["raw"], whole)


@pytest.mark.parametrize("target", ["w4", "w8", "w8b256", "w16", "f32"])
def test_codes_convert_as_their_values_do(target):
    source = synthetic_weight("Q6_K", "w", 1, (5, 512))
    plain = convert(Weight.from_floats(weight_values(source, "w")), target, "w")
    for name, part in convert(source, target, "w").parts.items():
        assert np.array_equal(part, plain.parts[name])


def test_codes_in_the_layout_asked_for_stay_as_they_are():
    source = synthetic_weight("Q4_K", "w", 1, (5, 512))
    assert convert(source, "w4", "w") is source


@pytest.mark.parametrize("columns", [256, 32])
@pytest.mark.parametrize("size", [1e9, 1e15])
def test_scales_beyond_f16_are_refused_by_name(columns, size):
    values = np.where(np.arange(columns)[None] % 2, F32(size), F32(-size))
    with pytest.raises(
        UnsupportedError, match=rf"layers\.3.*1e\+{9 if size < 1e10 else 15:02}"
    ) as caught:
        convert(Weight.from_floats(values), "w4", "layers.3")
    assert "w8" in caught.value.hint
