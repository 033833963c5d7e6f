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
    ask_piece,
    down_at,
    finish,
    kernel,
    landed,
    nothing,
    piece_after,
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
    total = nothing(gl.int32)
    for word in gl.static_range(WORDS):
        four = down_at(facts, 2 + word)
        total = pairs_dot(across_at(sums, 3 * word), four, total, False)
        total = pairs_dot(across_at(sums, 3 * word + 1), four, total, True)
    total = total << 8
    for word in gl.static_range(WORDS):
        total = bytes_dot(across_at(sums, 3 * word + 2), down_at(facts, 2 + word), total)
    return total


@gluon.jit
def least_term(facts: Value, sums: Value, WORDS: gl.constexpr) -> Value:
    """RN(J)·minimum of a block of 256."""
    return offset_sum(facts, sums, WORDS).to(gl.float32) * as_float(down_at(facts, 1))


@gluon.jit
def wide_dot(high: Value, low: Value) -> Value:
    """RN(256·high + low): |high| < 2²⁸ and |low| ≤ 2²², so both parts of the sum are exact."""
    rest = ((high & 15) << 8) + low
    return (high >> 4).to(gl.float32) * 4096.0 + rest.to(gl.float32)


@gluon.jit
def wide_sums(ws: Value, xs: Value, PLANES: gl.constexpr) -> tuple[Value, Value]:
    """Σ code·q of 256 columns as 256·high + low, under way: with two planes the products of their
    own kind, which `crossed` goes on from.
    """
    high = plane_sum(nothing(gl.int32), ws, xs, 0, 0, True)
    low = plane_sum(nothing(gl.int32), ws, xs, PLANES - 1, 1, True)
    return high, low


@gluon.jit
def crossed(high: Value, ws: Value, xs: Value, PLANES: gl.constexpr) -> Value:
    """With two planes the sum of the upper ones, shifted, and their products with the lower ones,
    under way.
    """
    if PLANES == 2:
        high = plane_sum(warpgroup_mma_wait(8, [high]) * 256, ws, xs, 0, 1, False)
        high = plane_sum(high, ws, xs, 1, 0, False)
    return high


@gluon.jit
def now(x: Value) -> Value:
    """x, computed where this stands."""
    return gl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [x], dtype=gl.float32, is_pure=False, pack=1
    )


@gluon.jit
def term_of(
    dot: Value, facts: Value, sums: Value, SUMS: gl.constexpr, WORDS: gl.constexpr
) -> Value:
    """t of a block of 256, from the scaled RN(I) on."""
    if SUMS:
        dot = dot + least_term(facts, sums, WORDS)
    return dot


@kernel
def matmul_blocks_of_256(
    codes: Value, facts: Value, x: Value, sums: Value, qe: Value, bias: Value, residual: Value,
    out: Value, faults: Value, M: Value, N: Value, runs: Value, first: Value, across: Value,
    cut: Value, cut2: Value, group: Value, BIASED: gl.constexpr, RESIDUAL: gl.constexpr,
    PARTS: gl.constexpr, FACTS: gl.constexpr, SUMS: gl.constexpr, PLANES: gl.constexpr,
    WORDS: gl.constexpr, GROUP: gl.constexpr,
) -> None:  # fmt: skip
    """Multiply by blocks of 256; codes with sub-scales multiplied in have one or two planes.

    A program takes tiles in turn, the next piece on its way, also from tile to tile. A block's term
    is added while the next one's sums are made, so facts stay for three turns.
    """
    codes_here = gl.allocate_shared_memory(gl.int8, [2, PLANES * 1024, 32], PIECES)
    x_here = gl.allocate_shared_memory(gl.int8, [2, 1024, 32], PIECES)
    facts_here = gl.allocate_shared_memory(gl.int32, [3, FACTS * 128], FLAT)
    sums_here = gl.allocate_shared_memory(gl.int32, [3, max(SUMS, 1) * 64], FLAT)
    down = (M + 63) // 64
    tiles, turn = across * down, 0
    tm, tn = tile_place(gl.program_id(0), across, down, GROUP)
    ask_piece(
        codes_here, x_here, facts_here, sums_here, codes, x, facts, sums, tn * runs, tm * runs, 0,
        0, SUMS,
    )  # fmt: skip
    async_copy.commit_group()
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        tm, tn = tile_place(tile, across, down, GROUP)
        w_at, x_at = tn * runs, tm * runs
        w_after, x_after, more = piece_after(tile, tiles, across, down, runs, GROUP)
        landed(0)
        ws, xs = codes_here.index(turn % 2), x_here.index(turn % 2)
        here = runs > 1
        if here | more:
            ask_piece(
                codes_here, x_here, facts_here, sums_here, codes, x, facts, sums,
                gl.where(here, w_at + 1, w_after), gl.where(here, x_at + 1, x_after),
                (turn + 1) % 2, (turn + 1) % 3, SUMS,
            )  # fmt: skip
        async_copy.commit_group()
        high, low = wide_sums(ws, xs, PLANES)
        high = crossed(high, ws, xs, PLANES)
        high, low = warpgroup_mma_wait(0, [high, low])
        y, run = nothing(gl.float32), nothing(gl.float32)
        for start in range(1, runs, 8):
            y = y + run
            run = nothing(gl.float32)
            for r in range(start, gl.minimum(start + 8, runs)):
                facts_then, sums_then = facts_here.index(turn % 3), sums_here.index(turn % 3)
                turn += 1
                landed(0)
                ws, xs = codes_here.index(turn % 2), x_here.index(turn % 2)
                here = r + 1 < runs
                if here | more:
                    ask_piece(
                        codes_here, x_here, facts_here, sums_here, codes, x, facts, sums,
                        gl.where(here, w_at + r + 1, w_after), gl.where(here, x_at + r + 1, x_after),
                        (turn + 1) % 2, (turn + 1) % 3, SUMS,
                    )  # fmt: skip
                async_copy.commit_group()
                high_next, low_next = wide_sums(ws, xs, PLANES)
                dot = now(wide_dot(high, low) * as_float(down_at(facts_then, 0)))
                for _ in range(N, cut2):  # never: ptxas moves nothing across a loop
                    async_copy.commit_group()
                high_next = crossed(high_next, ws, xs, PLANES)
                run = run + term_of(dot, facts_then, sums_then, SUMS, WORDS)
                high, low = warpgroup_mma_wait(0, [high_next, low_next])
        if runs % 8 == 1:  # eight terms are a run
            y = y + run
            run = nothing(gl.float32)
        facts_then, sums_then = facts_here.index(turn % 3), sums_here.index(turn % 3)
        turn += 1
        dot = wide_dot(high, low) * as_float(down_at(facts_then, 0))
        y = y + (run + term_of(dot, facts_then, sums_then, SUMS, WORDS))
        finish(
            y, tm * 64, first + tn * 128, qe, bias, residual, out, faults, M, N, cut, cut2, group,
            BIASED, RESIDUAL, PARTS, 64, 128,
        )  # fmt: skip
