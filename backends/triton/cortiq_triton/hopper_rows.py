"""Products with a scale a row of the weight on Hopper GPUs, written in Gluon: rows of the weight
are down and rows of x across, so that few of these suffice for the tensor cores.

The general form is `matmul.matmul_rows`, with the same bits.
"""

from __future__ import annotations

from typing import TypeAlias

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from cortiq_triton.hopper import finish, kernel, landed, load_async
from cortiq_triton.language import let_next
from cortiq_triton.matmul import tile_place
from cortiq_triton.scalar import round_two_planes

Value: TypeAlias = gl.tensor


@gluon.jit
def ask(
    shared: Value, source: Value, row: Value, step: Value, K: Value, LIE: gl.constexpr,
    CUT: gl.constexpr,
) -> None:  # fmt: skip
    """Ask for 128 columns of rows, [rows, 128]; with CUT those past the last become zeros."""
    column = step * 128 + gl.arange(0, 128, layout=gl.SliceLayout(0, LIE))
    place = source + row[:, None] * K + column[None, :]
    if CUT:
        load_async(shared, place, mask=(row >= 0)[:, None] & (column < K)[None, :])
    else:
        load_async(shared, place)


@gluon.jit
def ask_step(
    weights: Value, highs: Value, lows: Value, codes: Value, qh: Value, ql: Value, n: Value,
    m: Value, step: Value, steps: Value, K: Value, STAGES: gl.constexpr, LIE: gl.constexpr,
    CUT: gl.constexpr,
) -> None:  # fmt: skip
    """Ask for a step of all three, if there is one."""
    if step < steps:
        at = step % STAGES
        ask(weights.index(at), codes, n, step, K, LIE, CUT)
        ask(highs.index(at), qh, m, step, K, LIE, CUT)
        ask(lows.index(at), ql, m, step, K, LIE, CUT)
    async_copy.commit_group()


@kernel
def matmul_rows_of_codes(
    codes: Value, scale: Value, qh: Value, ql: Value, qe: Value, bias: Value, residual: Value,
    out: Value, faults: Value, M: Value, N: Value, K: Value, cut: Value, cut2: Value, group: Value,
    BIASED: gl.constexpr, RESIDUAL: gl.constexpr, PARTS: gl.constexpr, BM: gl.constexpr,
    BN: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr, ODD: gl.constexpr,
    CUT: gl.constexpr,
) -> None:  # fmt: skip
    """Outputs [M, N] of int8 codes [N, K], K a multiple of 64, in an ODD number of steps or not,
    the last of which is CUT short or not.

    It starts when all launches before it are done, and lets the next one start at once.
    """
    let_next()
    warps: gl.constexpr = BN // 16
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, BM, 32])
    lie: gl.constexpr = gl.BlockedLayout([1, 16], [4, 8], [warps, 1], [1, 0])
    pieces: gl.constexpr = gl.NVMMASharedLayout(128, 8, 2)
    tm, tn = tile_place(gl.program_id(0), (N + BN - 1) // BN, (M + BM - 1) // BM, GROUP)
    n = gl.minimum(tn * BN + gl.arange(0, BN, layout=gl.SliceLayout(1, lie)), N - 1).to(gl.int64)
    # Rows beyond the last are the first ones again: one row that all ask for is a queue in the L2.
    m = ((tm * BM + gl.arange(0, BM, layout=gl.SliceLayout(1, lie))) % M).to(gl.int64)
    weights = gl.allocate_shared_memory(gl.int8, [STAGES, BN, 128], pieces)
    highs = gl.allocate_shared_memory(gl.int8, [STAGES, BM, 128], pieces)
    lows = gl.allocate_shared_memory(gl.int8, [STAGES, BM, 128], pieces)
    steps = (K + 127) // 128
    for early in gl.static_range(STAGES - 2):
        ask_step(weights, highs, lows, codes, qh, ql, n, m, early, steps, K, STAGES, lie, CUT)
    high = gl.zeros([BN, BM], gl.int32, sums)
    low = gl.zeros([BN, BM], gl.int32, sums)
    for pair in range(0, steps - ODD, 2):
        for late in gl.static_range(2):
            step = pair + late
            landed(STAGES - 3)
            at = step % STAGES
            w, h, l = weights.index(at), highs.index(at), lows.index(at)  # noqa: E741
            high = warpgroup_mma(w, h.permute((1, 0)), high, is_async=True)
            low = warpgroup_mma(w, l.permute((1, 0)), low, is_async=True)
            ahead = step + STAGES - 2  # where the pair before was, whose sums are there
            ask_step(
                weights, highs, lows, codes, qh, ql, n, m, ahead, steps, K, STAGES, lie, CUT
            )  # fmt: skip
        high, low = warpgroup_mma_wait(0, [high, low])
    if ODD:
        landed(STAGES - 3)
        at = (steps - 1) % STAGES
        w, h, l = weights.index(at), highs.index(at), lows.index(at)  # noqa: E741
        high = warpgroup_mma(w, h.permute((1, 0)), high, is_async=True)
        low = warpgroup_mma(w, l.permute((1, 0)), low, is_async=True)
        high, low = warpgroup_mma_wait(0, [high, low])
    n = tn * BN + gl.arange(0, BN, layout=gl.SliceLayout(1, sums))
    s = gl.load(scale + n, mask=n < N, other=0.0)[:, None]
    finish(
        round_two_planes(high, low) * s, tm * BM, tn * BN, qe, bias, residual, out, faults, M, N,
        cut, cut2, group, BIASED, RESIDUAL, PARTS, BM, BN,
    )  # fmt: skip
