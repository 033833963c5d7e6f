"""Products of many rows with weights in blocks on Hopper GPUs, written in Gluon: sums of the next
columns are under way in the tensor cores while terms of those before are added.

A program of two warp groups has 128 rows of the weight down and 64 rows of x across. Operands lie
as `operands` puts them, so that 256 columns of a tile are one piece of memory; one piece is on its
way while the one before is multiplied. `matmul_blocks` is the general form, with the same bits.
"""

from __future__ import annotations

from typing import Any, TypeAlias

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


def _named(module: Any, *names: str) -> Any:
    """What versions of Triton have by one of these names."""
    for name in names:
        if hasattr(module, name):
            return getattr(module, name)
    raise ImportError(f"{module.__name__} has none of {', '.join(names)}")


load_async = _named(async_copy, "async_load", "async_copy_global_to_shared")
meet = _named(gl, "barrier", "thread_barrier")
Value: TypeAlias = gl.tensor
SUMS_LIE = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [8, 1], [16, 64, 32]))
"""Where outputs [128, 64] lie: a thread has 2 rows of the weight and 16 of x."""
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
def block_dots(ws: Value, xs: Value, step: gl.constexpr) -> tuple[Value, Value]:
    """Both plane sums of 32 columns, under way."""
    codes, zero = ws.slice(step * 128, 128), nothing(gl.int32)
    high = warpgroup_mma(codes, plane_of(xs, step, 0), zero, use_acc=False, is_async=True)
    low = warpgroup_mma(codes, plane_of(xs, step, 1), zero, use_acc=False, is_async=True)
    return high, low


@gluon.jit
def plane_sum(
    total: Value, ws: Value, xs: Value, plane: gl.constexpr, x_plane: gl.constexpr, fresh: gl.constexpr
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
def term_of(
    high: Value, low: Value, facts: Value, sums: Value, step: gl.constexpr, SUMS: gl.constexpr
) -> Value:
    """t of a block of 32: its integer is below 2³¹."""
    term = (high * 256 + low).to(gl.float32) * as_float(down_at(facts, step))
    if SUMS:
        term = term + as_float(across_at(sums, step)) * as_float(down_at(facts, 8 + step))
    return term


@gluon.jit
def run_of(ws: Value, xs: Value, facts: Value, sums: Value, SUMS: gl.constexpr) -> Value:
    """The sum of a run of eight blocks of 32 columns, the first one to −0 (y is never that)."""
    high, low = block_dots(ws, xs, 0)
    run = nothing(gl.float32)
    for step in gl.static_range(1, 8):
        high_next, low_next = block_dots(ws, xs, step)
        high, low = warpgroup_mma_wait(2, [high, low])
        term = term_of(high, low, facts, sums, step - 1, SUMS)
        run = term if step == 1 else run + term
        high, low = high_next, low_next
    high, low = warpgroup_mma_wait(0, [high, low])
    return run + term_of(high, low, facts, sums, 7, SUMS)


@gluon.jit
def finish(
    y: Value, m: Value, n: Value, qe: Value, bias: Value, residual: Value, out: Value,
    faults: Value, M: Value, N: Value, cut: Value, cut2: Value, group: Value, BIASED: gl.constexpr,
    RESIDUAL: gl.constexpr, PARTS: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr,
) -> None:  # fmt: skip
    """End the outputs [BN, BM] from row m and column n on."""
    y = y.permute((1, 0))
    layout: gl.constexpr = y.type.layout
    m += gl.arange(0, BM, layout=gl.SliceLayout(1, layout))
    n += gl.arange(0, BN, layout=gl.SliceLayout(0, layout))
    y = y * exp2_int(gl.load(qe + m, mask=m < M, other=0))[:, None]
    end(
        y, m, n, (m < M)[:, None] & (n < N)[None, :], out, faults, bias, residual, M, N, group,
        cut, cut2, BIASED, RESIDUAL, PARTS,
    )  # fmt: skip


@gluon.jit
def matmul_blocks_of_32(
    codes: Value, facts: Value, x: Value, sums: Value, qe: Value, bias: Value, residual: Value,
    out: Value, faults: Value, M: Value, N: Value, runs: Value, first: Value, across: Value,
    cut: Value, cut2: Value, group: Value, BIASED: gl.constexpr, RESIDUAL: gl.constexpr,
    PARTS: gl.constexpr, FACTS: gl.constexpr, SUMS: gl.constexpr, GROUP: gl.constexpr,
) -> None:  # fmt: skip
    """Outputs [M, N] from column `first` on, `across` tiles of them."""
    tm, tn = tile_place(gl.program_id(0), across, (M + 63) // 64, GROUP)
    w_at, x_at = tn.to(gl.int64) * runs, tm.to(gl.int64) * runs
    codes, facts = codes + w_at * 32768, facts + w_at * (FACTS * 128)
    x, sums = x + x_at * 32768, sums + x_at * (SUMS * 64)
    codes_here = gl.allocate_shared_memory(gl.int8, [2, 1024, 32], PIECES)
    x_here = gl.allocate_shared_memory(gl.int8, [2, 1024, 32], PIECES)
    facts_here = gl.allocate_shared_memory(gl.int32, [2, FACTS * 128], FLAT)
    sums_here = gl.allocate_shared_memory(gl.int32, [2, max(SUMS, 1) * 64], FLAT)
    copy(codes_here, codes, 0)
    copy(x_here, x, 0)
    copy_words(facts_here, facts, 0)
    if SUMS:
        copy_words(sums_here, sums, 0)
    async_copy.commit_group()
    y = nothing(gl.float32)
    for r in range(0, runs):
        stage = r % 2
        landed(0)
        codes, facts, x, sums = codes + 32768, facts + FACTS * 128, x + 32768, sums + SUMS * 64
        if r + 1 < runs:
            copy(codes_here, codes, 1 - stage)
            copy(x_here, x, 1 - stage)
            copy_words(facts_here, facts, 1 - stage)
            if SUMS:
                copy_words(sums_here, sums, 1 - stage)
            async_copy.commit_group()
        y = y + run_of(
            codes_here.index(stage), x_here.index(stage), facts_here.index(stage),
            sums_here.index(stage), SUMS,
        )  # fmt: skip
    finish(
        y, tm * 64, first + tn * 128, qe, bias, residual, out, faults, M, N, cut, cut2, group,
        BIASED, RESIDUAL, PARTS, 64, 128,
    )  # fmt: skip


@gluon.jit
def pairs_dot(pair: Value, bytes_: Value, total: Value, LATE: gl.constexpr) -> Value:
    """total plus two 16-bit integers by the first or the last two bytes of a word."""
    early: gl.constexpr = "dp2a.lo.s32.s32 $0, $1, $2, $3;"
    late: gl.constexpr = "dp2a.hi.s32.s32 $0, $1, $2, $3;"
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
def offset_sum(facts: Value, sums: Value, WORDS: gl.constexpr) -> Value:
    """J = Σ offset·Σq of a block of 256."""
    high, low = nothing(gl.int32), nothing(gl.int32)
    for word in gl.static_range(WORDS):
        four = down_at(facts, 2 + word)
        high = pairs_dot(across_at(sums, 3 * word), four, high, False)
        high = pairs_dot(across_at(sums, 3 * word + 1), four, high, True)
        low = bytes_dot(across_at(sums, 3 * word + 2), four, low)
    return high * 256 + low


@gluon.jit
def wide_term(
    high: Value, low: Value, facts: Value, sums: Value, SUMS: gl.constexpr, WORDS: gl.constexpr
) -> Value:
    """t of a block of 256. |high| < 2²⁸ and |low| ≤ 2²², so that both parts of the sum are exact."""
    rest = ((high & 15) << 8) + low
    dot = (high >> 4).to(gl.float32) * 4096.0 + rest.to(gl.float32)
    term = dot * as_float(down_at(facts, 0))
    if SUMS:
        total = offset_sum(facts, sums, WORDS).to(gl.float32)
        term = term + total * as_float(down_at(facts, 1))
    return term


@gluon.jit
def wide_sums(ws: Value, xs: Value, PLANES: gl.constexpr) -> tuple[Value, Value]:
    """Σ code·q of 256 columns as 256·high + low, under way."""
    high = plane_sum(nothing(gl.int32), ws, xs, 0, 0, True)
    low = plane_sum(nothing(gl.int32), ws, xs, PLANES - 1, 1, True)
    if PLANES == 2:
        high = plane_sum(warpgroup_mma_wait(8, [high]) * 256, ws, xs, 0, 1, False)
        high = plane_sum(high, ws, xs, 1, 0, False)
    return high, low


@gluon.jit
def matmul_blocks_of_256(
    codes: Value, facts: Value, x: Value, sums: Value, qe: Value, bias: Value, residual: Value,
    out: Value, faults: Value, M: Value, N: Value, runs: Value, first: Value, across: Value,
    cut: Value, cut2: Value, group: Value, BIASED: gl.constexpr, RESIDUAL: gl.constexpr,
    PARTS: gl.constexpr, FACTS: gl.constexpr, SUMS: gl.constexpr, PLANES: gl.constexpr,
    WORDS: gl.constexpr, GROUP: gl.constexpr,
) -> None:  # fmt: skip
    """The same of blocks of 256; codes with sub-scales multiplied in have one or two planes.

    A block's term is added while the next one's sums are made, so facts stay for three turns.
    """
    tm, tn = tile_place(gl.program_id(0), across, (M + 63) // 64, GROUP)
    w_at, x_at = tn.to(gl.int64) * runs, tm.to(gl.int64) * runs
    codes, facts = codes + w_at * (PLANES * 32768), facts + w_at * (FACTS * 128)
    x, sums = x + x_at * 32768, sums + x_at * (SUMS * 64)
    codes_here = gl.allocate_shared_memory(gl.int8, [2, PLANES * 1024, 32], PIECES)
    x_here = gl.allocate_shared_memory(gl.int8, [2, 1024, 32], PIECES)
    facts_here = gl.allocate_shared_memory(gl.int32, [3, FACTS * 128], FLAT)
    sums_here = gl.allocate_shared_memory(gl.int32, [3, max(SUMS, 1) * 64], FLAT)
    copy(codes_here, codes, 0)
    copy(x_here, x, 0)
    copy_words(facts_here, facts, 0)
    if SUMS:
        copy_words(sums_here, sums, 0)
    async_copy.commit_group()
    y, run = nothing(gl.float32), nothing(gl.float32)
    high, low = nothing(gl.int32), nothing(gl.int32)
    for r in range(0, runs):
        stage = r % 2
        landed(0)
        codes, facts = codes + PLANES * 32768, facts + FACTS * 128
        x, sums = x + 32768, sums + SUMS * 64
        if r + 1 < runs:
            copy(codes_here, codes, 1 - stage)
            copy(x_here, x, 1 - stage)
            copy_words(facts_here, facts, (r + 1) % 3)
            if SUMS:
                copy_words(sums_here, sums, (r + 1) % 3)
            async_copy.commit_group()
        high_next, low_next = wide_sums(codes_here.index(stage), x_here.index(stage), PLANES)
        if r > 0:
            before = (r + 2) % 3
            run = run + wide_term(
                high, low, facts_here.index(before), sums_here.index(before), SUMS, WORDS
            )
            if r % 8 == 0:
                y = y + run
                run = nothing(gl.float32)
        high, low = warpgroup_mma_wait(0, [high_next, low_next])
    last = (runs - 1) % 3
    y = y + (run + wide_term(high, low, facts_here.index(last), sums_here.index(last), SUMS, WORDS))
    finish(
        y, tm * 64, first + tn * 128, qe, bias, residual, out, faults, M, N, cut, cut2, group,
        BIASED, RESIDUAL, PARTS, 64, 128,
    )  # fmt: skip
