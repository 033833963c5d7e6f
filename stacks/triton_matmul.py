"""The matmul of the contract in Triton: int8 tensor-core dots, float sums in the written order."""

from __future__ import annotations

import triton
import triton.language as tl

from cortiq_triton.language import Tensor
from cortiq_triton.scalar import exp2_int, round_three_planes, round_two_planes, snapped


@triton.jit
def load_plane(
    plane: Tensor, row: Tensor, rows: Tensor, column: Tensor, columns: Tensor, width: Tensor
) -> Tensor:
    """int8 [rows here, columns here] of a plane [rows, width]; 0 outside."""
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    return tl.load(plane + row[:, None] * width + column[None, :], mask=inside, other=0)


@triton.jit
def block_term(
    high: Tensor, low: Tensor, codes: Tensor, scale: Tensor, offsets: Tensor, minimum: Tensor,
    m: Tensor, n: Tensor, block: Tensor, M: Tensor, N: Tensor, K: Tensor, BLOCK: tl.constexpr,
    STEP: tl.constexpr, SUB: tl.constexpr, PLANES: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
) -> Tensor:  # fmt: skip
    """t = RN(RN(I)·scale) [+ RN(RN(J)·minimum)] of one block, [BM, BN]."""
    hh = tl.zeros((BM, BN), tl.int32)
    middle = tl.zeros((BM, BN), tl.int32)
    ll = tl.zeros((BM, BN), tl.int32)
    j = tl.zeros((BM, BN), tl.int32)
    blocks = tl.cdiv(K, BLOCK)
    end = tl.minimum(block * BLOCK + BLOCK, K)
    for start in range(block * BLOCK, end, STEP):
        k = start + tl.arange(0, STEP)
        h = load_plane(high, m, M, k, end, K)
        l = load_plane(low, m, M, k, end, K)  # noqa: E741
        c = tl.trans(load_plane(codes, n, N, k, end, K))
        hh = tl.dot(h, c, hh, out_dtype=tl.int32)
        if PLANES == 2:
            d = tl.trans(load_plane(codes + N * K, n, N, k, end, K))
            middle = tl.dot(h, d, middle, out_dtype=tl.int32)
            middle = tl.dot(l, c, middle, out_dtype=tl.int32)
            ll = tl.dot(l, d, ll, out_dtype=tl.int32)
        else:
            ll = tl.dot(l, c, ll, out_dtype=tl.int32)
        if SUB > 0:
            q = tl.sum(h.to(tl.int32) * 256 + l.to(tl.int32), 1)
            factor = tl.load(offsets + n * (K // SUB) + start // SUB, mask=n < N, other=0)
            j += q[:, None] * factor[None, :]
    s = tl.load(scale + n * blocks + block, mask=n < N, other=0.0)
    if PLANES == 2:
        term = round_three_planes(hh, middle, ll) * s[None, :]
    else:
        term = round_two_planes(hh, ll) * s[None, :]
    if SUB > 0:
        low_scale = tl.load(minimum + n * blocks + block, mask=n < N, other=0.0)
        term = term + j.to(tl.float32) * low_scale[None, :]
    return term


@triton.jit
def matmul(
    high: Tensor, low: Tensor, exponent: Tensor, codes: Tensor, scale: Tensor, offsets: Tensor,
    minimum: Tensor, out: Tensor, M: Tensor, N: Tensor, K: Tensor, BLOCK: tl.constexpr,
    STEP: tl.constexpr, SUB: tl.constexpr, PLANES: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
) -> None:  # fmt: skip
    """out [M, N] from activation planes [M, K], code planes [PLANES, N, K], scale [N, blocks].

    SUB > 0: offsets [N, K/SUB] and minimum [N, blocks] are there, and STEP == SUB.
    """
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    blocks = tl.cdiv(K, BLOCK)
    y = tl.zeros((BM, BN), tl.float32)
    for first in range(0, blocks, 8):
        run = tl.zeros((BM, BN), tl.float32)
        for block in range(first, tl.minimum(first + 8, blocks)):
            run = run + block_term(
                high, low, codes, scale, offsets, minimum, m, n, block, M, N, K,
                BLOCK, STEP, SUB, PLANES, BM, BN,
            )  # fmt: skip
        y = y + run
    e = tl.load(exponent + m, mask=m < M, other=0)
    y = snapped(y * exp2_int(e)[:, None])
    inside = (m[:, None] < M) & (n[None, :] < N)
    tl.store(out + m[:, None] * N + n[None, :], y, mask=inside)
