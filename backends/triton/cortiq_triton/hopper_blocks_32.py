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
def rest_of_run(
    high: Value, low: Value, ws: Value, xs: Value, facts: Value, sums: Value, SUMS: gl.constexpr
) -> Value:
    """The sum of a run of eight blocks of 32 columns, the first one's sums under way, to −0 (y is
    never that).
    """
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
def ask_piece(
    codes_here: Value, x_here: Value, facts_here: Value, sums_here: Value, codes: Value, x: Value,
    facts: Value, sums: Value, w_at: Value, x_at: Value, turn: Value, SUMS: gl.constexpr,
) -> None:  # fmt: skip
    """Ask for a piece of all operands, which turn number `turn` of the program multiplies."""
    w_at, x_at = w_at.to(gl.int64), x_at.to(gl.int64)
    codes_bytes: gl.constexpr = codes_here.shape[1] * 32
    facts_words: gl.constexpr = facts_here.shape[1]
    copy(codes_here, codes + w_at * codes_bytes, turn % codes_here.shape[0])
    copy(x_here, x + x_at * 32768, turn % x_here.shape[0])
    copy_words(facts_here, facts + w_at * facts_words, turn % facts_here.shape[0])
    if SUMS:
        copy_words(sums_here, sums + x_at * (SUMS * 64), turn % sums_here.shape[0])


@gluon.jit
def piece_after(
    tile: Value, tiles: Value, across: Value, down: Value, runs: Value, GROUP: gl.constexpr
) -> tuple[Value, Value, Value]:  # fmt: skip
    """Locate the first piece of the program's next tile, of the weight and of x, and say whether
    there is one.
    """
    after = tile + gl.num_programs(0)
    tm, tn = tile_place(gl.minimum(after, tiles - 1), across, down, GROUP)
    return tn * runs, tm * runs, after < tiles


@kernel
def matmul_blocks_of_32(
    codes: Value, facts: Value, x: Value, sums: Value, qe: Value, bias: Value, residual: Value,
    out: Value, faults: Value, M: Value, N: Value, runs: Value, first: Value, across: Value,
    cut: Value, cut2: Value, group: Value, BIASED: gl.constexpr, RESIDUAL: gl.constexpr,
    PARTS: gl.constexpr, FACTS: gl.constexpr, SUMS: gl.constexpr, GROUP: gl.constexpr,
) -> None:  # fmt: skip
    """Outputs [M, N] from column `first` on, `across` tiles of them. A program takes tiles in turn,
    the next piece on its way, also from tile to tile.
    """
    codes_here = gl.allocate_shared_memory(gl.int8, [2, 1024, 32], PIECES)
    x_here = gl.allocate_shared_memory(gl.int8, [2, 1024, 32], PIECES)
    facts_here = gl.allocate_shared_memory(gl.int32, [2, FACTS * 128], FLAT)
    sums_here = gl.allocate_shared_memory(gl.int32, [2, max(SUMS, 1) * 64], FLAT)
    down = (M + 63) // 64
    tiles, turn = across * down, 0
    tm, tn = tile_place(gl.program_id(0), across, down, GROUP)
    ask_piece(
        codes_here, x_here, facts_here, sums_here, codes, x, facts, sums, tn * runs, tm * runs, 0,
        SUMS,
    )  # fmt: skip
    async_copy.commit_group()
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        tm, tn = tile_place(tile, across, down, GROUP)
        w_at, x_at = tn * runs, tm * runs
        w_after, x_after, more = piece_after(tile, tiles, across, down, runs, GROUP)
        y = nothing(gl.float32)
        for r in range(runs):
            stage = turn % 2
            ws, xs = codes_here.index(stage), x_here.index(stage)
            landed(0)
            high, low = block_dots(ws, xs, 0)
            here = r + 1 < runs
            if here | more:
                ask_piece(
                    codes_here, x_here, facts_here, sums_here, codes, x, facts, sums,
                    gl.where(here, w_at + r + 1, w_after), gl.where(here, x_at + r + 1, x_after),
                    turn + 1, SUMS,
                )  # fmt: skip
            async_copy.commit_group()
            y = y + rest_of_run(
                high, low, ws, xs, facts_here.index(stage), sums_here.index(stage), SUMS
            )
            turn += 1
        finish(
            y, tm * 64, first + tn * 128, qe, bias, residual, out, faults, M, N, cut, cut2, group,
            BIASED, RESIDUAL, PARTS, 64, 128,
        )  # fmt: skip
