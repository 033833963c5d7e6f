"""The CPU backend's matmul kernels, bit for bit against `cortiq.numerics`.

Every layout, on every instruction set of this machine, for row counts that meet every kernel.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from cortiq.errors import BackendError, FormatError
from cortiq.numerics.layouts import LAYOUTS, Weight
from cortiq.numerics.quantise import Quantised

cpu_native = pytest.importorskip("cortiq_cpu.native")
try:
    cpu_native.library()
except BackendError as error:
    pytest.skip(f"the native kernels weren't built: {error}", allow_module_level=True)

from cpu_products import (  # noqa: E402
    SCALES_AT,
    WITH_MINIMUM,
    assert_same_bits,
    expected,
    product,
    random_rows,
    random_weight,
    run,
    widths,
)

from cortiq_cpu import matmul_arguments  # noqa: E402
from cortiq_cpu.arguments import OpKind  # noqa: E402
from cortiq_cpu.native import NativeOp, ThreadPool, op_list, supported_isas  # noqa: E402
from cortiq_cpu.packing import PackedMatrix  # noqa: E402
from cortiq_cpu.quantised_rows import records_of  # noqa: E402
from cortiq_cpu.repacking import NATIVE  # noqa: E402

CODED = [name for name, layout in LAYOUTS.items() if layout.kind != "float"]
ROWS = (1, 3, 8, 65)


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
    if name.startswith("i8b32"):
        raw[::2], raw[1::2] = 128, 127
    if name == "e4m3b32":
        # 14·2¹⁴, and 15·2⁷, the largest of the lower part; then both parts in one block
        raw[::4], raw[1::4], raw[2::4], raw[3::4] = 254, 126, 71, 71 + 128
        raw[4:, ::3, 4::2] ^= 128
        raw[4:, :, 5::4] ^= 57
    if name in ("MXFP4", "e2m1b16"):
        raw[::2] = 0x77  # 6, the largest; 0xFF is -6
    if name == "MXFP4":
        raw[:, :, 0] = 128
    if name == "IQ1_M":
        raw[:, :, 49::2] &= 0x0F
        raw[:, :, 53], raw[:, :, 55] = raw[:, :, 53] | 0xC0, raw[:, :, 55] | 0x30  # d = 1
    for at in layout.scales_at if layout.words == "f32" else ():
        raw[:, :, at : at + 4] = np.array([1], "<f4").view(np.uint8)
    one = np.array([0x3C00], "<u2").view(np.uint8)
    for at in SCALES_AT.get(name, (0, 2) if name in WITH_MINIMUM else (0,)):
        if layout.words == "f16" and name != "IQ1_M":
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
        for row in range(4):  # alone it meets kernels of its own
            alone = Quantised(q[row : row + 1], x.e[row : row + 1])
            assert_same_bits(product(isa, 1, matrix, alone)[0], wanted[row : row + 1])


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
    args = matmul_arguments.MatmulArgs(records.ctypes.data, inner, 3)
    starts = np.cumsum([0, *heights])
    for i, matrix in enumerate(matrices):
        at = out.ctypes.data + 4 * int(starts[i])
        args.products[i] = matmul_arguments.MatmulOperand(matrix.address, at, out.shape[1])
    run(isa, 2, OpKind.MATMUL, ctypes.c_int32(rows), faults, args)
    for i, weight in enumerate(weights):
        wanted, _ = expected(x, weight)
        assert_same_bits(np.ascontiguousarray(out[:, starts[i] : starts[i + 1]]), wanted)


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
        args = matmul_arguments.MatmulArgs(x.ctypes.data, 1, 1)
        args.products[0] = matmul_arguments.MatmulOperand(matrix.address, out.ctypes.data, 64)
        keep.append(args)
        pointers = ctypes.addressof(rows), faults.ctypes.data, ctypes.addressof(args)
        ops.append(NativeOp(OpKind.MATMUL, 0, *pointers, int(i in (1, 2, 5))))
    pool = ThreadPool(threads)
    for _ in range(50):
        pool.run(op_list(ops), len(ops))
    pool.close()
    for seed, out in enumerate(outs):
        assert_same_bits(out, expected(random_rows(1, 64, seed), weight)[0])


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


@pytest.mark.parametrize("name", [name for name in CODED if name not in NATIVE])
def test_packed_weights_are_no_larger_than_the_file_allows(name):
    weight = random_weight(name, 64, 2048)
    assert PackedMatrix(weight, name).nbytes <= 1.25 * weight.nbytes
