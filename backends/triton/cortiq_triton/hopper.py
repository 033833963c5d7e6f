"""Parts of kernels for Hopper GPUs, in Gluon, which names registers, shared memory and the
tensor cores' own instructions.

A program of two warp groups has 128 rows of the weight down and 64 rows of x across. Operands lie
as `operands` puts them, so that 256 columns of a tile are one piece of memory; one piece is on its
way while the one before is multiplied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
)

from cortiq_triton.language import VARYING
from cortiq_triton.matvec import end
from cortiq_triton.scalar import exp2_int


def _named(module: Any, *names: str) -> Any:
    """Return what this version of Triton has under one of these names."""
    for name in names:
        if hasattr(module, name):
            return getattr(module, name)
    raise ImportError(f"{module.__name__} has none of {', '.join(names)}")


load_async = _named(async_copy, "async_load", "async_copy_global_to_shared")
meet = _named(gl, "barrier", "thread_barrier")
Value: TypeAlias = gl.tensor
kernel: Callable[[Callable[..., Any]], Any] = gluon.jit(do_not_specialize=VARYING)
"""Decorate a kernel that is launched over a grid; as `language.kernel`."""
SUMS_LIE = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [8, 1], [16, 64, 32]))
"""Layout of outputs [128, 64]: a thread has 2 rows of the weight and 16 of x."""
PIECES = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=32, element_bitwidth=8, rank=2))
COPIED = gl.constexpr(gl.BlockedLayout([1, 16], [16, 2], [8, 1], [1, 0]))
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
WORDS_COPIED = gl.constexpr(gl.BlockedLayout([4], [32], [8], [0]))
DOWN = gl.constexpr(gl.SliceLayout(1, SUMS_LIE))
ACROSS = gl.constexpr(gl.SliceLayout(0, SUMS_LIE))


@gluon.jit
def copy(shared: Value, source: Value, stage: Value) -> None:
    """Ask for a piece of memory, int8 [rows, 32]."""
    rows: gl.constexpr = shared.shape[1]
    row = gl.arange(0, rows, layout=gl.SliceLayout(1, COPIED))[:, None]
    column = gl.arange(0, 32, layout=gl.SliceLayout(0, COPIED))[None, :]
    load_async(shared.index(stage), source + row * 32 + column)


@gluon.jit
def copy_words(shared: Value, source: Value, stage: Value) -> None:
    """Ask for a piece of memory, int32 [words]."""
    word = gl.arange(0, shared.shape[1], layout=WORDS_COPIED)
    load_async(shared.index(stage), source + word)


@gluon.jit
def landed(LATER: gl.constexpr) -> None:
    """Wait for what was asked for, but for LATER groups, to be there for the tensor cores too."""
    async_copy.wait_group(LATER)
    fence_async_shared()
    meet()


@gluon.jit
def plane_of(xs: Value, step: gl.constexpr, plane: gl.constexpr) -> Value:
    """32 columns of a plane of x, [32, 64]."""
    return xs.slice(step * 128 + plane * 64, 64).permute((1, 0))


@gluon.jit
def nothing(kind: gl.constexpr) -> Value:
    """Zeros for the outputs of a program."""
    return gl.zeros([128, 64], kind, SUMS_LIE)


@gluon.jit
def down_at(facts: Value, place: gl.constexpr) -> Value:
    """Words of the weight's rows, [128, 1]."""
    return facts.slice(place * 128, 128).load(DOWN)[:, None]


@gluon.jit
def across_at(sums: Value, place: gl.constexpr) -> Value:
    """Words of the rows of x, [1, 64]."""
    return sums.slice(place * 64, 64).load(ACROSS)[None, :]


@gluon.jit
def as_float(words: Value) -> Value:
    """Floats of these bits."""
    return words.to(gl.float32, bitcast=True)


@gluon.jit
def finish(
    y: Value, m: Value, n: Value, qe: Value, bias: Value, residual: Value, out: Value,
    faults: Value, M: Value, N: Value, cut: Value, cut2: Value, group: Value, BIASED: gl.constexpr,
    RESIDUAL: gl.constexpr, PARTS: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr,
) -> None:  # fmt: skip
    """End the outputs [BN, BM] from row m and column n on.

    A tile that lies inside needs no conditions.
    """
    y = y.permute((1, 0))
    layout: gl.constexpr = y.type.layout
    whole = (m + BM <= M) & (n + BN <= N)
    m += gl.arange(0, BM, layout=gl.SliceLayout(1, layout))
    n += gl.arange(0, BN, layout=gl.SliceLayout(0, layout))
    if whole:
        y = y * exp2_int(gl.load(qe + m))[:, None]
        inside = gl.full([BM, BN], True, gl.int1, layout)
        end(
            y, m, n, inside, out, faults, bias, residual, M, N, group, cut, cut2, BIASED, RESIDUAL,
            PARTS,
        )  # fmt: skip
    else:
        y = y * exp2_int(gl.load(qe + m, mask=m < M, other=0))[:, None]
        inside = (m < M)[:, None] & (n < N)[None, :]
        end(
            y, m, n, inside, out, faults, bias, residual, M, N, group, cut, cut2, BIASED, RESIDUAL,
            PARTS,
        )  # fmt: skip
