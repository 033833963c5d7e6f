"""Attention of single rows to keys chosen one by one: only these keys are read.

`score_chosen` computes the scores of the keys of a list, `add_chosen` the weights of each tile's
keys and the sums of values of a run of tiles, in the tiles' order, `join_runs` adds the runs. A
tile is the contract's: the same bits as `split_kv_attention`, which computes every key of it.
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
    dot_planes,
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


@kernel
def score_chosen(
    qh: Tensor, ql: Tensor, qe: Tensor, table: Tensor, owners: Tensor, positions: Tensor,
    chosen: Tensor, places: Tensor, kappas: Tensor, fractions: Tensor, stride: Tensor,
    pages: Tensor, slot: Tensor, factor: Tensor, cap: Tensor, inverse_cap: Tensor, log2_e: Tensor,
    most: Tensor, H: tl.constexpr, G: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    KP: tl.constexpr, BM: tl.constexpr, DEEP: tl.constexpr, CAPPED: tl.constexpr,
    SETS: tl.constexpr, CHOSEN: tl.constexpr, N: tl.constexpr, TILES: tl.constexpr,
) -> None:  # fmt: skip
    """`weight_of` the scores of N chosen keys, for BM heads of a row: [R, H, CHOSEN].

    places : int32 [R, SETS, most], where the keys of a tile begin in the list; of TILES tiles.
    """
    begin()
    part, r, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    position, owner = tl.load(positions + r), tl.load(owners + r)
    head, live, g = heads_of(part, H, G, BM)
    each = r * SETS + g * SETS // G
    listed = chosen + each * CHOSEN
    find_places(listed, places + each * most, chunk * TILES, most, position, CHOSEN, TILES)
    n = chunk * N + tl.arange(0, N)
    key = tl.load(listed + n, mask=n < CHOSEN, other=2147483647)
    there = key <= position
    if tl.max(there.to(tl.int32), 0) > 0:
        key = tl.where(there, key, 0)
        address = tl.load(table + owner.to(tl.int64) * pages + key // 64, mask=there, other=0)
        page, t = (address + slot).to(tl.pointer_type(tl.int8)), key % 64
        row = (r * H + head).to(tl.int64)
        high = tl.full((BM, N), 0, tl.int32)
        middle, low = high, high
        for first in tl.static_range(0, DK, DEEP):
            d = first + tl.arange(0, DEEP)
            mask, inside = live[:, None] & (d < DK)[None, :], there[:, None] & (d < DK)[None, :]
            at = (page + (g * 64 + t) * DK)[:, None] + d[None, :]
            kh = tl.trans(tl.load(at, mask=inside, other=0))
            kl = tl.trans(tl.load(at + G * 64 * DK, mask=inside, other=0))
            of = (row * stride)[:, None] + d[None, :]
            h = tl.load(qh + of, mask=mask, other=0)
            l = tl.load(ql + of, mask=mask, other=0)  # noqa: E741
            low = tl.dot(l, kl, low, out_dtype=tl.int32)
            middle = tl.dot(h, kl, middle, out_dtype=tl.int32)
            middle = tl.dot(l, kh, middle, out_dtype=tl.int32)
            high = tl.dot(h, kh, high, out_dtype=tl.int32)
        if KP <= DEEPEST:
            dots = rounded(high, middle, low)
        else:
            dots = round_three_planes(high, middle, low)
        scale = factors(tl.load(qe + row, mask=live, other=0), factor, KP)
        exponents = page + 2 * G * 64 * (DK + DV) + g * 64 + t
        s = (dots * scale) * exp2_int(tl.load(exponents, mask=there, other=0).to(tl.int32))[None, :]
        if CAPPED:
            s = (cap * tanh(s * inverse_cap)) * log2_e
        kappa, fraction = weight_of(s)
        mask, place = live[:, None] & there[None, :], row[:, None] * CHOSEN + n[None, :]
        tl.store(kappas + place, kappa, mask=mask)
        tl.store(fractions + place, fraction, mask=mask)


@device
def find_places(
    listed: Tensor, places: Tensor, first: Tensor, most: Tensor, position: Tensor,
    CHOSEN: tl.constexpr, TILES: tl.constexpr,
) -> None:  # fmt: skip
    """Store where the keys of TILES tiles begin in an ascending list; unseen ones are of none."""
    tile, i = first + tl.arange(0, TILES), tl.arange(0, 256)
    bound = tl.minimum(tile * 64, position + 1)
    below = tl.full((TILES,), 0, tl.int32)
    for start in range(0, CHOSEN, 256):
        key = tl.load(listed + start + i, mask=start + i < CHOSEN, other=2147483647)
        below += tl.sum((key[None, :] < bound[:, None]).to(tl.int32), 1)
    tl.store(places + tile, below, mask=tile < most)


@device
def added_tile(
    page: Tensor, g: Tensor, tile: Tensor, listed: Tensor, start: Tensor, count: Tensor,
    row: Tensor, live: Tensor, kappas: Tensor, fractions: Tensor, v: Tensor, mass: Tensor,
    M: Tensor, o: Tensor, N: Tensor, G: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    CHOSEN: tl.constexpr, KEYS: tl.constexpr,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The state of a run after a tile of which `count` keys are chosen, at most KEYS."""
    k = tl.arange(0, KEYS)
    there = k < count
    t = tl.where(there, tl.load(listed + start + k, mask=there, other=0) - tile * 64, 0)
    mask = there[:, None] & (v < DV)[None, :]
    source = page + 2 * G * 64 * DK + (g * DV + v)[None, :] * 64 + t[:, None]
    vh = tl.load(source, mask=mask, other=0)
    vl = tl.load(source + G * 64 * DV, mask=mask, other=0)
    exponents = page + 2 * G * 64 * (DK + DV) + (G + g) * 64 + t
    ve = tl.load(exponents, mask=there, other=0).to(tl.int32)
    at, seen = row[:, None] * CHOSEN + (start + k)[None, :], live[:, None] & there[None, :]
    kappa = tl.load(kappas + at, mask=seen, other=MAGIC_BITS + NONE)
    fraction = tl.load(fractions + at, mask=seen, other=1.0)
    L, K, E, wh, wl = tile_weights(kappa, fraction, ve)
    O = dot_planes(wh, wl, vh, vl, o.shape[0], o.shape[1], True) * 65536.0  # noqa: E741
    mass, M = combine(mass, M, L, K)
    before, after, N = rescaling(N, E)
    return mass, M, o * before + O * after, N


@kernel
def add_chosen(
    table: Tensor, owners: Tensor, positions: Tensor, chosen: Tensor, places: Tensor,
    kappas: Tensor, fractions: Tensor, sums: Tensor, numbers: Tensor, pages: Tensor, slot: Tensor,
    most: Tensor, H: tl.constexpr, G: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    BM: tl.constexpr, WIDTH: tl.constexpr, SETS: tl.constexpr, CHOSEN: tl.constexpr,
    FEW: tl.constexpr,
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
    v = column * WIDTH + tl.arange(0, WIDTH)
    last = tl.minimum(run * 16 + 16, position // 64 + 1)
    if run * 16 < last:
        mass, M = empty(BM, 1)
        o, N = empty(BM, WIDTH)
        place = places + each * most
        start, page = tl.load(place + run * 16), page_of(table, owner, pages, run * 16, slot)
        for tile in range(run * 16, last):
            following = tl.minimum(tile + 1, most - 1)  # asked for while this tile is computed
            stop = tl.load(place + following, mask=tile + 1 < most, other=CHOSEN)
            later = page_of(table, owner, pages, tl.minimum(tile + 1, last - 1), slot)
            count = stop - start
            if count > 0:
                if count <= FEW:
                    mass, M, o, N = added_tile(
                        page, g, tile, listed, start, count, row, live, kappas, fractions, v,
                        mass, M, o, N, G, DK, DV, CHOSEN, FEW,
                    )  # fmt: skip
                else:
                    mass, M, o, N = added_tile(
                        page, g, tile, listed, start, count, row, live, kappas, fractions, v,
                        mass, M, o, N, G, DK, DV, CHOSEN, 64,
                    )  # fmt: skip
            start, page = stop, later
        runs = most // 16
        state = row * runs + run
        mask = live[:, None] & (v < DV)[None, :]
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
