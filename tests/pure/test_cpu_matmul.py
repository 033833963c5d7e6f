"""The CPU backend's matmul kernels, bit for bit against `cortiq.numerics`.

Every layout, on every instruction set of this machine, for row counts that meet every kernel.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from cortiq.errors import BackendError, FormatError
from cortiq.numerics.layouts import LAYOUTS, Weight, decode, embedding_rows, floats
from cortiq.numerics.matmul import matmul, matmul_f32
from cortiq.numerics.quantise import Quantised, quantise_rows

cpu_native = pytest.importorskip("cortiq_cpu.native")
try:
    cpu_native.library()
except BackendError as error:
    pytest.skip(f"the native kernels weren't built: {error}", allow_module_level=True)

from cortiq_cpu import structs  # noqa: E402
from cortiq_cpu.native import Op, Pool, op_list, supported_isas  # noqa: E402
from cortiq_cpu.packing import PackedMatrix, aligned  # noqa: E402
from cortiq_cpu.records import records_of  # noqa: E402

CODED = [name for name in structs.LAYOUT_NAMES if name != "f32"]
SCALES_AT = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "Q8_0": (0,)}
WITH_MINIMUM = {"Q4_1", "Q5_1", "Q4_K", "Q5_K"}
ROWS = (1, 3, 8, 65)


def random_weight(name: str, rows: int, columns: int, seed: int = 0) -> Weight:
    """Random codes under scales of every size that f16 has, of either sign, zeros among them."""
    rng = np.random.default_rng(seed)
    layout = LAYOUTS[name]
    if layout.kind == "parts":
        limit = 127
        codes = rng.integers(-limit, limit + 1, (rows, columns)).astype(np.int8)
        low = rng.integers(-128, 128, (rows, columns)).astype(np.int8)
        blocks = -(-columns // (layout.block or columns))
        scale = np.ldexp(rng.standard_normal((rows, blocks)), rng.integers(-20, 8, (rows, blocks)))
        scale = np.where(rng.random((rows, blocks)) < 0.05, 0, scale).astype(np.float32)
        parts = {"hi": codes, "lo": low} if name == "w16" else {"codes": codes}
        return Weight(layout, (rows, columns), {**parts, "scale": scale})
    raw = rng.integers(0, 256, (rows, columns // layout.block, layout.block_bytes), np.uint8)
    if name == "MXFP4":
        raw[:, :, 0] = rng.integers(60, 150, raw.shape[:2])
    else:
        for at in SCALES_AT.get(name, (0, 2) if name in WITH_MINIMUM else (0,)):
            halves = (
                rng.integers(0, 0x5C00, raw.shape[:2]) | rng.integers(0, 2, raw.shape[:2]) << 15
            )
            raw[:, :, at : at + 2] = halves.astype("<u2")[..., None].view(np.uint8)
    return Weight.from_bytes(layout, raw.reshape(rows, -1), (rows, columns))


def random_rows(rows: int, columns: int, seed: int = 1) -> Quantised:
    """Rows of magnitudes from 2⁻²⁰ to 2²⁰; one is zero, one has the extreme q everywhere."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns)) * np.exp2(rng.integers(-20, 20, (rows, 1)))
    if rows > 2:
        x[1], x[2] = 0, 1.984375 * rng.choice([-1, 1])
    return quantise_rows(x.astype(np.float32))


def multiply(isa, threads, matrix, x, out, faults, inner=1) -> None:
    """Run one matmul op: records (or floats) x into out [rows, N]."""
    count = ctypes.c_int32(len(out) // inner)
    args = structs.MatmulArgs(x.ctypes.data, inner, 1)
    args.products[0] = structs.Product(matrix.address, out.ctypes.data, out.strides[0] // 4)
    run(isa, threads, structs.MATMUL, count, faults, args)


def run(isa, threads, kind, count, faults, args) -> None:
    op = Op(kind, 0, ctypes.addressof(count), faults.ctypes.data, ctypes.addressof(args))
    pool = Pool(threads, isa)
    try:
        pool.run(op_list([op]), 1)
    finally:
        pool.close()


def product(isa, threads, matrix, rows: Quantised):
    out = np.full((len(rows.q), matrix.height), np.nan, np.float32)
    faults = np.zeros(len(rows.q), np.uint8)
    multiply(isa, threads, matrix, records_of(rows), out, faults)
    return out, faults.astype(bool)


def expected(rows: Quantised, weight: Weight):
    faults = np.zeros(len(rows.q), np.bool_)
    return matmul(rows, decode(weight), faults), faults


def assert_same_bits(got, wanted) -> None:
    differing = np.argwhere(got.view(np.uint32) != wanted.view(np.uint32))
    assert not len(differing), f"{len(differing)} bits differ, first at {differing[0]}"


def widths(name: str) -> tuple[int, ...]:
    """Whole blocks, more than one run, and odd tails where the layout allows them."""
    layout = LAYOUTS[name]
    if layout.kind == "parts":
        return (1, 40, 256, 700, 2304 + 17)
    return (32, 288, 576) if layout.block == 32 else (256, 2048 + 256)


@pytest.mark.parametrize("isa", supported_isas())
@pytest.mark.parametrize("name", CODED)
def test_same_bits_as_the_contract(name, isa):
    for width in widths(name):
        for height in (5, 16, 75):
            weight = random_weight(name, height, width, width + height)
            matrix = PackedMatrix(weight, name)
            for rows in ROWS:
                x = random_rows(rows, width, rows)
                wanted, faults = expected(x, weight)
                got, flags = product(isa, 1 + rows % 2, matrix, x)
                assert_same_bits(got, wanted)
                assert np.array_equal(flags, faults)


@pytest.mark.parametrize("isa", supported_isas())
@pytest.mark.parametrize("rows", [5, 16, 300])
def test_more_rows_than_a_pass_and_more_threads_than_panels(isa, rows):
    weight = random_weight("Q4_1", 90, 544)
    x = random_rows(rows, 544)
    wanted, _ = expected(x, weight)
    for threads in (1, 3, 8):
        assert_same_bits(product(isa, threads, PackedMatrix(weight, "w"), x)[0], wanted)


def extreme_weight(name: str, rows: int, columns: int) -> Weight:
    """Every code, sub-scale and offset at the end of its range, row by row one or the other."""
    layout = LAYOUTS[name]
    if layout.kind == "parts":
        sign = np.where(np.arange(rows) % 2, 1, -1)[:, None]
        codes = np.broadcast_to(sign * 127, (rows, columns)).astype(np.int8)
        low = np.broadcast_to(np.where(sign > 0, 127, -128), (rows, columns)).astype(np.int8)
        scale = np.ones((rows, -(-columns // (layout.block or columns))), np.float32)
        parts = {"hi": codes, "lo": low} if name == "w16" else {"codes": codes}
        return Weight(layout, (rows, columns), {**parts, "scale": scale})
    raw = np.full((rows, columns // layout.block, layout.block_bytes), 255, np.uint8)
    raw[::2] = 0
    if name == "Q8_0":
        raw[::2, :, 2:], raw[1::2, :, 2:] = 128, 127
    if name == "Q6_K":
        raw[:, :, 192:208] = 128
    if name == "MXFP4":
        raw[:, :, 0] = 128
    one = np.array([0x3C00], "<u2").view(np.uint8)
    for at in SCALES_AT.get(name, (0, 2) if name in WITH_MINIMUM else (0,)):
        if name != "MXFP4":
            raw[:, :, at : at + 2] = one
    return Weight.from_bytes(layout, raw.reshape(rows, -1), (rows, columns))


@pytest.mark.parametrize("isa", supported_isas())
@pytest.mark.parametrize("name", CODED)
def test_integers_at_their_bounds(name, isa):
    for width in (256, 4096, 32768):
        weight = extreme_weight(name, 18, width)
        q = np.full((9, width), 32512, np.int32)
        q[1], q[2], q[3, ::2] = -32512, np.where(np.arange(width) % 3, 32512, -32512), -32512
        x = Quantised(q, np.full(9, -14, np.int32))
        wanted, _ = expected(x, weight)
        matrix = PackedMatrix(weight, name)
        assert_same_bits(product(isa, 1, matrix, x)[0], wanted)
        many = Quantised(np.concatenate([q, q]), np.full(18, -14, np.int32))
        assert_same_bits(product(isa, 2, matrix, many)[0], np.concatenate([wanted, wanted]))


@pytest.mark.parametrize("isa", supported_isas())
@pytest.mark.parametrize("rows", [1, 4, 40])
@pytest.mark.parametrize("name", ["Q4_1", "Q4_K", "w8"])
def test_faults_are_those_of_their_rows(name, rows, isa):
    weight = random_weight(name, 33, 256)
    x = random_rows(rows, 256)
    x.e[rows // 2] = 36
    x.q[rows // 2] = 32512
    wanted, faults = expected(x, weight)
    assert faults.any()
    got, flags = product(isa, 2, PackedMatrix(weight, name), x)
    assert_same_bits(got, wanted)
    assert np.array_equal(flags, faults)


@pytest.mark.parametrize("isa", supported_isas())
@pytest.mark.parametrize("rows", [1, 30])
def test_several_matrices_meet_the_same_rows(rows, isa):
    names, heights, inner = ("Q5_0", "Q8_0", "Q6_K"), (64, 17, 250), 3
    x = random_rows(rows * inner, 256)
    weights = [random_weight(n, h, 256) for n, h in zip(names, heights, strict=True)]
    matrices = [PackedMatrix(w, "w") for w in weights]
    records, faults = records_of(x), np.zeros(rows, np.uint8)
    out = np.zeros((rows * inner, sum(heights)), np.float32)
    args = structs.MatmulArgs(records.ctypes.data, inner, 3)
    starts = np.cumsum([0, *heights])
    for i, matrix in enumerate(matrices):
        at = out.ctypes.data + 4 * int(starts[i])
        args.products[i] = structs.Product(matrix.address, at, out.shape[1])
    run(isa, 2, structs.MATMUL, ctypes.c_int32(rows), faults, args)
    for i, weight in enumerate(weights):
        wanted, _ = expected(x, weight)
        assert_same_bits(np.ascontiguousarray(out[:, starts[i] : starts[i + 1]]), wanted)


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
    args = structs.ChosenArgs(
        *(matrix.address, given.ctypes.data, choice.ctypes.data, out.ctypes.data, slots, shared)
    )
    run(isa, 2, structs.MATMUL_CHOSEN, ctypes.c_int32(rows), faults, args)
    return out, faults.astype(bool)


@pytest.mark.parametrize("isa", supported_isas())
def test_a_matrix_a_head_needs_no_choice(isa):
    weight, x = random_weight("Q8_0", 3 * 20, 64), random_rows(7 * 3, 64)
    matrix, records = PackedMatrix(weight, "heads", 3), records_of(x)
    out, faults = np.zeros((7, 3, 20), np.float32), np.zeros(7, np.uint8)
    args = structs.ChosenArgs(matrix.address, records.ctypes.data, None, out.ctypes.data, 3, 0)
    run(isa, 2, structs.MATMUL_CHOSEN, ctypes.c_int32(7), faults, args)
    for head in range(3):
        rows = Quantised(x.q[head::3], x.e[head::3])
        wanted, _ = expected(rows, weight.rows(20 * head, 20 * head + 20))
        assert_same_bits(np.ascontiguousarray(out[:, head]), wanted)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_ops_alone_and_together_run_in_order(threads):
    """A chain of products, of which some are left to one worker."""
    weight = random_weight("w8", 64, 64)
    weight.parts["scale"][:] = 2.0**-12
    matrix, rows, faults = PackedMatrix(weight, "w"), ctypes.c_int32(1), np.zeros(1, np.uint8)
    records = [records_of(random_rows(1, 64, seed)) for seed in range(6)]
    outs = [np.zeros((1, 64), np.float32) for _ in records]
    ops, keep = [], []
    for i, (x, out) in enumerate(zip(records, outs, strict=True)):
        args = structs.MatmulArgs(x.ctypes.data, 1, 1)
        args.products[0] = structs.Product(matrix.address, out.ctypes.data, 64)
        keep.append(args)
        pointers = ctypes.addressof(rows), faults.ctypes.data, ctypes.addressof(args)
        ops.append(Op(structs.MATMUL, 0, *pointers, int(i in (1, 2, 5))))
    pool = Pool(threads)
    for _ in range(50):
        pool.run(op_list(ops), len(ops))
    pool.close()
    for seed, out in enumerate(outs):
        assert_same_bits(out, expected(random_rows(1, 64, seed), weight)[0])


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


@pytest.mark.parametrize("name", structs.LAYOUT_NAMES)
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
        args = structs.EmbedArgs(matrix.address, ids.ctypes.data, out.ctypes.data)
        run(None, 2, structs.EMBED_ROWS, ctypes.c_int32(6), faults, args)
        assert_same_bits(out.reshape(6, width), embedding_rows(weight, ids))


@pytest.mark.parametrize("name", ["Q4_0", "Q5_1", "Q4_K", "MXFP4", "w8", "f32"])
def test_a_scale_that_is_no_number_names_the_tensor(name):
    if name == "f32":
        weight = Weight.from_floats(np.array([[1, np.nan]], np.float32))
    else:
        weight = random_weight(name, 20, 256)
        if name == "w8":
            weight.parts["scale"][7] = 2.0**50
        else:
            weight.parts["raw"][7, :2] = 255
    with pytest.raises(FormatError, match=r"blk\.0\.up"):
        PackedMatrix(weight, "blk.0.up")


@pytest.mark.parametrize("name", CODED)
def test_packed_weights_are_no_larger_than_the_file_allows(name):
    weight = random_weight(name, 64, 2048)
    assert PackedMatrix(weight, name).nbytes <= 1.25 * weight.nbytes
