"""Weights that are part of a file's tensor: the right rows, in the file's codes where it can be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from cortiq.errors import FormatError
from cortiq.models.tensor_pieces import FusedTensor, fused_of, locate_piece, read_piece
from cortiq.models.weights import matrix_weight, vector_weight
from cortiq.numerics.dequantise import embedding_rows
from cortiq.numerics.layouts import LAYOUTS, Weight, floats
from cortiq.numerics.unpacked_weights import half_to_float

QKV = FusedTensor("attn.qkv", ("attn.q", "attn.k", "attn.v"))
KV_B = FusedTensor("attn.kv_b", ("attn.k_b", "attn.v_b"), ("attn.k_b",))
BESIDE = FusedTensor(
    "experts.gate_up", ("experts.gate", "experts.up"), ("experts.gate", "experts.up")
)


@dataclass
class Tensor:
    name: str
    shape: tuple[int, ...]
    type: str
    raw: np.ndarray


def stored(values, kind="F32"):
    values = np.ascontiguousarray(values, np.float32)
    if kind == "F16":
        return Tensor("t", values.shape, kind, values.astype(np.float16).view(np.uint8))
    raw = values.view(np.uint8)
    return Tensor("t", values.shape, kind, raw if values.ndim > 1 else raw.reshape(-1))


def q8_0(random, rows, columns):
    """Random codes with scales of ½ to 1."""
    raw = random.integers(0, 256, (rows, columns // 32, 34), np.uint8)
    raw[..., :2] = np.float16(random.uniform(0.5, 1, (rows, columns // 32, 1))).view(np.uint8)
    return Tensor("t", (rows, columns), "Q8_0", raw.reshape(rows, -1))


def part(fused, name, shapes, tensor, layout="f32"):
    piece = locate_piece(fused, name, shapes, "t")
    return piece, matrix_weight([read_piece(tensor, piece)], shapes[name], layout)


def values_of(weight, shape):
    return floats(weight).reshape(shape)


@pytest.mark.parametrize("kind", ["F32", "F16"])
def test_matrices_below_each_other(kind):
    random = np.random.default_rng(1)
    shapes = {"attn.q": (12, 6), "attn.k": (4, 6), "attn.v": (4, 6)}
    whole = np.float32(np.float16(random.standard_normal((20, 6))))
    for name, rows in zip(shapes, (slice(0, 12), slice(12, 16), slice(16, 20)), strict=True):
        piece, weight = part(QKV, name, shapes, stored(whole, kind))
        assert piece.shape == (20, 6)
        assert np.array_equal(values_of(weight, shapes[name]), whole[rows])
        _, converted = part(QKV, name, shapes, stored(whole, kind), "w16")
        expected = matrix_weight([stored(whole[rows])], shapes[name], "w16")
        assert all(np.array_equal(converted.parts[k], expected.parts[k]) for k in expected.parts)


def test_biases_below_each_other():
    shapes = {"attn.q": (12,), "attn.k": (4,), "attn.v": (4,)}
    whole = np.arange(1, 21, dtype=np.float32)
    piece = locate_piece(QKV, "attn.k", shapes, "t")
    assert piece.shape == (20,)
    weight = vector_weight([read_piece(stored(whole), piece)], (4,))
    assert np.array_equal(floats(weight)[0], whole[12:16])


def test_heads_whose_first_half_is_turned():
    random = np.random.default_rng(2)
    shapes = {"attn.k_b": (3, 8, 5), "attn.v_b": (3, 4, 8)}
    whole = np.float32(random.standard_normal((3, 9, 8)))
    flat = stored(whole.reshape(27, 8))
    piece, keys = part(KV_B, "attn.k_b", shapes, flat)
    assert piece.shape == (3, 9, 8)
    assert np.array_equal(values_of(keys, (3, 8, 5)), whole[:, :5].swapaxes(1, 2))
    _, values = part(KV_B, "attn.v_b", shapes, flat)
    assert np.array_equal(values_of(values, (3, 4, 8)), whole[:, 5:])


def test_matrices_beside_each_other():
    random = np.random.default_rng(3)
    shapes = {"experts.gate": (2, 5, 6), "experts.up": (2, 5, 6)}
    whole = np.float32(random.standard_normal((2, 6, 10)))
    for name, columns in zip(shapes, (slice(0, 5), slice(5, 10)), strict=True):
        piece, weight = part(BESIDE, name, shapes, stored(whole))
        assert piece.shape == (2, 6, 10)
        expected = whole[:, :, columns].swapaxes(1, 2)
        assert np.array_equal(values_of(weight, (2, 5, 6)), expected)


def test_quantised_rows_keep_their_codes():
    random = np.random.default_rng(4)
    shapes = {"attn.q": (8, 64), "attn.k": (4, 64), "attn.v": (4, 64)}
    tensor = q8_0(random, 16, 64)
    _, weight = part(QKV, "attn.v", shapes, tensor)
    assert weight.layout is LAYOUTS["Q8_0"]
    assert np.array_equal(weight.parts["raw"], tensor.raw[12:])
    assert np.shares_memory(weight.parts["raw"], tensor.raw)


def test_quantised_heads_keep_their_codes_and_turned_ones_are_dequantised():
    random = np.random.default_rng(5)
    shapes = {"attn.k_b": (3, 32, 5), "attn.v_b": (3, 4, 32)}
    tensor = q8_0(random, 27, 32)
    scales = half_to_float(tensor.raw[:, :2]).reshape(-1)
    exact = (tensor.raw[:, 2:].view(np.int8) * scales[:, None]).reshape(3, 9, 32)
    _, values = part(KV_B, "attn.v_b", shapes, tensor)
    assert values.layout is LAYOUTS["Q8_0"]
    rows = Weight.from_bytes(values.layout, values.parts["raw"], values.shape)
    got = embedding_rows(rows, np.arange(12)).reshape(3, 4, 32)
    assert np.array_equal(got, exact[:, 5:])
    _, keys = part(KV_B, "attn.k_b", shapes, tensor)
    assert np.array_equal(values_of(keys, (3, 32, 5)), exact[:, :5].swapaxes(1, 2))
    _, converted = part(KV_B, "attn.k_b", shapes, tensor, "w16")
    assert converted.layout is LAYOUTS["w16"] and converted.parts["hi"].shape == (96, 5)


def test_names_are_found_within_their_layer():
    found = fused_of((QKV,), "model.layers.7.attn.k.bias")
    assert found == (QKV, "model.layers.7.", ".bias")
    assert fused_of((QKV,), "model.layers.7.attn.o.weight") is None
    assert fused_of((QKV,), "attn.q.weight") == (QKV, "", ".weight")


@pytest.mark.parametrize("kind", ["F32", "F16"])
def test_tensors_that_make_one_weight_lie_below_each_other(kind):
    taps = np.arange(24, dtype=np.float32).reshape(6, 4)
    weight = vector_weight([stored(part, kind) for part in np.split(taps, 3)], (6, 4))
    assert weight.layout is LAYOUTS["f32"]
    assert np.array_equal(floats(weight), taps)
    with pytest.raises(FormatError, match="quantised"):
        vector_weight([q8_0(np.random.default_rng(6), 2, 32)] * 3, (6, 32))
