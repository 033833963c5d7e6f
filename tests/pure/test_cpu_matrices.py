"""The CPU backend's stacks of matrices, float weights and embedding rows, bit for bit."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from cortiq.errors import BackendError
from cortiq.numerics.dequantise import embedding_rows
from cortiq.numerics.layouts import LAYOUTS, Weight, decode, floats
from cortiq.numerics.matmul import matmul, matmul_f32
from cortiq.numerics.quantise import Quantised, quantise_rows

cpu_native = pytest.importorskip("cortiq_cpu.native")
try:
    cpu_native.library()
except BackendError as error:
    pytest.skip(f"the native kernels weren't built: {error}", allow_module_level=True)

from cpu_products import (  # noqa: E402
    assert_same_bits,
    expected,
    multiply,
    random_rows,
    random_weight,
    run,
    widths,
)

from cortiq_cpu import matmul_arguments  # noqa: E402
from cortiq_cpu.arguments import OpKind  # noqa: E402
from cortiq_cpu.native import supported_isas  # noqa: E402
from cortiq_cpu.packing import PackedMatrix, aligned  # noqa: E402
from cortiq_cpu.quantised_rows import records_of  # noqa: E402


@pytest.mark.parametrize("isa", supported_isas())
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", ["MXFP4", "w8b256", "f32"])
def test_experts_are_those_chosen(name, shared, isa):
    experts, height, width, rows, slots = 5, 40, 96, 23, 2
    rng = np.random.default_rng(3)
    if name == "f32":
        weight = Weight.from_floats(rng.standard_normal((experts * height, width)).astype("f4"))
    else:
        weight = random_weight(name, experts * height, width)
    choice = np.sort(rng.integers(0, experts - 1, (rows, slots)), axis=1).astype(np.int32)
    choice[:, 1] += 1
    x = rng.standard_normal((rows, 1 if shared else slots, width)).astype(np.float32)
    x[2] = 2.0**49
    out, faults = run_chosen(isa, weight, experts, x, choice)
    flags = np.zeros(rows, np.bool_)
    for row, slot in np.ndindex(choice.shape):
        expert, one = int(choice[row, slot]), np.zeros(1, np.bool_)
        part = weight.rows(expert * height, (expert + 1) * height)
        given = x[row : row + 1, 0 if shared else slot]
        assert_same_bits(out[row, slot], reference_product(given, part, one)[0])
        flags[row] |= one[0]
    assert np.array_equal(faults, flags)


def reference_product(x, weight: Weight, faults):
    if weight.layout.kind == "float":
        return matmul_f32(x, floats(weight), faults)
    return matmul(quantise_rows(x), decode(weight), faults)


def run_chosen(isa, weight, matrices, x, choice):
    """x [rows, slots or 1, K] times the chosen matrices of a stack."""
    matrix = PackedMatrix(weight, "stack", matrices)
    rows, slots = choice.shape
    flat = np.ascontiguousarray(x.reshape(-1, x.shape[-1]))
    given = flat if weight.layout.kind == "float" else records_of(quantise_rows(flat))
    out, faults = np.zeros((rows, slots, matrix.height), np.float32), np.zeros(rows, np.uint8)
    shared = int(x.shape[1] == 1)
    args = matmul_arguments.ChosenMatmulArgs(
        *(matrix.address, given.ctypes.data, choice.ctypes.data, out.ctypes.data, slots, shared)
    )
    run(isa, 2, OpKind.MATMUL_CHOSEN, ctypes.c_int32(rows), faults, args)
    return out, faults.astype(bool)


@pytest.mark.parametrize("isa", supported_isas())
def test_a_matrix_a_head_needs_no_choice(isa):
    weight, x = random_weight("Q8_0", 3 * 20, 64), random_rows(7 * 3, 64)
    matrix, records = PackedMatrix(weight, "heads", 3), records_of(x)
    out, faults = np.zeros((7, 3, 20), np.float32), np.zeros(7, np.uint8)
    args = matmul_arguments.ChosenMatmulArgs(
        matrix.address, records.ctypes.data, None, out.ctypes.data, 3, 0
    )
    run(isa, 2, OpKind.MATMUL_CHOSEN, ctypes.c_int32(7), faults, args)
    for head in range(3):
        rows = Quantised(x.q[head::3], x.e[head::3])
        wanted, _ = expected(rows, weight.rows(20 * head, 20 * head + 20))
        assert_same_bits(np.ascontiguousarray(out[:, head]), wanted)


@pytest.mark.parametrize("isa", supported_isas())
@pytest.mark.parametrize("width", [3, 256, 1000])
def test_float_weights(width, isa):
    rng = np.random.default_rng(width)
    x, w = (np.exp2(rng.uniform(-30, 20, (n, width))).astype("f4") for n in (6, 21))
    x[1] *= -1
    x[2, 0] = w[3, 0] = 2.0**40
    matrix, faults = PackedMatrix(Weight.from_floats(w), "w"), np.zeros(6, np.uint8)
    out, flags = np.zeros((6, 21), np.float32), np.zeros(6, np.bool_)
    multiply(isa, 2, matrix, x, out, faults)
    assert_same_bits(out, matmul_f32(x, w, flags))
    assert np.array_equal(faults.astype(bool), flags)


@pytest.mark.parametrize("name", [n for n in LAYOUTS if n not in ("F32", "F16", "BF16")])
def test_embedding_rows(name):
    for width in widths(name) if name != "f32" else (17,):
        if name == "f32":
            rng = np.random.default_rng(0)
            weight = Weight.from_floats(rng.standard_normal((40, width)).astype(np.float32))
        else:
            weight = random_weight(name, 40, width)
        ids = np.array([0, 39, 16, 17, 3, 3], np.int32)
        matrix = PackedMatrix(weight, name)
        out, faults = aligned(4 * 6 * width).view(np.float32), np.zeros(6, np.uint8)
        args = matmul_arguments.EmbedArgs(matrix.address, ids.ctypes.data, out.ctypes.data, 1)
        run(None, 2, OpKind.EMBED_ROWS, ctypes.c_int32(6), faults, args)
        assert_same_bits(out.reshape(6, width), embedding_rows(weight, ids))


@pytest.mark.parametrize("isa", supported_isas())
@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q8_0", "w8", "w16", "f32"])
def test_the_first_rows_are_a_matrix_over_the_same_panels(name, isa):
    weight, count = random_weight(name if name != "f32" else "w8", 75, 256), 48
    weight.parts.get("scale", np.zeros((75, 1)))[count:] = 2.0**40  # no fault of the first rows'
    if name == "f32":
        weight = Weight.from_floats(floats_of(weight))
    whole = PackedMatrix(weight, "whole")
    first, x = whole.first_rows(count), random_rows(5, 256)
    assert first.data is whole.data and first.nbytes < whole.nbytes
    given = records_of(x) if name != "f32" else np.ldexp(x.q, x.e[:, None]).astype(np.float32)
    out, faults = np.zeros((5, count), np.float32), np.zeros(5, np.uint8)
    multiply(isa, 1, first, given, out, faults)
    flags = np.zeros(5, np.bool_)
    part = weight.rows(0, count)
    wanted = (
        matmul(x, decode(part), flags) if name != "f32" else matmul_f32(given, floats(part), flags)
    )
    assert_same_bits(out, wanted)
    assert np.array_equal(faults.astype(bool), flags)


def floats_of(weight):
    return (weight.parts["codes"] * weight.parts["scale"]).astype(np.float32)
