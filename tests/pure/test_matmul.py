"""The matmul: against exact integers and float64, split every way, and RN(I) from int32 alone."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rational import exact, rounded

from cortiq.errors import UnsupportedError
from cortiq.numerics.contract import OutOfDomainError
from cortiq.numerics.dequantise import dequantise_codes
from cortiq.numerics.ideal_mixers import matmul_error_scale, matmul_ideal
from cortiq.numerics.layouts import LAYOUTS, Weight, decode
from cortiq.numerics.matmul import (
    MATMUL_UNIT_ERROR,
    MAX_COLUMNS,
    finish,
    finish_rows,
    matmul,
    matmul_f32,
    rounding_count,
    row_dot,
    run_sums,
)
from cortiq.numerics.quantise import Quantised, quantise_rows
from cortiq.numerics.unpacked_weights import Codes

FORMATS = ["w8", "w16", "w8b256", "Q8_0", "Q4_1", "Q5_1", "MXFP4", "Q2_K", "Q3_K", "Q4_K", "Q6_K",
           "i4b32", "i8b32m", "e2m1b16", "e4m3b32", "nf4b32"]  # fmt: skip
SCALE_AT = {"Q2_K": 80, "Q3_K": 108, "Q6_K": 208}
WITH_MINIMUM = {"i8b32m", "Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K"}


def random_weight(name, rows, columns, seed=0) -> Codes:
    """Random codes under random scales around 2⁻⁶, of either sign."""
    rng = np.random.default_rng(seed)
    layout = LAYOUTS[name]
    block = layout.block or columns
    scale = (rng.standard_normal((rows, -(-columns // block))) * 2**-6).astype(np.float32)
    if layout.kind == "parts":
        limit = 32512 if name == "w16" else 127
        codes = rng.integers(-limit, limit + 1, (rows, columns)).astype(np.int16)
        return Codes(codes, block, scale)
    blocks = rng.integers(0, 256, (rows, columns // block, layout.block_bytes), np.uint8)
    if layout.words == "f32":
        blocks &= np.uint8(0xFE) if name == "e4m3b32" else np.uint8(0xFF)  # without its NaN
        for at in layout.scales_at:
            blocks[:, :, at : at + 4] = scale.astype("<f4")[..., None].view(np.uint8)
    elif name == "MXFP4":
        blocks[:, :, 0] = rng.integers(110, 140, blocks.shape[:2])
    else:
        offset = SCALE_AT.get(name, 0)
        for at in (offset, offset + 2)[: 2 if name in WITH_MINIMUM else 1]:
            halves = rng.integers(0x0001, 0x3000, blocks.shape[:2]).astype("<u2")
            blocks[:, :, at : at + 2] = halves[..., None].view(np.uint8)
    return decode(Weight.from_bytes(layout, blocks.reshape(rows, -1), (rows, columns)))


def random_rows(rows, columns, seed=1) -> Quantised:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns)) * 2.0 ** rng.integers(-20, 20, (rows, 1))
    return quantise_rows(x.astype(np.float32))


def bits(x):
    return x.view(np.int32)


def term_by_fractions(q, weight, block):
    """t of one block for one row q [K] and a weight of one output, in rational arithmetic."""
    start = block * weight.block
    columns = range(start, min(start + weight.block, len(q)))
    dot = Fraction(sum(int(q[k]) * int(weight.codes[0, k]) for k in columns))
    term = rounded(rounded(dot) * exact(weight.scale[0, block]))
    if weight.minimum is None:
        return term
    low = Fraction(sum(int(q[k]) * int(weight.offsets[0, k // weight.sub]) for k in columns))
    return rounded(term + rounded(rounded(low) * exact(weight.minimum[0, block])))


def matmul_by_fractions(q, e, weight):
    blocks = weight.scale.shape[1]
    total = Fraction(0)
    for start in range(0, blocks, 8):
        run = Fraction(0)
        for block in range(start, min(start + 8, blocks)):
            run = rounded(run + term_by_fractions(q, weight, block))
        total = rounded(total + run)
    return rounded(total * Fraction(2) ** int(e))


def test_the_rational_oracle_rounds_half_to_even():
    cases = [2**24 + 1, 2**24 + 3, 2**25 + 2, 2**25 + 6, -(2**24) - 1, 2**24 - 1, 3]
    expected = [2**24, 2**24 + 4, 2**25, 2**25 + 8, -(2**24), 2**24 - 1, 3]
    assert [rounded(Fraction(case)) for case in cases] == expected
    assert [rounded(Fraction(case, 2**40)) * 2**40 for case in cases] == expected


@pytest.mark.parametrize("name", FORMATS)
def test_equals_the_formula_in_rational_arithmetic(name):
    columns = 2560 if LAYOUTS[name].block in (0, 256) else 416
    x, weight = random_rows(2, columns), random_weight(name, 2, columns)
    y = matmul(x, weight)
    for i, n in np.ndindex(2, 2):
        assert exact(y[i, n]) == matmul_by_fractions(x.q[i], x.e[i], weight.rows(n, n + 1))


@pytest.mark.parametrize("name", FORMATS)
def test_error_against_float64_stays_within_the_stated_bound(name):
    x, weight = random_rows(4, 4096), random_weight(name, 16, 4096)
    error = np.abs(matmul(x, weight) - matmul_ideal(x, weight))
    bound = rounding_count(weight) * MATMUL_UNIT_ERROR * matmul_error_scale(x, weight)
    assert (error <= bound + 2.0**-40).all()
    assert (error > 0).any()


@pytest.mark.parametrize("name", FORMATS)
def test_ideal_uses_the_dequantised_values(name):
    x, weight = random_rows(3, 512), random_weight(name, 5, 512)
    values = dequantise_codes(weight).astype(np.float64)
    product = (x.q * 2.0 ** x.e[:, None]) @ values.T
    size = np.abs(x.q * 2.0 ** x.e[:, None]) @ np.abs(values).T
    ideal = matmul_ideal(x, weight)
    assert (np.abs(ideal - product) <= 2.0**-22 * size).all()


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_alone_equals_the_row_in_a_batch(name):
    x, weight = random_rows(5, 512), random_weight(name, 7, 512)
    whole = matmul(x, weight)
    for i in range(5):
        alone = matmul(Quantised(x.q[i : i + 1], x.e[i : i + 1]), weight)
        assert np.array_equal(bits(alone[0]), bits(whole[i]))


@pytest.mark.parametrize("shards", [2, 3, 4])
@pytest.mark.parametrize("name", FORMATS)
def test_split_along_outputs_changes_no_bit(name, shards):
    x, weight = random_rows(3, 512), random_weight(name, 11, 512)
    edges = np.linspace(0, 11, shards + 1).astype(int)
    parts = [matmul(x, weight.rows(a, b)) for a, b in itertools.pairwise(edges)]
    assert np.array_equal(bits(np.concatenate(parts, axis=1)), bits(matmul(x, weight)))


@pytest.mark.parametrize("shards", [2, 3, 4])
@pytest.mark.parametrize("name", ["w8", "w16"])
def test_split_along_columns_of_row_formats_adds_integers(name, shards):
    x, weight = random_rows(3, 1000), random_weight(name, 6, 1000)
    edges = np.linspace(0, 1000, shards + 1).astype(int)
    total = sum(
        row_dot(x.q[:, a:b], weight.columns(a, b))
        for a, b in reversed(list(itertools.pairwise(edges)))
    )
    assert np.array_equal(bits(finish_rows(total, weight, x.e)), bits(matmul(x, weight)))


@pytest.mark.parametrize("shards", [2, 3, 4])
@pytest.mark.parametrize("name", [n for n in FORMATS if n not in ("w8", "w16")])
def test_split_along_columns_of_block_formats_gathers_run_sums(name, shards):
    run = 8 * LAYOUTS[name].block
    columns = 5 * run - (0 if name == "w8b256" else LAYOUTS[name].block)
    x, weight = random_rows(3, columns), random_weight(name, 4, columns)
    edges = [columns * i // shards // run * run for i in range(shards)] + [columns]
    gathered = [run_sums(x.q[:, a:b], weight.columns(a, b)) for a, b in itertools.pairwise(edges)]
    y = finish(np.concatenate(gathered), x.e)
    assert np.array_equal(bits(y), bits(matmul(x, weight)))


@pytest.mark.parametrize("shards", [2, 3, 4])
def test_split_by_heads_of_the_columns_adds_integers(shards):
    head, heads = 24, 12
    x, weight = random_rows(2, head * heads), random_weight("w8", 5, head * heads)
    owners = [range(start, heads, shards) for start in range(shards)]
    total = 0
    for owned in owners:
        for h in owned:
            cut = slice(h * head, (h + 1) * head)
            total = total + row_dot(x.q[:, cut], weight.columns(cut.start, cut.stop))
    assert np.array_equal(bits(finish_rows(total, weight, x.e)), bits(matmul(x, weight)))


def test_a_shorter_last_block_of_w8b256_counts_as_a_block():
    x, weight = random_rows(2, 576), random_weight("w8b256", 3, 576)
    padded = Codes(np.pad(weight.codes, ((0, 0), (0, 192))), 256, weight.scale)
    q = np.pad(x.q, ((0, 0), (0, 192)), constant_values=999)
    assert np.array_equal(bits(matmul(Quantised(q, x.e), padded)), bits(matmul(x, weight)))


def test_columns_inside_a_block_cannot_be_cut():
    with pytest.raises(ValueError, match="cut a block"):
        random_weight("Q4_K", 2, 512).columns(0, 128)


@pytest.mark.parametrize("sign", [1, -1])
def test_bounds_of_the_integers_at_the_largest_width(sign):
    q = np.full((1, MAX_COLUMNS), 32512, np.int32)
    codes = np.full((1, MAX_COLUMNS), sign * 32512, np.int16)
    weight = Codes(codes, MAX_COLUMNS, np.full((1, 1), 2.0**-20, np.float32))
    y = matmul(Quantised(q, np.zeros(1, np.int32)), weight)
    assert y[0, 0] == np.float32(sign * 32512**2 * MAX_COLUMNS) * np.float32(2.0**-20)


def test_more_columns_than_the_contract_defines_are_refused():
    wide = np.zeros((1, MAX_COLUMNS + 1), np.int32)
    weight = Codes(wide.astype(np.int16), MAX_COLUMNS + 1, np.ones((1, 1), np.float32))
    with pytest.raises(UnsupportedError, match="32769 columns"):
        matmul(Quantised(wide, np.zeros(1, np.int32)), weight)


def test_large_results_are_faults_of_their_row_and_small_ones_plus_zero():
    x = Quantised(np.full((3, 4), 32512, np.int32), np.array([-54, 0, 36], np.int32))
    weight = Codes(np.full((2, 4), -127, np.int16), 4, np.full((2, 1), 0.5, np.float32))
    faults = np.zeros(3, np.bool_)
    y = matmul(x, weight, faults)
    assert faults.tolist() == [False, False, True]
    assert y[0, 0] == -32512 * 4 * 127 * 2.0**-55
    assert not bits(y[2]).any()
    tiny = weight._replace(scale=weight.scale * np.float32(2.0**-12))
    assert not bits(matmul(x, tiny, faults)[0]).any()
    with pytest.raises(OutOfDomainError):
        matmul(x, weight)


def test_zero_rows_and_zero_scales_give_plus_zero():
    weight = random_weight("Q4_1", 4, 64)
    zero = matmul(quantise_rows(-np.zeros((1, 64), np.float32)), weight)
    assert not bits(zero).any()
    empty = weight._replace(scale=-weight.scale * 0, minimum=weight.minimum * 0)
    assert not bits(matmul(random_rows(1, 64), empty)).any()


def test_float_product_is_the_canonical_sum_of_snapped_products():
    x = np.array([[2.0**-30, 3.0, 2.0**-20], [2.0**30, 1.0, -1.0]], np.float32)
    w = np.array([[2.0**-30, 0.25, 2.0**-20], [2.0**25, 1.0, 1.0]], np.float32)
    faults = np.zeros(2, np.bool_)
    y = matmul_f32(x, w, faults)
    # 2⁻⁶⁰ is snapped away; 2⁻⁴⁰ is added to 0.75, which swallows it; 2⁵⁵ is a fault, read as +0.
    assert y.tolist() == [[0.75, 3.03125 + 2.0**-20], [1.25 - 2.0**-20, 0.0]]
    assert faults.tolist() == [False, True]


def test_float_product_is_close_to_float64():
    rng = np.random.default_rng(5)
    x, w = (rng.standard_normal((n, 1000)).astype(np.float32) for n in (3, 7))
    size = np.abs(x).astype(np.float64) @ np.abs(w).astype(np.float64).T
    error = np.abs(matmul_f32(x, w) - x.astype(np.float64) @ w.astype(np.float64).T)
    assert (error <= 13 * 2.0**-24 * size).all()
    assert error.any()


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(FORMATS),
    blocks=st.integers(1, 11),
    outputs=st.integers(1, 5),
    seed=st.integers(0, 2**16),
)
def test_order_of_rows_and_outputs_is_immaterial(name, blocks, outputs, seed):
    columns = blocks * (LAYOUTS[name].block or 40)
    x, weight = random_rows(3, columns, seed), random_weight(name, outputs, columns, seed)
    order = np.random.default_rng(seed).permutation(3)
    shuffled = matmul(Quantised(x.q[order], x.e[order]), weight)
    assert np.array_equal(bits(shuffled), bits(matmul(x, weight)[order]))
