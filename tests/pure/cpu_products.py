"""Weights, rows and single ops for the tests of the CPU backend's matrix kernels."""

from __future__ import annotations

import ctypes

import numpy as np

from cortiq.numerics.layouts import LAYOUTS, Weight, decode
from cortiq.numerics.matmul import matmul
from cortiq.numerics.quantise import Quantised, quantise_rows
from cortiq_cpu import matmul_arguments
from cortiq_cpu.arguments import OpKind
from cortiq_cpu.native import NativeOp, ThreadPool, op_list
from cortiq_cpu.quantised_rows import records_of

SCALES_AT = {
    "Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "Q8_0": (0,), "TQ1_0": (52,), "TQ2_0": (64,),
}  # fmt: skip
WITH_MINIMUM = {"Q4_1", "Q5_1", "Q4_K", "Q5_K"}


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
    if layout.words == "f32":
        raw &= np.uint8(0xFE) if name == "e4m3b32" else np.uint8(0xFF)  # without its NaN
        for at in layout.scales_at:
            scale = np.ldexp(
                rng.standard_normal(raw.shape[:2]), rng.integers(-45, 20, raw.shape[:2])
            )
            raw[:, :, at : at + 4] = scale.astype("<f4")[..., None].view(np.uint8)
    elif name == "IQ1_M":
        raw[:, :, 55] &= 0xBF  # its scale is finite
    elif name == "MXFP4":
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
    args = matmul_arguments.MatmulArgs(x.ctypes.data, inner, 1)
    args.products[0] = matmul_arguments.MatmulOperand(
        matrix.address, out.ctypes.data, out.strides[0] // 4
    )
    run(isa, threads, OpKind.MATMUL, count, faults, args)


def run(isa, threads, kind, count, faults, args) -> None:
    op = NativeOp(kind, 0, ctypes.addressof(count), faults.ctypes.data, ctypes.addressof(args))
    pool = ThreadPool(threads, isa)
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
    if layout.block == 16:
        return (16, 48, 144, 272, 592)
    return (32, 288, 576) if layout.block == 32 else (256, 2048 + 256)
