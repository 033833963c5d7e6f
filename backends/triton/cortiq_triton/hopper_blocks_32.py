"""Products of many rows with blocks of 32 columns on Hopper GPUs: a block's sums are under way in
the tensor cores while the term of the one before is added. `matmul_blocks` has the same bits.
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
def block_dots(ws: Value, xs: Value, step: gl.constexpr) -> tuple[Value, Value]:
    """Both plane sums of 32 columns, under way."""
    codes, zero = ws.slice(step * 128, 128), nothing(gl.int32)
    high = warpgroup_mma(codes, plane_of(xs, step, 0), zero, use_acc=False, is_async=True)
    low = warpgroup_mma(codes, plane_of(xs, step, 1), zero, use_acc=False, is_async=True)
    return high, low


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
def ask(
    codes_here: Value, x_here: Value, facts_here: Value, sums_here: Value, codes: Value, x: Value,
    facts: Value, sums: Value, r: Value, runs: Value, SUMS: gl.constexpr,
) -> None:  # fmt: skip
    """Ask for piece r of all operands, if there is one."""
    stages: gl.constexpr = codes_here.shape[0]
    words: gl.constexpr = facts_here.shape[1]
    if r < runs:
        stage = r % stages
        copy(codes_here, codes + r * 32768, stage)
        copy(x_here, x + r * 32768, stage)
        copy_words(facts_here, facts + r * words, stage)
        if SUMS:
            copy_words(sums_here, sums + r * (SUMS * 64), stage)
    async_copy.commit_group()


@kernel
def matmul_blocks_of_32(
    codes: Value, facts: Value, x: Value, sums: Value, qe: Value, bias: Value, residual: Value,
    out: Value, faults: Value, M: Value, N: Value, runs: Value, first: Value, across: Value,
    cut: Value, cut2: Value, group: Value, BIASED: gl.constexpr, RESIDUAL: gl.constexpr,
    PARTS: gl.constexpr, FACTS: gl.constexpr, SUMS: gl.constexpr, GROUP: gl.constexpr,
    STAGES: gl.constexpr,
) -> None:  # fmt: skip
    """Outputs [M, N] from column `first` on, `across` tiles of them."""
    tm, tn = tile_place(gl.program_id(0), across, (M + 63) // 64, GROUP)
    w_at, x_at = tn.to(gl.int64) * runs, tm.to(gl.int64) * runs
    codes, facts = codes + w_at * 32768, facts + w_at * (FACTS * 128)
    x, sums = x + x_at * 32768, sums + x_at * (SUMS * 64)
    codes_here = gl.allocate_shared_memory(gl.int8, [STAGES, 1024, 32], PIECES)
    x_here = gl.allocate_shared_memory(gl.int8, [STAGES, 1024, 32], PIECES)
    facts_here = gl.allocate_shared_memory(gl.int32, [STAGES, FACTS * 128], FLAT)
    sums_here = gl.allocate_shared_memory(gl.int32, [STAGES, max(SUMS, 1) * 64], FLAT)
    for early in gl.static_range(STAGES - 1):
        ask(codes_here, x_here, facts_here, sums_here, codes, x, facts, sums, early, runs, SUMS)
    y = nothing(gl.float32)
    for r in range(runs):
        landed(STAGES - 2)
        ask(
            codes_here, x_here, facts_here, sums_here, codes, x, facts, sums, r + STAGES - 1, runs,
            SUMS,
        )  # fmt: skip
        stage = r % STAGES
        y = y + run_of(
            codes_here.index(stage), x_here.index(stage), facts_here.index(stage),
            sums_here.index(stage), SUMS,
        )  # fmt: skip
    finish(
        y, tm * 64, first + tn * 128, qe, bias, residual, out, faults, M, N, cut, cut2, group,
        BIASED, RESIDUAL, PARTS, 64, 128,
    )  # fmt: skip
