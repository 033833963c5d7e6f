"""Attention of single rows to keys chosen one by one: only these keys are read.

`weigh_chosen` computes the weights of each tile's chosen keys, `add_chosen` the sums of values of
a run of tiles, in the tiles' order, `join_runs` adds the runs. A tile is the contract's: the same
bits as `split_kv_attention`, which computes every key of it.
"""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.attention import finish
from cortiq_triton.language import Tensor, begin, device, kernel
from cortiq_triton.scalar import exp2_int, round_three_planes, tanh
from cortiq_triton.split_kv_attention import added_states
from cortiq_triton.tile import (
    DEEPEST,
    MAGIC_BITS,
    NONE,
    combine,
    empty,
    factors,
    page_of,
    rescaling,
    rounded,
    tile_weights,
    weight_of,
)


@device
def heads_of(
    part: Tensor, H: tl.constexpr, G: tl.constexpr, BM: tl.constexpr
) -> tuple[Tensor, Tensor, Tensor]:
    """Heads [BM] of a program, which of them exist, and their keys' head."""
    chunks = (H // G + BM - 1) // BM
    within = part % chunks * BM + tl.arange(0, BM)
    g, live = part // chunks, within < H // G
    return tl.where(live, g * (H // G) + within, 0), live, g


@device
def listed_before(listed: Tensor, key: Tensor, CHOSEN: tl.constexpr, CP: tl.constexpr) -> Tensor:
    """How many keys of an ascending list are below `key`."""
    i = tl.arange(0, CP)
    keys = tl.load(listed + i, mask=i < CHOSEN, other=2147483647)
    return tl.sum((keys < key).to(tl.int32), 0)


@device
def listed_weights(
    page: Tensor, g: Tensor, t: Tensor, there: Tensor, queries: Tensor, low_queries: Tensor,
    scale: Tensor, cap: Tensor, inverse_cap: Tensor, log2_e: Tensor, live: Tensor,
    G: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, KP: tl.constexpr, BM: tl.constexpr,
    N: tl.constexpr, DEEP: tl.constexpr, CAPPED: tl.constexpr,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """`tile_weights` of N keys, at the places t of a tile. queries : [BM] pointers to rows."""
    high = tl.full((BM, N), 0, tl.int32)
    middle, low = high, high
    for first in tl.static_range(0, DK, DEEP):
        d = first + tl.arange(0, DEEP)
        mask, inside = live[:, None] & (d < DK)[None, :], there[:, None] & (d < DK)[None, :]
        at = page + (g * 64 + t)[:, None] * DK + d[None, :]
        kh = tl.trans(tl.load(at, mask=inside, other=0))
        kl = tl.trans(tl.load(at + G * 64 * DK, mask=inside, other=0))
        qh = tl.load(queries[:, None] + d[None, :], mask=mask, other=0)
        ql = tl.load(low_queries[:, None] + d[None, :], mask=mask, other=0)
        low = tl.dot(ql, kl, low, out_dtype=tl.int32)
        middle = tl.dot(qh, kl, middle, out_dtype=tl.int32)
        middle = tl.dot(ql, kh, middle, out_dtype=tl.int32)
        high = tl.dot(qh, kh, high, out_dtype=tl.int32)
    dots = rounded(high, middle, low) if KP <= DEEPEST else round_three_planes(high, middle, low)
    exponents = page + 2 * G * 64 * (DK + DV) + g * 64 + t
    ke = tl.load(exponents, mask=there, other=0).to(tl.int32)
    ve = tl.load(exponents + G * 64, mask=there, other=0).to(tl.int32)
    s = (dots * scale) * exp2_int(ke)[None, :]
    if CAPPED:
        s = (cap * tanh(s * inverse_cap)) * log2_e
    kappa, fraction = weight_of(s)
    kappa = tl.where(there[None, :], kappa, MAGIC_BITS + NONE)
    return tile_weights(kappa, fraction, ve)


@kernel
def weigh_chosen(
    qh: Tensor, ql: Tensor, qe: Tensor, table: Tensor, owners: Tensor, positions: Tensor,
    chosen: Tensor, places: Tensor, wh: Tensor, wl: Tensor, states: Tensor, stride: Tensor,
    pages: Tensor, slot: Tensor, factor: Tensor, cap: Tensor, inverse_cap: Tensor, log2_e: Tensor,
    most: Tensor, H: tl.constexpr, G: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    KP: tl.constexpr, BM: tl.constexpr, DEEP: tl.constexpr, CAPPED: tl.constexpr,
    SETS: tl.constexpr, CHOSEN: tl.constexpr, CP: tl.constexpr, TILES: tl.constexpr,
    FEW: tl.constexpr,
) -> None:  # fmt: skip
    """Weights of the chosen keys of TILES tiles, for BM heads of a row.

    places : int32 [R, SETS, most, 2], where the keys of a tile begin in the list, and how many.
    wh, wl : int8 [R, H, CHOSEN], planes of w. states : int32 [R, H, most, 3], bits of RN(L), K, E.
    """
    begin()
    part, r, group = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    position, owner = tl.load(positions + r), tl.load(owners + r)
    head, live, g = heads_of(part, H, G, BM)
    each = r * SETS + g * SETS // G
    listed = chosen + each * CHOSEN
    last = tl.minimum((group + 1) * TILES, position // 64 + 1)
    row = (r * H + head).to(tl.int64)
    exponent = tl.load(qe + row, mask=live, other=0)
    scale = factors(exponent, factor, KP)
    if group * TILES < last:
        start = listed_before(listed, group * TILES * 64, CHOSEN, CP)
        for tile in range(group * TILES, last):
            stop = listed_before(listed, tl.minimum(tile * 64 + 64, position + 1), CHOSEN, CP)
            count = stop - start
            place = places + (each * most + tile) * 2
            tl.store(place, start)
            tl.store(place + 1, count)
            at = states + (row * most + tile) * 3
            if count > 0:
                page = page_of(table, owner, pages, tile, slot)
                if count <= FEW:
                    weigh_tile(
                        page, g, listed, tile, start, count, qh + row * stride, ql + row * stride,
                        scale, cap, inverse_cap, log2_e, live, at, wh + row * CHOSEN,
                        wl + row * CHOSEN, G, DK, DV, KP, BM, FEW, DEEP, CAPPED,
                    )  # fmt: skip
                else:
                    weigh_tile(
                        page, g, listed, tile, start, count, qh + row * stride, ql + row * stride,
                        scale, cap, inverse_cap, log2_e, live, at, wh + row * CHOSEN,
                        wl + row * CHOSEN, G, DK, DV, KP, BM, 64, DEEP, CAPPED,
                    )  # fmt: skip
            else:
                nothing = head * 0
                tl.store(at, nothing, mask=live)
                tl.store(at + 1, nothing + NONE, mask=live)
                tl.store(at + 2, nothing + NONE, mask=live)
            start = stop


@device
def weigh_tile(
    page: Tensor, g: Tensor, listed: Tensor, tile: Tensor, start: Tensor, count: Tensor,
    queries: Tensor, low_queries: Tensor, scale: Tensor, cap: Tensor, inverse_cap: Tensor,
    log2_e: Tensor, live: Tensor, at: Tensor, wh: Tensor, wl: Tensor, G: tl.constexpr,
    DK: tl.constexpr, DV: tl.constexpr, KP: tl.constexpr, BM: tl.constexpr, N: tl.constexpr,
    DEEP: tl.constexpr, CAPPED: tl.constexpr,
) -> None:  # fmt: skip
    """Weights of `count` keys of a tile, at most N, from a place in the list."""
    n = tl.arange(0, N)
    there = n < count
    t = tl.load(listed + start + n, mask=there, other=0) - tile * 64
    t = tl.where(there, t, 0)
    L, K, E, high, low = listed_weights(
        page, g, t, there, queries, low_queries, scale, cap, inverse_cap, log2_e, live, G, DK, DV,
        KP, BM, N, DEEP, CAPPED,
    )  # fmt: skip
    mask, place = live[:, None] & there[None, :], (start + n)[None, :]
    tl.store(wh[:, None] + place, high, mask=mask)
    tl.store(wl[:, None] + place, low, mask=mask)
    tl.store(at[:, None], L.to(tl.int32, bitcast=True), mask=live[:, None])
    tl.store(at[:, None] + 1, K, mask=live[:, None])
    tl.store(at[:, None] + 2, E, mask=live[:, None])


@kernel
def add_chosen(
    table: Tensor, owners: Tensor, positions: Tensor, chosen: Tensor, places: Tensor, wh: Tensor,
    wl: Tensor, states: Tensor, sums: Tensor, numbers: Tensor, pages: Tensor, slot: Tensor,
    most: Tensor, H: tl.constexpr, G: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    BM: tl.constexpr, WIDTH: tl.constexpr, SETS: tl.constexpr, CHOSEN: tl.constexpr,
) -> None:  # fmt: skip
    """State of a run of tiles: WIDTH columns of BM heads of a row.

    sums : [R, H, most / 16, DV]. numbers : int32 [R, H, most / 16, 4], bits of the mass, M, N.
    """
    begin()
    columns: tl.constexpr = (DV + WIDTH - 1) // WIDTH
    which, r, run = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    part, column = which // columns, which % columns
    position, owner = tl.load(positions + r), tl.load(owners + r)
    head, live, g = heads_of(part, H, G, BM)
    each = r * SETS + g * SETS // G
    listed, row = chosen + each * CHOSEN, (r * H + head).to(tl.int64)
    v, k = column * WIDTH + tl.arange(0, WIDTH), tl.arange(0, 32)
    inside = v < DV
    last = tl.minimum(run * 16 + 16, position // 64 + 1)
    if run * 16 < last:
        mass, M = empty(BM, 1)
        o, N = empty(BM, WIDTH)
        for tile in range(run * 16, last):
            place = places + (each * most + tile) * 2
            start, count = tl.load(place), tl.load(place + 1)
            page = page_of(table, owner, pages, tile, slot)
            values = page + 2 * G * 64 * DK + (g * DV + v)[None, :] * 64
            at = states + (row * most + tile) * 3
            L = tl.load(at, mask=live, other=0).to(tl.float32, bitcast=True)[:, None]
            K = tl.load(at + 1, mask=live, other=NONE)[:, None]
            E = tl.load(at + 2, mask=live, other=NONE)[:, None]
            high = tl.full((BM, WIDTH), 0, tl.int32)
            middle, low = high, high
            for first in range(0, count, 32):
                there = first + k < count
                t = tl.load(listed + start + first + k, mask=there, other=0) - tile * 64
                mask = there[:, None] & inside[None, :]
                source = values + tl.where(there, t, 0)[:, None]
                vh = tl.load(source, mask=mask, other=0)
                vl = tl.load(source + G * 64 * DV, mask=mask, other=0)
                weights = row[:, None] * CHOSEN + (start + first + k)[None, :]
                seen = live[:, None] & there[None, :]
                h = tl.load(wh + weights, mask=seen, other=0)
                l = tl.load(wl + weights, mask=seen, other=0)  # noqa: E741
                low = tl.dot(l, vl, low, out_dtype=tl.int32)
                middle = tl.dot(h, vl, middle, out_dtype=tl.int32)
                middle = tl.dot(l, vh, middle, out_dtype=tl.int32)
                high = tl.dot(h, vh, high, out_dtype=tl.int32)
            O = rounded(high, middle, low) * 65536.0  # noqa: E741
            mass, M = combine(mass, M, L, K)
            before, after, N = rescaling(N, E)
            o = o * before + O * after
        runs = most // 16
        state = row * runs + run
        mask = live[:, None] & inside[None, :]
        tl.store(sums + state[:, None] * DV + v[None, :], o, mask=mask)
        if column == 0:
            to = numbers + state[:, None] * 4
            tl.store(to, mass.to(tl.int32, bitcast=True), mask=live[:, None])
            tl.store(to + 1, M, mask=live[:, None])
            tl.store(to + 2, N, mask=live[:, None])


@kernel
def join_runs(
    positions: Tensor, sums: Tensor, numbers: Tensor, sink: Tensor, out: Tensor, largest: Tensor,
    logs: Tensor, faults: Tensor, log2_e: Tensor, most: Tensor, H: tl.constexpr,
    DV: tl.constexpr, VP: tl.constexpr, AHEAD: tl.constexpr, SINK: tl.constexpr,
    MASS: tl.constexpr,
) -> None:  # fmt: skip
    """Add the runs of one head of a row in their order, and finish it: out [R, H, DV]."""
    begin()
    head, r, one = tl.program_id(0), tl.program_id(1), tl.arange(0, 1)
    row, heads, live = one + r, one + head, one == 0
    at = (row * H + heads).to(tl.int64) * (most // 16)
    runs = (tl.load(positions + r) // 64) // 16 + 1
    mass, M, o, N = added_states(sums, numbers, at, live, runs, 1, DV, VP, 1, AHEAD)
    finish(
        mass, M, o, N, row, heads, live, sink, out, largest, logs, faults, log2_e, H, DV, VP, SINK,
        MASS,
    )  # fmt: skip
