"""Products of many rows with blocks of 256 columns on Hopper GPUs: a block's term is added while
the sums of the next one are made. `matmul_blocks` has the same bits.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from cortiq_triton.hopper import (
    FLAT,
    PIECES,
    Value,
    across_at,
    as_float,
    copy,
    copy_words,
    down_at,
    finish,
    kernel,
    landed,
    nothing,
    plane_of,
)
from cortiq_triton.matmul import tile_place


@gluon.jit
def plane_sum(
    total: Value,
    ws: Value,
    xs: Value,
    plane: gl.constexpr,
    x_plane: gl.constexpr,
    fresh: gl.constexpr,
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
    """t of a block of 256: |high| < 2²⁸ and |low| ≤ 2²², so both parts of the sum are exact."""
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


@kernel
def matmul_blocks_of_256(
    codes: Value, facts: Value, x: Value, sums: Value, qe: Value, bias: Value, residual: Value,
    out: Value, faults: Value, M: Value, N: Value, runs: Value, first: Value, across: Value,
    cut: Value, cut2: Value, group: Value, BIASED: gl.constexpr, RESIDUAL: gl.constexpr,
    PARTS: gl.constexpr, FACTS: gl.constexpr, SUMS: gl.constexpr, PLANES: gl.constexpr,
    WORDS: gl.constexpr, GROUP: gl.constexpr,
) -> None:  # fmt: skip
    """Multiply by blocks of 256; codes with sub-scales multiplied in have one or two planes.

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
    for r in range(runs):
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
