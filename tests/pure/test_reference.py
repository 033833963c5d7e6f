"""The reference's tiled kernels give the bits of the contract's plain definitions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cortiq.numerics import attention, matmul
from cortiq.numerics.layouts import LAYOUTS, Weight, decode
from cortiq.numerics.quantise import Quantised, quantise_rows
from cortiq.numerics.synthetic import synthetic_weight
from cortiq.numerics.weights import convert
from cortiq_reference.attention import TileGeometry, attend
from cortiq_reference.matrix import TILE_ROWS, MatrixStack, TiledMatrix

F = np.float32
BLOCK_LAYOUTS = [name for name, layout in LAYOUTS.items() if layout.kind == "blocks"]


def rows(rng, *shape, amplitude=1.0):
    return quantise_rows((rng.standard_normal(shape) * amplitude).astype(F))


def differing(a, b):
    return int((a.view(np.int32) != b.view(np.int32)).sum())


def random_blocks(rng, layout, shape):
    """Random bytes with scales that stay finite: exponent bits of every f16 cut down."""
    raw = rng.integers(0, 256, (shape[0], layout.row_bytes(shape[1])), dtype=np.uint8)
    if layout.words == "f32":
        return synthetic_weight(layout.name, "w", 3, shape)
    if layout.name == "MXFP4":
        raw[:, :: layout.block_bytes] = rng.integers(110, 130, raw[:, :: layout.block_bytes].shape)
    weight = Weight.from_bytes(layout, raw, shape)
    for _ in range(20):
        try:
            decode(weight)
            return weight
        except Exception:
            raw &= rng.integers(0, 256, raw.shape, dtype=np.uint8) | np.uint8(0x0F)
    raise AssertionError("no finite blocks found")


@pytest.mark.parametrize("name", BLOCK_LAYOUTS)
@pytest.mark.parametrize("threads", [1, 2])
def test_block_layouts_multiply_as_defined(name, threads):
    rng = np.random.default_rng(7)
    weight = random_blocks(rng, LAYOUTS[name], (70, 768))
    x = rows(rng, TILE_ROWS + 3, 768)
    pool = ThreadPoolExecutor(threads) if threads > 1 else None
    expected = matmul.matmul(x, decode(weight), np.zeros(len(x.q), np.bool_))
    got = TiledMatrix(weight, name, pool).multiply(x, np.zeros(len(x.q), np.bool_))
    assert np.count_nonzero(expected) > expected.size // 2
    assert differing(got, expected) == 0


@pytest.mark.parametrize("name", ["w8", "w16", "w8b256", "f32"])
@pytest.mark.parametrize("width", [256, 320, 1000])
def test_own_layouts_multiply_as_defined(name, width):
    rng = np.random.default_rng(8)
    values = rng.standard_normal((40, width)).astype(F)
    weight = convert(Weight.from_floats(values), name, "test")
    faults = np.zeros(9, np.bool_)
    x = (rng.standard_normal((9, width)) * 3).astype(F)
    if name == "f32":
        expected = matmul.matmul_f32(x, values, faults)
        got = TiledMatrix(weight, name, None).multiply(x, faults)
    else:
        quantised = quantise_rows(x)
        expected = matmul.matmul(quantised, decode(weight), faults)
        got = TiledMatrix(weight, name, None).multiply(quantised, faults)
    assert differing(got, expected) == 0


def test_a_stack_multiplies_each_row_with_its_own_choice():
    rng = np.random.default_rng(9)
    weight = convert(
        Weight.from_floats(rng.standard_normal((4 * 24, 64)).astype(F)), "w16", "experts"
    )
    stack = MatrixStack(weight, 4, "experts", None)
    x = rows(rng, 6, 64)
    choice = rng.permuted(np.tile(np.arange(4, dtype=np.int32), (6, 1)), axis=1)[:, :2]
    got = stack.multiply(x, choice, np.zeros(6, np.bool_))
    for row, slot in np.ndindex(choice.shape):
        one = Quantised(x.q[row : row + 1], x.e[row : row + 1])
        expert = decode(weight.rows(24 * choice[row, slot], 24 * (choice[row, slot] + 1)))
        expected = matmul.matmul(one, expert, np.zeros(1, np.bool_))
        assert differing(got[row, slot], expected[0]) == 0


@pytest.mark.parametrize("geometry", [(4, 2, 16, 16), (6, 1, 8, 12), (3, 3, 32, 8)])
@pytest.mark.parametrize("length", [9, 70, 1300])
@pytest.mark.parametrize(("window", "cap"), [(0, None), (5, 30.0), (64, None), (700, 50.0)])
@pytest.mark.parametrize("sinks", [False, True])
def test_attention_attends_as_defined(geometry, length, window, cap, sinks):
    heads, kv_heads, key_dim, value_dim = geometry
    rng = np.random.default_rng(length)
    q, k = rows(rng, 9, heads, key_dim, amplitude=2), rows(rng, length, kv_heads, key_dim)
    scales = 10.0 ** rng.uniform(-3, 1, (length, kv_heads, 1))
    v = quantise_rows((rng.standard_normal((length, kv_heads, value_dim)) * scales).astype(F))
    positions = np.arange(length - 9, length, dtype=np.int32)
    logits = (rng.standard_normal(heads) * 3).astype(F) if sinks else None
    expected = attention.attend(
        q, k, v, positions, key_dim**-0.5, window=window, soft_cap=cap, sinks=logits
    )
    how = TileGeometry(attention.scoring(key_dim**-0.5, cap), window or None, logits)
    got, _ = attend(q, k, v, positions, how, np.zeros(9, np.bool_))
    assert np.count_nonzero(expected) == expected.size
    assert differing(got, expected) == 0
