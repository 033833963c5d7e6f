"""Products of many rows with weights in blocks on Hopper GPUs, written in Gluon: sums of the next
columns are under way in the tensor cores while terms of those before are added.

A program of two warp groups has 128 rows of the weight down and 64 rows of x across. Operands lie
as `operands` puts them, so that 256 columns of a tile are one piece of memory; one piece is on its
way while the one before is multiplied. `matmul_blocks` is the general form, with the same bits.
"""

from __future__ import annotations

from typing import TypeAlias

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from cortiq_triton.matmul import tile_place
from cortiq_triton.matvec import end
from cortiq_triton.scalar import exp2_int

WARPS = 8
Value: TypeAlias = gl.tensor
Known: TypeAlias = gl.constexpr
SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [8, 1], [16, 64, 32]))
"""Where outputs [128, 64] lie: a thread has 2 rows of the weight and 16 of x."""
PIECES = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=32, element_bitwidth=8, rank=2))
COPIED = gl.constexpr(gl.BlockedLayout([1, 16], [16, 2], [8, 1], [1, 0]))


@gluon.jit
def copy(shared: Value, source: Value, stage: Value) -> None:
    """Ask for a piece of memory, [rows, 32 columns]."""
    rows: Known = shared.shape[1]
    row = gl.arange(0, rows, layout=gl.SliceLayout(1, COPIED))[:, None]
    column = gl.arange(0, 32, layout=gl.SliceLayout(0, COPIED))[None, :]
    async_copy.async_copy_global_to_shared(shared.index(stage), source + row * 32 + column)


@gluon.jit
def landed() -> None:
    """Wait until everything asked for is there, for the tensor cores too."""
    async_copy.wait_group(0)
    fence_async_shared()
    gl.thread_barrier()


@gluon.jit
def plane_of(xs: Value, step: Known, plane: Known) -> Value:
    """32 columns of a plane of x, [32, 64]."""
    return xs.slice(step * 128 + plane * 64, 64).permute((1, 0))


@gluon.jit
def nothing(kind: Known) -> Value:
    """Zeros for the outputs of a program."""
    return gl.zeros([128, 64], kind, SUMS)


@gluon.jit
def block_dots(ws: Value, xs: Value, step: Known) -> tuple[Value, Value]:
    """Both plane sums of 32 columns, under way."""
    codes, zero = ws.slice(step * 128, 128), nothing(gl.int32)
    high = warpgroup_mma(codes, plane_of(xs, step, 0), zero, use_acc=False, is_async=True)
    low = warpgroup_mma(codes, plane_of(xs, step, 1), zero, use_acc=False, is_async=True)
    return high, low


@gluon.jit
def plane_sum(
    total: Value, ws: Value, xs: Value, plane: Known, x_plane: Known, fresh: Known
) -> Value:
    """A plane of the codes by a plane of x, 256 columns, under way, added to `total` or alone."""
    for step in gl.static_range(8):
        codes = ws.slice(plane * 1024 + step * 128, 128)
        total = warpgroup_mma(
            codes, plane_of(xs, step, x_plane), total, use_acc=(step > 0) | (not fresh),
            is_async=True,
        )  # fmt: skip
    return total


@gluon.jit
def term_of(
    high: Value, low: Value, scale: Value, minimum: Value, total: Value, MINIMUM: Known
) -> Value:
    """t of a block of 32: its integer is below 2³¹."""
    term = (high * 256 + low).to(gl.float32) * scale[:, None]
    if MINIMUM:
        term = term + total[None, :] * minimum[:, None]
    return term


@gluon.jit
def facts_of(
    scale: Value, minimum: Value, sums: Value, block: Known, MINIMUM: Known
) -> tuple[Value, Value, Value]:
    """A block's scale, minimum and RN(Σq); what there is not is the scale."""
    d = gl.load(scale + block * 128)
    least, total = d, d
    if MINIMUM:
        least, total = gl.load(minimum + block * 128), gl.load(sums + block * 64)
    return d, least, total


@gluon.jit
def run_of(
    ws: Value, xs: Value, scale: Value, minimum: Value, sums: Value, MINIMUM: Known
) -> Value:
    """The sum of a run of eight blocks of 32 columns."""
    run = nothing(gl.float32)
    d, least, total = facts_of(scale, minimum, sums, 0, MINIMUM)
    high, low = block_dots(ws, xs, 0)
    for step in gl.static_range(1, 8):
        d_next, least_next, total_next = facts_of(scale, minimum, sums, step, MINIMUM)
        high_next, low_next = block_dots(ws, xs, step)
        high, low = warpgroup_mma_wait(2, [high, low])
        run = run + term_of(high, low, d, least, total, MINIMUM)
        high, low, d, least, total = high_next, low_next, d_next, least_next, total_next
    high, low = warpgroup_mma_wait(0, [high, low])
    return run + term_of(high, low, d, least, total, MINIMUM)


@gluon.jit
def finish(
    y: Value, m: Value, n: Value, qe: Value, bias: Value, residual: Value, out: Value,
    faults: Value, M: Value, N: Value, cut: Value, cut2: Value, group: Value, BIASED: Known,
    RESIDUAL: Known, PARTS: Known,
) -> None:  # fmt: skip
    """End the outputs from row m and column n on."""
    y = y.permute((1, 0))
    layout: Known = y.type.layout
    m += gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
    n += gl.arange(0, 128, layout=gl.SliceLayout(0, layout))
    y = y * exp2_int(gl.load(qe + m, mask=m < M, other=0))[:, None]
    end(
        y, m, n, (m < M)[:, None] & (n < N)[None, :], out, faults, bias, residual, M, N, group,
        cut, cut2, BIASED, RESIDUAL, PARTS,
    )  # fmt: skip


@gluon.jit
def matmul_blocks_of_32(
    codes: Value, scale: Value, minimum: Value, offsets: Value, x: Value, sums: Value, qe: Value,
    bias: Value, residual: Value, out: Value, faults: Value, M: Value, N: Value, runs: Value,
    first: Value, across: Value, cut: Value, cut2: Value, group: Value, BIASED: Known,
    RESIDUAL: Known, PARTS: Known, MINIMUM: Known, GROUP: Known,
) -> None:  # fmt: skip
    """Outputs [M, N] from column `first` on, `across` tiles of them."""
    tm, tn = tile_place(gl.program_id(0), across, (M + 63) // 64, GROUP)
    n = gl.arange(0, 128, layout=gl.SliceLayout(1, SUMS))
    m = gl.arange(0, 64, layout=gl.SliceLayout(0, SUMS))
    codes += tn.to(gl.int64) * runs * 32768
    x += tm.to(gl.int64) * runs * 32768
    scale += tn * runs * 1024 + n
    if MINIMUM:
        minimum += tn * runs * 1024 + n
        sums += tm * runs * 512 + m
    weights = gl.allocate_shared_memory(gl.int8, [2, 1024, 32], PIECES)
    rows = gl.allocate_shared_memory(gl.int8, [2, 1024, 32], PIECES)
    copy(weights, codes, 0)
    copy(rows, x, 0)
    async_copy.commit_group()
    y = nothing(gl.float32)
    for r in range(0, runs):
        stage = r % 2
        landed()
        codes += 32768
        x += 32768
        if r + 1 < runs:
            copy(weights, codes, 1 - stage)
            copy(rows, x, 1 - stage)
            async_copy.commit_group()
        y = y + run_of(weights.index(stage), rows.index(stage), scale, minimum, sums, MINIMUM)
        scale += 1024
        if MINIMUM:
            minimum += 1024
            sums += 512
    finish(
        y, tm * 64, first + tn * 128, qe, bias, residual, out, faults, M, N, cut, cut2, group,
        BIASED, RESIDUAL, PARTS,
    )  # fmt: skip


@gluon.jit
def pairs_dot(pair: Value, bytes_: Value, total: Value, LATE: Known) -> Value:
    """total plus two 16-bit integers by the first or the last two bytes of a word."""
    early: Known = "dp2a.lo.s32.s32 $0, $1, $2, $3;"
    late: Known = "dp2a.hi.s32.s32 $0, $1, $2, $3;"
    return gl.inline_asm_elementwise(
        late if LATE else early, "=r,r,r,r", [pair, bytes_, total], dtype=gl.int32, is_pure=True,
        pack=1,
    )  # fmt: skip


@gluon.jit
def bytes_dot(a: Value, b: Value, total: Value) -> Value:
    """total plus the dot of four signed bytes of two words."""
    return gl.inline_asm_elementwise(
        "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, total], dtype=gl.int32, is_pure=True,
        pack=1,
    )  # fmt: skip


@gluon.jit
def offset_sum(offsets: Value, sums: Value, block: Value, WORDS: Known) -> Value:
    """J = Σ offset·Σq of a block of 256."""
    offsets += block * (WORDS * 128)
    sums += block * (WORDS * 192)
    high, low = nothing(gl.int32), nothing(gl.int32)
    for word in gl.static_range(WORDS):
        four = gl.load(offsets + word * 128)[:, None]
        high = pairs_dot(gl.load(sums + word * 192)[None, :], four, high, False)
        high = pairs_dot(gl.load(sums + word * 192 + 64)[None, :], four, high, True)
        low = bytes_dot(gl.load(sums + word * 192 + 128)[None, :], four, low)
    return high * 256 + low


@gluon.jit
def wide_term(
    high: Value, low: Value, scale: Value, minimum: Value, offsets: Value, sums: Value,
    block: Value, MINIMUM: Known, WORDS: Known,
) -> Value:  # fmt: skip
    """t of a block of 256. |high| < 2²⁸ and |low| ≤ 2²², so that both parts of the sum are exact."""
    rest = ((high & 15) << 8) + low
    dot = (high >> 4).to(gl.float32) * 4096.0 + rest.to(gl.float32)
    term = dot * gl.load(scale + block * 128)[:, None]
    if MINIMUM:
        total = offset_sum(offsets, sums, block, WORDS).to(gl.float32)
        term = term + total * gl.load(minimum + block * 128)[:, None]
    return term


@gluon.jit
def matmul_blocks_of_256(
    codes: Value, scale: Value, minimum: Value, offsets: Value, x: Value, sums: Value, qe: Value,
    bias: Value, residual: Value, out: Value, faults: Value, M: Value, N: Value, runs: Value,
    first: Value, across: Value, cut: Value, cut2: Value, group: Value, BIASED: Known,
    RESIDUAL: Known, PARTS: Known, PLANES: Known, MINIMUM: Known, WORDS: Known, GROUP: Known,
) -> None:  # fmt: skip
    """The same of blocks of 256; codes with sub-scales multiplied in have one or two planes."""
    tm, tn = tile_place(gl.program_id(0), across, (M + 63) // 64, GROUP)
    n = gl.arange(0, 128, layout=gl.SliceLayout(1, SUMS))
    m = gl.arange(0, 64, layout=gl.SliceLayout(0, SUMS))
    codes += tn.to(gl.int64) * runs * (PLANES * 32768)
    x += tm.to(gl.int64) * runs * 32768
    scale += tn * runs * 128 + n
    if MINIMUM:
        minimum += tn * runs * 128 + n
        offsets += tn * runs * (WORDS * 128) + n
        sums += tm * runs * (WORDS * 192) + m
    weights = gl.allocate_shared_memory(gl.int8, [2, PLANES * 1024, 32], PIECES)
    rows = gl.allocate_shared_memory(gl.int8, [2, 1024, 32], PIECES)
    copy(weights, codes, 0)
    copy(rows, x, 0)
    async_copy.commit_group()
    y, run = nothing(gl.float32), nothing(gl.float32)
    high, low = nothing(gl.int32), nothing(gl.int32)
    for r in range(0, runs):
        stage = r % 2
        landed()
        codes += PLANES * 32768
        x += 32768
        if r + 1 < runs:
            copy(weights, codes, 1 - stage)
            copy(rows, x, 1 - stage)
            async_copy.commit_group()
        ws, xs = weights.index(stage), rows.index(stage)
        h = plane_sum(nothing(gl.int32), ws, xs, 0, 0, True)
        l = plane_sum(nothing(gl.int32), ws, xs, PLANES - 1, 1, True)  # noqa: E741
        if PLANES == 2:
            h = plane_sum(warpgroup_mma_wait(8, [h]) * 256, ws, xs, 0, 1, False)
            h = plane_sum(h, ws, xs, 1, 0, False)
        if r > 0:
            run = run + wide_term(
                high, low, scale, minimum, offsets, sums, r - 1, MINIMUM, WORDS
            )
            if r % 8 == 0:
                y = y + run
                run = nothing(gl.float32)
        high, low = warpgroup_mma_wait(0, [h, l])
    y = y + (run + wide_term(
        high, low, scale, minimum, offsets, sums, runs - 1, MINIMUM, WORDS
    ))
    finish(
        y, tm * 64, first + tn * 128, qe, bias, residual, out, faults, M, N, cut, cut2, group,
        BIASED, RESIDUAL, PARTS,
    )  # fmt: skip
