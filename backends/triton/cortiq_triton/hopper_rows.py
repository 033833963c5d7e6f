"""Products with a scale a row of the weight on Hopper GPUs, written in Gluon: rows of the weight are
down and rows of x across, few or many, so that few rows of x still fill the tensor cores.

The general form is `matmul.matmul_rows`, with the same bits.
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

from cortiq_triton.hopper import finish
from cortiq_triton.matmul import tile_place
from cortiq_triton.scalar import round_two_planes

Value: TypeAlias = gl.tensor


@gluon.jit
def places(rows: gl.constexpr, last: Value, K: Value, DEPTH: gl.constexpr, LIE: gl.constexpr) -> Value:
    """Where DEPTH times 128 columns of rows lie from their tile's first code on, [DEPTH·rows, 128];
    rows after the last are the last.
    """
    i = gl.arange(0, DEPTH * rows, layout=gl.SliceLayout(1, LIE))
    start = gl.minimum(i % rows, last) * K + i // rows * 128
    return start[:, None] + gl.arange(0, 128, layout=gl.SliceLayout(0, LIE))[None, :]


@gluon.jit
def matmul_rows_of_codes(
    codes: Value, scale: Value, qh: Value, ql: Value, qe: Value, bias: Value, residual: Value,
    out: Value, faults: Value, M: Value, N: Value, K: Value, cut: Value, cut2: Value, group: Value,
    BIASED: gl.constexpr, RESIDUAL: gl.constexpr, PARTS: gl.constexpr, BM: gl.constexpr,
    BN: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
) -> None:  # fmt: skip
    """Outputs [M, N] of int8 codes [N, K], K a multiple of 128·DEPTH, so many columns a step."""
    warps: gl.constexpr = BN // 16
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, BM, 32])
    lie: gl.constexpr = gl.BlockedLayout([1, 16], [4, 8], [warps, 1], [1, 0])
    pieces: gl.constexpr = gl.NVMMASharedLayout(128, 8, 2)
    tm, tn = tile_place(gl.program_id(0), (N + BN - 1) // BN, (M + BM - 1) // BM, GROUP)
    down = places(BN, N - 1 - tn * BN, K, DEPTH, lie)
    across = places(BM, M - 1 - tm * BM, K, DEPTH, lie)
    codes += (tn * BN).to(gl.int64) * K
    qh, ql = qh + (tm * BM).to(gl.int64) * K, ql + (tm * BM).to(gl.int64) * K
    weights = gl.allocate_shared_memory(gl.int8, [STAGES, DEPTH * BN, 128], pieces)
    highs = gl.allocate_shared_memory(gl.int8, [STAGES, DEPTH * BM, 128], pieces)
    lows = gl.allocate_shared_memory(gl.int8, [STAGES, DEPTH * BM, 128], pieces)
    steps = K // (128 * DEPTH)
    for early in gl.static_range(STAGES - 1):
        if early < steps:
            async_copy.async_copy_global_to_shared(weights.index(early), codes + down)
            async_copy.async_copy_global_to_shared(highs.index(early), qh + across)
            async_copy.async_copy_global_to_shared(lows.index(early), ql + across)
        async_copy.commit_group()
        codes, qh, ql = codes + 128 * DEPTH, qh + 128 * DEPTH, ql + 128 * DEPTH
    high = gl.zeros([BN, BM], gl.int32, sums)
    low = gl.zeros([BN, BM], gl.int32, sums)
    for step in range(0, steps):
        async_copy.wait_group(STAGES - 2)
        fence_async_shared()
        gl.thread_barrier()
        at = step % STAGES
        w, h, l = weights.index(at), highs.index(at), lows.index(at)  # noqa: E741
        for part in gl.static_range(DEPTH):
            here = w.slice(part * BN, BN)
            high = warpgroup_mma(
                here, h.slice(part * BM, BM).permute((1, 0)), high, is_async=True
            )
            low = warpgroup_mma(here, l.slice(part * BM, BM).permute((1, 0)), low, is_async=True)
        if step + STAGES - 1 < steps:  # where the step before was, whose sums are there
            stage = (step + STAGES - 1) % STAGES
            async_copy.async_copy_global_to_shared(weights.index(stage), codes + down)
            async_copy.async_copy_global_to_shared(highs.index(stage), qh + across)
            async_copy.async_copy_global_to_shared(lows.index(stage), ql + across)
        async_copy.commit_group()
        codes, qh, ql = codes + 128 * DEPTH, qh + 128 * DEPTH, ql + 128 * DEPTH
        high, low = warpgroup_mma_wait(0, [high, low])
    n = tn * BN + gl.arange(0, BN, layout=gl.SliceLayout(1, sums))
    s = gl.load(scale + n, mask=n < N, other=0.0)[:, None]
    finish(
        round_two_planes(high, low) * s, tm * BM, tn * BN, qe, bias, residual, out, faults, M, N,
        cut, cut2, group, BIASED, RESIDUAL, PARTS, BM, BN,
    )  # fmt: skip
