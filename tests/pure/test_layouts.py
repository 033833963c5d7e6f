"""Every layout against the `gguf` package, on synthetic tensors with extreme codes and scales."""

from __future__ import annotations

import hashlib

import gguf
import numpy as np
import pytest

from cortiq.errors import FormatError, RequestError
from cortiq.numerics import grid_tables, gridquants
from cortiq.numerics.dequantise import dequantise_codes, embedding_rows
from cortiq.numerics.layouts import GGML_LAYOUTS, LAYOUTS, Weight, decode, floats, unpack
from cortiq.numerics.soundness import check_finite
from cortiq.numerics.unpacked_weights import bfloat_to_float, half_to_float

BLOCK_LAYOUTS = [layout for layout in GGML_LAYOUTS.values() if layout.kind == "blocks"]
HALVES_AT = {
    "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "IQ4_NL": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "MXFP4": [],
    "IQ4_XS": [0], "IQ3_XXS": [0], "IQ3_S": [0], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0],
    "IQ1_S": [0], "IQ1_M": [], "TQ1_0": [52], "TQ2_0": [64],
}  # fmt: skip
EXTREME_HALVES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00, 0x1234]


def extreme_blocks(layout, seed=0):
    """Random blocks, blocks of all-0x00, 0xFF, 0x80, 0x7F bytes, each under every extreme scale."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (20, len(EXTREME_HALVES), layout.block_bytes), np.uint8)
    for row, byte in enumerate((0x00, 0xFF, 0x80, 0x7F, 0x0F, 0xF0)):
        blocks[row] = byte
    for number, offset in enumerate(HALVES_AT[layout.name]):
        halves = np.roll(EXTREME_HALVES, 3 * number).astype("<u2")
        blocks[:, :, offset : offset + 2] = halves.view(np.uint8).reshape(-1, 2)
    if layout.name == "IQ1_M":
        blocks[:, :, 55] &= 0xBF  # its f16 lies in the upper nibbles of four words
    if layout.name == "MXFP4":
        blocks[:, :, 0] = [88, 89, 127, 128, 129, 120, 90, 170, 100]
    return blocks.reshape(len(blocks), -1)


def weight_of(layout, raw):
    columns = raw.shape[1] // layout.block_bytes * layout.block
    return Weight.from_bytes(layout, raw, (len(raw), columns))


def oracle(layout, raw):
    return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(layout.ggml_type))


@pytest.mark.parametrize("layout", BLOCK_LAYOUTS, ids=lambda layout: layout.name)
def test_values_equal_the_gguf_packages(layout):
    raw = extreme_blocks(layout)
    ours = dequantise_codes(decode(weight_of(layout, raw)))
    assert np.array_equal(ours, oracle(layout, raw))
    assert np.count_nonzero(ours) > ours.size // 2
    assert not np.signbit(ours[ours == 0]).any()


@pytest.mark.parametrize("layout", BLOCK_LAYOUTS, ids=lambda layout: layout.name)
def test_sizes_and_type_numbers_equal_the_gguf_packages(layout):
    kind = gguf.GGMLQuantizationType(layout.ggml_type)
    assert kind.name == layout.name
    assert gguf.GGML_QUANT_SIZES[kind] == (layout.block, layout.block_bytes)


def test_every_type_that_models_are_offered_in_is_here():
    names = "F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL MXFP4 "
    names += "IQ4_XS IQ3_XXS IQ3_S IQ2_XXS IQ2_XS IQ2_S IQ1_S IQ1_M TQ1_0 TQ2_0"
    assert {layout.name for layout in GGML_LAYOUTS.values()} == set(names.split())
    assert {"w8", "w16", "w8b256", "f32"} < set(LAYOUTS)


@pytest.mark.parametrize("layout", BLOCK_LAYOUTS, ids=lambda layout: layout.name)
def test_embedding_rows_are_the_tables_rows(layout):
    raw = extreme_blocks(layout)
    ids = np.array([3, 0, 19, 3])
    rows = embedding_rows(weight_of(layout, raw), ids)
    assert np.array_equal(rows, oracle(layout, raw)[ids])


@pytest.mark.parametrize("layout", BLOCK_LAYOUTS, ids=lambda layout: layout.name)
def test_row_slices_are_views_and_decode_alike(layout):
    weight = weight_of(layout, extreme_blocks(layout))
    part = weight.rows(4, 9)
    assert np.shares_memory(part.parts["raw"], weight.parts["raw"])
    whole, sliced = decode(weight).rows(4, 9), decode(part)
    assert np.array_equal(whole.codes, sliced.codes)
    assert np.array_equal(whole.scale, sliced.scale)


@pytest.mark.parametrize("name", gridquants.VALUES)
def test_grids_are_the_gguf_packages(name):
    theirs = getattr(gguf.quants, name)
    theirs.init_grid()
    ours = gridquants.grid(name)
    assert np.array_equal(ours, np.reshape(theirs.grid, theirs.grid_shape))
    assert hashlib.sha256(ours.tobytes()).hexdigest() == grid_tables.SHA256[name]


def test_unpacked_fields_keep_small_codes_and_integer_sub_scales_apart():
    layout = LAYOUTS["Q6_K"]
    fields = unpack(weight_of(layout, extreme_blocks(layout)))
    assert fields.codes.dtype == np.int8
    assert fields.sub_scales is not None
    assert fields.sub_scales.dtype == np.int8
    assert (fields.codes.min(), fields.codes.max()) == (-32, 31)
    assert (fields.sub_scales.min(), fields.sub_scales.max()) == (-128, 127)


def test_all_halves_decode_exactly():
    halves = np.arange(65536, dtype="<u2")
    ours = half_to_float(halves.view(np.uint8).reshape(-1, 2))[:, 0]
    expected = halves.view(np.float16).astype(np.float32)
    number = ~np.isnan(expected)
    assert np.array_equal(ours[number].view(np.int32), expected[number].view(np.int32))
    assert np.array_equal(np.isnan(ours), ~number)


def test_all_bfloats_decode_exactly():
    values = np.arange(65536, dtype="<u2")
    ours = bfloat_to_float(values.view(np.uint8).reshape(1, -1))[0]
    assert np.array_equal(ours.view(np.uint32), values.astype(np.uint32) << 16)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_float_layouts_give_exact_snapped_values(name):
    values = np.array([[1.5, -0.0, 2.0**-41, -(2.0**-14)], [0.0, 3.0, -7.25, 2.0**15]], np.float32)
    if name == "BF16":
        raw = (values.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
    else:
        raw = values.astype({"F32": "<f4", "F16": "<f2"}[name]).view(np.uint8)
    weight = Weight.from_bytes(LAYOUTS[name], raw, (2, 4))
    expected = np.where(np.abs(values) < 2.0**-40, np.float32(0), values)
    assert np.array_equal(floats(weight).view(np.int32), expected.view(np.int32))
    assert np.array_equal(embedding_rows(weight, np.array([1])), expected[1:])


@pytest.mark.parametrize("layout", BLOCK_LAYOUTS, ids=lambda layout: layout.name)
def test_scales_that_are_not_finite_name_their_tensor(layout):
    raw = extreme_blocks(layout)
    check_finite(weight_of(layout, raw), "blk.0.sound")
    bad = {"MXFP4": [(0, b"\xff")], "IQ1_M": [(53, b"\xff\x00\x7f")]}.get(layout.name)
    for offset, value in bad or [
        (at, half) for at in HALVES_AT[layout.name] for half in (b"\x00\x7c", b"\x01\xfe")
    ]:
        spoiled = raw.copy()
        spoiled[7, layout.block_bytes + offset :][: len(value)] = np.frombuffer(value, np.uint8)
        for call in (decode, check_finite):
            with pytest.raises(FormatError, match=r"blk\.3\.ffn.*row 7"):
                call(weight_of(layout, spoiled), "blk.3.ffn")


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 2.0**50])
def test_float_values_outside_the_domain_name_their_tensor(value):
    values = np.ones((5, 8), np.float32)
    values[4, 2] = value
    with pytest.raises(FormatError, match=r"output\.weight.*row 4"):
        check_finite(Weight.from_floats(values), "output.weight")


def test_wrong_sizes_and_ids_are_our_errors():
    with pytest.raises(FormatError, match="whole blocks of 256"):
        LAYOUTS["Q4_K"].row_bytes(576)
    with pytest.raises(FormatError, match="143 bytes"):
        Weight.from_bytes(LAYOUTS["Q4_K"], np.zeros(143, np.uint8), (1, 256))
    table = Weight.from_floats(np.ones((4, 2), np.float32))
    for bad in (-1, 4):
        with pytest.raises(RequestError, match=f"token id {bad} is outside"):
            embedding_rows(table, np.array([0, bad]))
