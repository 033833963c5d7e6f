"""Attention over pages of 64 keys: int8 tensor-core dots, integer exponents, base 2.

A page is a tile of the contract. `attend_stream` walks over a query's tiles in order, for prompts;
`attend_tiles` computes tiles in parallel and `attend_merge` adds them in order, for decoding: the
same bits.
"""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.language import Tensor, constant, device, kernel
from cortiq_triton.scalar import (
    exp2_int,
    exp2g,
    inverse,
    outside,
    rint,
    round_three_planes,
    snapped,
    split_planes,
    tanh,
)

NONE = constant(-(1 << 20))
"""Exponent of an empty state, below every real one."""


@device
def delta(n: Tensor) -> Tensor:
    """2ⁿ, or 0 below −60."""
    return tl.where(n < -60, 0.0, exp2_int(tl.maximum(n, -60)))


@device
def combine(a: Tensor, m: Tensor, b: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """(a·2^m + b·2^n) at the larger exponent of the two, and that exponent."""
    top = tl.maximum(m, n)
    return a * delta(m - top) + b * delta(n - top), top


@device
def weight_of(score: Tensor) -> tuple[Tensor, Tensor]:
    """(κ, g) with 2^s = g·2^κ, |s| clamped at 16384."""
    s = tl.minimum(tl.maximum(score, -16384.0), 16384.0)
    k = rint(s)
    return k.to(tl.int32), exp2g(s - k)


@device
def dot_planes(
    ah: Tensor, al: Tensor, bh: Tensor, bl: Tensor, M: tl.constexpr, N: tl.constexpr
) -> Tensor:
    """RN of the integer dots of (ah, al) and (bh, bl), [M, N]."""
    nothing = tl.full((M, N), 0, tl.int32)
    high = tl.dot(ah, bh, nothing, out_dtype=tl.int32)
    middle = tl.dot(ah, bl, nothing, out_dtype=tl.int32)
    middle = tl.dot(al, bh, middle, out_dtype=tl.int32)
    return round_three_planes(high, middle, tl.dot(al, bl, nothing, out_dtype=tl.int32))


@device
def page_of(table: Tensor, sequence: Tensor, pages: Tensor, tile: Tensor, slot: Tensor) -> Tensor:
    """Where a slot begins in the page that holds a tile."""
    address = tl.load(table + sequence.to(tl.int64) * pages + tile) + slot
    return tl.multiple_of(address.to(tl.pointer_type(tl.int8)), 16)


@device
def tile_states(
    page: Tensor, tile: Tensor, g: Tensor, qh: Tensor, ql: Tensor, qe: Tensor, position: Tensor,
    window: Tensor, chosen: Tensor, at_chosen: Tensor, factor: Tensor, cap: Tensor,
    inverse_cap: Tensor, log2_e: Tensor, G: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    KP: tl.constexpr, VP: tl.constexpr, BM: tl.constexpr, CAPPED: tl.constexpr,
    BLOCK: tl.constexpr, CHOSEN: tl.constexpr,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """RN(L), K, RN(O), E of one tile, [BM, 1] and [BM, VP]; zeros at NONE where nothing is seen."""
    t, d, v = tl.arange(0, 64), tl.arange(0, KP), tl.arange(0, VP)
    keys = page + (g * 64 + t)[:, None] * DK + d[None, :]
    inside = (d < DK)[None, :] & (t >= 0)[:, None]
    kh = tl.load(keys, mask=inside, other=0)
    kl = tl.load(keys + G * 64 * DK, mask=inside, other=0)
    exponents = page + 2 * G * 64 * (DK + DV) + g * 64 + t
    ke = tl.load(exponents).to(tl.int32)
    ve = tl.load(exponents + G * 64).to(tl.int32)
    j = tile * 64 + t
    seen = (j[None, :] <= position[:, None]) & (j[None, :] >= window[:, None])
    if BLOCK > 0:
        admitted = tl.full((BM, 64), 0, tl.int32)
        for c in range(CHOSEN):
            block = tl.load(chosen + at_chosen + c)
            admitted |= (block[:, None] == (j // BLOCK)[None, :]).to(tl.int32)
        seen = seen & (admitted > 0)
    dots = dot_planes(qh, ql, tl.trans(kh), tl.trans(kl), BM, 64)
    ke = tl.where(j <= tl.max(position, 0), ke, 0)  # rows not written yet hold anything
    ve = tl.where(j <= tl.max(position, 0), ve, 0)
    s = (dots * factor) * exp2_int(qe[:, None] + ke[None, :])
    if CAPPED:
        s = (cap * tanh(s * inverse_cap)) * log2_e
    kappa, fraction = weight_of(s)
    kappa = tl.where(seen, kappa, NONE)
    epsilon = tl.where(seen, kappa + ve[None, :], NONE)
    K, E = tl.max(kappa, 1)[:, None], tl.max(epsilon, 1)[:, None]
    mass = rint(fraction * delta(21 + kappa - K)).to(tl.int32)
    L = tl.sum(tl.where(seen, mass, 0), 1)[:, None]
    w = rint(fraction * delta(14 + epsilon - E)).to(tl.int32)
    wh, wl = split_planes(tl.where(seen, w, 0))
    values = page + 2 * G * 64 * DK + (g * DV + v)[:, None] * 64 + t[None, :]
    inside = (v < DV)[:, None] & (j <= tl.max(position, 0))[None, :]
    vh = tl.load(values, mask=inside, other=0)
    vl = tl.load(values + G * 64 * DV, mask=inside, other=0)
    return L.to(tl.float32), K, dot_planes(wh, wl, tl.trans(vh), tl.trans(vl), BM, VP), E


@device
def queries_of(
    blocks: Tensor, H: tl.constexpr, G: tl.constexpr, HB: tl.constexpr, BM: tl.constexpr
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Rows, heads and validity of a program's BM queries, and the head of the keys they meet."""
    first, count = (
        tl.load(blocks + 2 * tl.program_id(0)),
        tl.load(blocks + 2 * tl.program_id(0) + 1),
    )
    chunks = (H // G + HB - 1) // HB
    g, chunk = tl.program_id(1) // chunks, tl.program_id(1) % chunks
    m = tl.arange(0, BM)
    within = chunk * HB + m % HB
    live = (m // HB < count) & (within < H // G)
    return tl.where(live, first + m // HB, first), tl.where(live, g * (H // G) + within, 0), live, g


@device
def load_queries(
    qh: Tensor, ql: Tensor, qe: Tensor, row: Tensor, head: Tensor, live: Tensor, stride: Tensor,
    H: tl.constexpr, DK: tl.constexpr, KP: tl.constexpr,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Planes [BM, KP] and exponents [BM] of the queries."""
    d = tl.arange(0, KP)
    at = (row * H + head).to(tl.int64)
    mask = live[:, None] & (d < DK)[None, :]
    planes = at[:, None] * stride + d[None, :]
    high, low = tl.load(qh + planes, mask=mask, other=0), tl.load(ql + planes, mask=mask, other=0)
    return high, low, tl.load(qe + at, mask=live, other=0)


@device
def result(
    total: Tensor, M: Tensor, o: Tensor, N: Tensor, sink: Tensor, head: Tensor, log2_e: Tensor,
    SINK: tl.constexpr,
) -> Tensor:  # fmt: skip
    """(o·RN(1/l))·2^(N−M+7), with the head's sink in l; 0 where no key was seen. Not snapped."""
    some = N > NONE
    if SINK:
        kappa, fraction = weight_of(tl.load(sink + head)[:, None] * log2_e)
        total, M = combine(total, M, fraction * 2097152.0, kappa)
    shift = N - M + 7
    power = tl.where(shift < -126, 0.0, exp2_int(tl.minimum(tl.maximum(shift, -126), 127)))
    return tl.where(some, (o * inverse(tl.where(some, total, 1.0))) * power, 0.0)


@kernel
def attend_stream(
    qh: Tensor, ql: Tensor, qe: Tensor, table: Tensor, owners: Tensor, positions: Tensor,
    blocks: Tensor, sink: Tensor, chosen: Tensor, out: Tensor, faults: Tensor, stride: Tensor,
    pages: Tensor, slot: Tensor, window: Tensor, factor: Tensor, cap: Tensor, inverse_cap: Tensor,
    log2_e: Tensor, H: tl.constexpr, G: tl.constexpr, HB: tl.constexpr, DK: tl.constexpr,
    DV: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr, BM: tl.constexpr, SINK: tl.constexpr,
    CAPPED: tl.constexpr, BLOCK: tl.constexpr, SETS: tl.constexpr, CHOSEN: tl.constexpr,
) -> None:  # fmt: skip
    """Queries [R, H, DK] of one sequence a block to out [R, H, DV], tile after tile."""
    row, head, live, g = queries_of(blocks, H, G, HB, BM)
    sequence = tl.load(owners + tl.load(blocks + 2 * tl.program_id(0)))
    position = tl.where(live, tl.load(positions + row), -1)
    lowest = tl.where(window > 0, tl.maximum(position - window + 1, 0), 0)
    high, low, exponent = load_queries(qh, ql, qe, row, head, live, stride, H, DK, KP)
    at_chosen = (row * SETS + head * SETS // H) * CHOSEN
    total, M = tl.full((BM, 1), 0.0, tl.float32), tl.full((BM, 1), NONE, tl.int32)
    sums, N = tl.full((BM, VP), 0.0, tl.float32), tl.full((BM, 1), NONE, tl.int32)
    last = tl.max(position, 0) // 64 + 1
    first = tl.min(tl.where(live, lowest, 2147483647), 0) // 64
    for run in range(first // 16 * 16, last, 16):
        mass, mm = tl.full((BM, 1), 0.0, tl.float32), tl.full((BM, 1), NONE, tl.int32)
        o, nn = tl.full((BM, VP), 0.0, tl.float32), tl.full((BM, 1), NONE, tl.int32)
        for tile in range(tl.maximum(run, first), tl.minimum(run + 16, last)):
            page = page_of(table, sequence, pages, tile, slot)
            L, K, O, E = tile_states(  # noqa: E741
                page, tile, g, high, low, exponent, position, lowest, chosen, at_chosen, factor,
                cap, inverse_cap, log2_e, G, DK, DV, KP, VP, BM, CAPPED, BLOCK, CHOSEN,
            )  # fmt: skip
            mass, mm = combine(mass, mm, L, K)
            o, nn = combine(o, nn, O, E)
        total, M = combine(total, M, mass, mm)
        sums, N = combine(sums, N, o, nn)
    y = result(total, M, sums, N, sink, head, log2_e, SINK)
    v = tl.arange(0, VP)
    mask = live[:, None] & (v < DV)[None, :]
    tl.store(out + (row * H + head).to(tl.int64)[:, None] * DV + v[None, :], snapped(y), mask=mask)
    tl.store(faults + row[:, None] + v[None, :] * 0, 1, mask=mask & outside(y))


@kernel
def attend_tiles(
    qh: Tensor, ql: Tensor, qe: Tensor, table: Tensor, owners: Tensor, positions: Tensor,
    blocks: Tensor, chosen: Tensor, sums: Tensor, numbers: Tensor, stride: Tensor, pages: Tensor,
    slot: Tensor, window: Tensor, factor: Tensor, cap: Tensor, inverse_cap: Tensor, log2_e: Tensor,
    most: Tensor, H: tl.constexpr, G: tl.constexpr, HB: tl.constexpr, DK: tl.constexpr,
    DV: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr, BM: tl.constexpr, CAPPED: tl.constexpr,
    BLOCK: tl.constexpr, SETS: tl.constexpr, CHOSEN: tl.constexpr,
) -> None:  # fmt: skip
    """One tile of a block of queries: RN(O) [R, H, most, DV], and [R, H, most, 3] of L, K, E.

    A query's tiles are numbered from its first visible one on.
    """
    row, head, live, g = queries_of(blocks, H, G, HB, BM)
    first_row = tl.load(blocks + 2 * tl.program_id(0))
    position = tl.where(live, tl.load(positions + row), -1)
    lowest = tl.where(window > 0, tl.maximum(position - window + 1, 0), 0)
    first = tl.min(tl.where(live, lowest, 2147483647), 0) // 64
    tile = first + tl.program_id(2)
    if tile * 64 <= tl.max(position, 0):
        high, low, exponent = load_queries(qh, ql, qe, row, head, live, stride, H, DK, KP)
        at_chosen = (row * SETS + head * SETS // H) * CHOSEN
        page = page_of(table, tl.load(owners + first_row), pages, tile, slot)
        L, K, O, E = tile_states(  # noqa: E741
            page, tile, g, high, low, exponent, position, lowest, chosen, at_chosen, factor,
            cap, inverse_cap, log2_e, G, DK, DV, KP, VP, BM, CAPPED, BLOCK, CHOSEN,
        )  # fmt: skip
        mine = live & (tile >= lowest // 64) & (tile * 64 <= position)
        at = (row * H + head).to(tl.int64) * most + (tile - lowest // 64)
        v = tl.arange(0, VP)
        mask = mine[:, None] & (v < DV)[None, :]
        tl.store(sums + at[:, None] * DV + v[None, :], O, mask=mask)
        numbers_at = numbers + at[:, None] * 3
        tl.store(numbers_at, L.to(tl.int32, bitcast=True), mask=mine[:, None])
        tl.store(numbers_at + 1, K, mask=mine[:, None])
        tl.store(numbers_at + 2, E, mask=mine[:, None])


@kernel
def attend_merge(
    sums: Tensor, numbers: Tensor, positions: Tensor, sink: Tensor, out: Tensor, faults: Tensor,
    rows: Tensor, window: Tensor, log2_e: Tensor, most: Tensor, H: tl.constexpr, DV: tl.constexpr,
    VP: tl.constexpr, BM: tl.constexpr, SINK: tl.constexpr,
) -> None:  # fmt: skip
    """BM queries (row, head) of one row each: their tiles added in order, out [R, H, DV]."""
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    live, v = i < rows * H, tl.arange(0, VP)
    position = tl.load(positions + i // H, mask=live, other=-1)
    lowest = tl.where(window > 0, tl.maximum(position - window + 1, 0), 0)
    first, last = lowest // 64, (position + 64) // 64
    total, M = tl.full((BM, 1), 0.0, tl.float32), tl.full((BM, 1), NONE, tl.int32)
    whole, N = tl.full((BM, VP), 0.0, tl.float32), tl.full((BM, 1), NONE, tl.int32)
    start = tl.min(tl.where(live, first, 2147483647), 0)
    for run in range(start // 16, (tl.max(last, 0) + 15) // 16):
        mass, mm = tl.full((BM, 1), 0.0, tl.float32), tl.full((BM, 1), NONE, tl.int32)
        o, nn = tl.full((BM, VP), 0.0, tl.float32), tl.full((BM, 1), NONE, tl.int32)
        for step in range(16):
            tile = run * 16 + step
            mine = live & (tile >= first) & (tile < last)
            at = i.to(tl.int64) * most + (tile - first)
            O = tl.load(  # noqa: E741
                sums + at[:, None] * DV + v[None, :],
                mask=mine[:, None] & (v < DV)[None, :], other=0.0,
            )  # fmt: skip
            numbers_at = numbers + at[:, None] * 3
            L = tl.load(numbers_at, mask=mine[:, None], other=0).to(tl.float32, bitcast=True)
            K = tl.load(numbers_at + 1, mask=mine[:, None], other=NONE)
            E = tl.load(numbers_at + 2, mask=mine[:, None], other=NONE)
            mass, mm = combine(mass, mm, L, K)
            o, nn = combine(o, nn, O, E)
        total, M = combine(total, M, mass, mm)
        whole, N = combine(whole, N, o, nn)
    y = result(total, M, whole, N, sink, i % H, log2_e, SINK)
    mask = live[:, None] & (v < DV)[None, :]
    tl.store(out + i.to(tl.int64)[:, None] * DV + v[None, :], snapped(y), mask=mask)
    tl.store(faults + (i // H)[:, None] + v[None, :] * 0, 1, mask=mask & outside(y))
