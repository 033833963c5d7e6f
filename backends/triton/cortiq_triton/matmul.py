"""Products of many rows: int8 tensor-core dots into int32, float sums in the written order."""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.language import Tensor, device, kernel
from cortiq_triton.matvec import e4m3_factors, e4m3_scales, end, load_scale
from cortiq_triton.packing import packed_codes
from cortiq_triton.scalar import (
    exp2_int,
    fold,
    outside,
    round_three_planes,
    round_two_planes,
    snapped,
)
from cortiq_triton.wide_codes import integer_of


@device
def tile_of(
    plane: Tensor, row: Tensor, live: Tensor, column: Tensor, width: Tensor, stride: Tensor
) -> Tensor:
    """int8 [rows, columns] of a plane; 0 outside."""
    inside = live[:, None] & (column < width)[None, :]
    return tl.load(plane + row[:, None] * stride + column[None, :], mask=inside, other=0)


@device
def tile_place(
    pid: Tensor, across: Tensor, down: Tensor, GROUP: tl.constexpr
) -> tuple[Tensor, Tensor]:
    """A program's tile of rows and of columns: GROUP tiles of rows for each tile of columns in
    turn, so that both stay in the L2.
    """
    band = pid // (GROUP * across)
    high = tl.minimum(down - band * GROUP, GROUP)
    inner = pid - band * GROUP * across
    return band * GROUP + inner % high, inner // high


@device
def tile_rows(
    order: Tensor, tiles: Tensor, M: Tensor, N: Tensor, heads: Tensor, per: Tensor,
    CHOICE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Output rows, which of them live, their rows of x, output columns, and the weight's first row
    of this program; that is negative if the program has nothing to do.

    CHOICE 0: rows in turn; 1: the second axis of the grid is a head, row i·heads + head is what it
    computes; 2: a tile of `grouping.Groups`, of which there are at most `heads`.
    """
    down = heads if CHOICE == 2 else (M + BM - 1) // BM
    tile, column = tile_place(tl.program_id(0), (N + BN - 1) // BN, down, GROUP)
    n = column * BN + tl.arange(0, BN)
    if CHOICE == 2:
        expert, stop = tl.load(tiles + tile * 3), tl.load(tiles + tile * 3 + 2)
        place = tl.load(tiles + tile * 3 + 1) + tl.arange(0, BM)
        live, first = place < stop, expert * N
        m = tl.load(order + place, mask=live, other=0)
        x = m // per
    elif CHOICE == 1:
        m, first = tile * BM + tl.arange(0, BM), tl.program_id(1) * N
        live = m < M
        m = m * heads + tl.program_id(1)
        x = m
    else:
        m, first = tile * BM + tl.arange(0, BM), tl.program_id(1) * 0
        live = m < M
        x = m
    return m, live, x, n, first


@kernel
def matmul_rows(
    codes: Tensor, scale: Tensor, qh: Tensor, ql: Tensor, qe: Tensor, order: Tensor,
    tiles: Tensor, bias: Tensor, residual: Tensor, out: Tensor, faults: Tensor, M: Tensor,
    N: Tensor, K: Tensor, stride: Tensor, plane: Tensor, cut: Tensor, cut2: Tensor, heads: Tensor,
    per: Tensor, group: Tensor, CHOICE: tl.constexpr, BIASED: tl.constexpr, RESIDUAL: tl.constexpr,
    PARTS: tl.constexpr, PLANES: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, GROUP: tl.constexpr,
) -> None:  # fmt: skip
    """out [M, N] of codes with a scale a row; K columns, rows of x `stride` apart; `plane`
    codes from plane to plane."""
    m, live, x, n, first = tile_rows(order, tiles, M, N, heads, per, CHOICE, BM, BN, GROUP)
    if first < 0:
        return
    seen, row, x = n < N, (first + n).to(tl.int64), x.to(tl.int64)
    high = tl.full((BM, BN), 0, tl.int32)
    middle = tl.full((BM, BN), 0, tl.int32)
    low = tl.full((BM, BN), 0, tl.int32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        hi, lo = tile_of(qh, x, live, k, K, stride), tile_of(ql, x, live, k, K, stride)
        c = tl.trans(tile_of(codes, row, seen, k, K, K))
        high = tl.dot(hi, c, high, out_dtype=tl.int32)
        if PLANES == 2:
            d = tl.trans(tile_of(codes + plane, row, seen, k, K, K))
            middle = tl.dot(hi, d, middle, out_dtype=tl.int32)
            middle = tl.dot(lo, c, middle, out_dtype=tl.int32)
            low = tl.dot(lo, d, low, out_dtype=tl.int32)
        else:
            low = tl.dot(lo, c, low, out_dtype=tl.int32)
    s = tl.load(scale + first + n, mask=seen, other=0.0)[None, :]
    if PLANES == 2:
        y = round_three_planes(high, middle, low) * s
    else:
        y = round_two_planes(high, low) * s
    y = y * exp2_int(tl.load(qe + x, mask=live, other=0))[:, None]
    end(
        y, m, n, live[:, None] & seen[None, :], out, faults, bias, residual, M, N, group, cut,
        cut2, BIASED, RESIDUAL, PARTS,
    )  # fmt: skip


@kernel
def matmul_floats(
    x: Tensor, weight: Tensor, index: Tensor, out: Tensor, faults: Tensor, N: Tensor, K: Tensor,
    per: Tensor, count: Tensor, group: Tensor, CHOICE: tl.constexpr, BN: tl.constexpr,
) -> None:  # fmt: skip
    """One row of out [R, N]: snap(canonical_sum(snap(x·w))) of float weights."""
    r = tl.program_id(1)
    n, lane = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, 256)
    first = r * 0
    if CHOICE == 1:
        first = r % count * N
    elif CHOICE == 2:
        first = tl.load(index + r) * N
    row = (first + n).to(tl.int64)
    lanes = tl.full((BN, 256), 0.0, tl.float32)
    fault = tl.full((BN, 256), 0, tl.int32)
    for start in range(0, K, 256):
        k = start + lane
        seen = (n < N)[:, None] & (k < K)[None, :]
        value = tl.load(x + (r // per).to(tl.int64) * K + k, mask=k < K, other=0.0)[None, :]
        product = tl.load(weight + row[:, None] * K + k[None, :], mask=seen, other=0.0) * value
        fault |= outside(product).to(tl.int32)
        lanes += snapped(product)
    y = fold(lanes, BN)
    seen = (n < N)[:, None]
    tl.store(out + r.to(tl.int64) * N + n[:, None], snapped(y), mask=seen)
    bad = outside(y) | (tl.max(fault, 1)[:, None] > 0)
    tl.store(faults + r // group + n[:, None] * 0, 1, mask=seen & bad)


@kernel
def gather_rows(
    codes: Tensor, bits: Tensor, scale: Tensor, minimum: Tensor, sub_scales: Tensor,
    offsets: Tensor, ids: Tensor, out: Tensor, faults: Tensor, height: Tensor, n: Tensor,
    padded: Tensor, blocks: Tensor, plane: Tensor, KIND: tl.constexpr, BLOCK: tl.constexpr,
    WIDE: tl.constexpr, SUB: tl.constexpr, SCALED: tl.constexpr, MINIMUM: tl.constexpr,
    OFFSETS: tl.constexpr, BIAS: tl.constexpr, E2M1: tl.constexpr, HIGH: tl.constexpr,
    FORM: tl.constexpr, LOW_FORM: tl.constexpr, SHARE: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Rows `ids` of a table as floats [rows, n]; +0 for an id past the table. KIND 3: floats."""
    r, k = tl.program_id(0), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    token = tl.load(ids + r).to(tl.int64)
    inside = k < n
    seen = k < tl.where((token >= 0) & (token < height), n, 0)  # a scalar beside a vector
    if KIND == 3:
        y = tl.load(codes + token * n + k, mask=seen, other=0.0)
    else:
        if KIND == 1:
            code = packed_codes(codes, bits, token, k, seen, padded, HIGH, BIAS, E2M1)
        else:
            code = tl.load(codes + token * padded + k, mask=seen, other=0).to(tl.int32)
            if KIND == 2:
                low = tl.load(codes + plane + token * padded + k, mask=seen, other=0)
                code = code * 256 + low.to(tl.int32)
            if WIDE:
                code = integer_of(code & 255, WIDE)
        if SCALED:
            at = token * (padded // SUB) + k // SUB
            code *= tl.load(sub_scales + at, mask=seen, other=0).to(tl.int32)
        block = k * 0
        if BLOCK:
            block = k // BLOCK // SHARE
        d = load_scale(scale, token * blocks + block, seen, FORM)
        if FORM == 3:
            upper, lower = e4m3_factors(minimum, token)
            d = e4m3_scales(d, upper, lower)
        y = code.to(tl.float32) * d
        if MINIMUM:
            factor = tl.full((WIDTH,), 1, tl.int32)
            if OFFSETS:
                at = token * (padded // SUB) + k // SUB
                factor = tl.load(offsets + at, mask=seen, other=0).to(tl.int32)
            least = load_scale(minimum, token * blocks + block, seen, LOW_FORM)
            y = y + factor.to(tl.float32) * least
    tl.store(out + r.to(tl.int64) * n + k, snapped(y), mask=inside)
    tl.store(faults + r + k * 0, 1, mask=inside & outside(y))
