"""Attention of single rows to keys chosen one by one: only these keys are read.

`score_chosen` (`chosen_scores.py`) computes the scores of the keys of a list, `weigh_chosen` the
weights of each tile's keys and takes their values out of the pages, `add_chosen` adds a run's tiles
in their order, `join_runs` the runs. A tile is the contract's: the same bits as
`split_kv_attention`, which computes every key of it.
"""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.attention import finish
from cortiq_triton.chosen_scores import heads_of
from cortiq_triton.language import INTERPRETED, Tensor, begin, constant, device, kernel
from cortiq_triton.scalar import round_two_planes
from cortiq_triton.split_kv_attention import added_states
from cortiq_triton.tile import (
    MAGIC,
    MAGIC_BITS,
    NONE,
    combine,
    empty,
    page_of,
    rescaling,
    scaled,
)


@kernel
def weigh_chosen(
    table: Tensor, owners: Tensor, positions: Tensor, chosen: Tensor, places: Tensor,
    kappas: Tensor, fractions: Tensor, weights: Tensor, states: Tensor, pages: Tensor,
    slot: Tensor, most: Tensor, H: tl.constexpr, G: tl.constexpr, DK: tl.constexpr,
    DV: tl.constexpr, BM: tl.constexpr, SETS: tl.constexpr, CHOSEN: tl.constexpr,
) -> None:  # fmt: skip
    """The weights of a tile's keys, for BM heads, and what the tile adds to the heads' states.

    weights : integers [R, CHOSEN, H]. states : int32 [R, most, 4, H], bits of the mass, K, E, and
    the sum of the weights.
    """
    begin()
    tile, r, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    position, owner = tl.load(positions + r), tl.load(owners + r)
    if tile <= position // 64:
        head, live, g = heads_of(part, H, G, BM)
        each = r * SETS + g * SETS // G
        place = places + each * (most + 1) + tile
        start, stop = tl.load(place), tl.load(place + 1)
        page = page_of(table, owner, pages, tile, slot)
        if start < stop:
            first = r.to(tl.int64) * CHOSEN * H
            weigh_keys(
                kappas + first + head, fractions + first + head, weights + first + head,
                states + (r.to(tl.int64) * most + tile) * 4 * H + head,
                page + 2 * G * 64 * (DK + DV) + (G + g) * 64 - tile * 64,
                chosen + each * CHOSEN, start, stop, live, H, BM,
            )  # fmt: skip


@device
def weigh_keys(
    kappas: Tensor, fractions: Tensor, weights: Tensor, states: Tensor, exponents: Tensor,
    listed: Tensor, start: Tensor, stop: Tensor, live: Tensor, H: tl.constexpr, BM: tl.constexpr,
) -> None:  # fmt: skip
    """Store the weights of a tile's keys, and what the tile adds to the state of each head."""
    k, K = tl.arange(0, 8), tl.full((BM,), MAGIC_BITS + NONE, tl.int32)
    E = K
    for first in range(start, stop, 8):
        n = first + k
        j = tl.load(listed + n, mask=n < stop, other=0)
        ve = tl.load(exponents + j, mask=n < stop, other=0).to(tl.int32)[:, None]
        at, mask = n[:, None] * H, (n < stop)[:, None] & live[None, :]
        kappa = tl.load(kappas[None, :] + at, mask=mask, other=MAGIC_BITS + NONE)
        K, E = tl.maximum(K, tl.max(kappa, 0)), tl.maximum(E, tl.max(kappa + ve, 0))
    mass, total = tl.full((BM,), 0, tl.int32), tl.full((BM,), 0, tl.int32)
    for first in range(start, stop, 8):
        n = first + k
        j = tl.load(listed + n, mask=n < stop, other=0)
        ve = tl.load(exponents + j, mask=n < stop, other=0).to(tl.int32)[:, None]
        at, mask = n[:, None] * H, (n < stop)[:, None] & live[None, :]
        kappa = tl.load(kappas[None, :] + at, mask=mask, other=MAGIC_BITS + NONE)
        fraction = tl.load(fractions[None, :] + at, mask=mask, other=1.0)
        part = scaled(fraction, kappa, K[None, :], 21) + MAGIC
        mass += tl.sum(part.to(tl.int32, bitcast=True) - MAGIC_BITS, 0)
        w = scaled(fraction, kappa + ve, E[None, :], 14) + MAGIC
        total += tl.sum(w.to(tl.int32, bitcast=True) - MAGIC_BITS, 0)
        tl.store(weights[None, :] + at, w - MAGIC, mask=mask)
    tl.store(states, mass.to(tl.float32).to(tl.int32, bitcast=True), mask=live)
    tl.store(states + H, K - MAGIC_BITS, mask=live)
    tl.store(states + 2 * H, E - MAGIC_BITS, mask=live)
    tl.store(states + 3 * H, total, mask=live)


@device
def fused_by_steps(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """RN(a·b + c) where a·b is exact."""
    return a * b + c


@device
def fused_at_once(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """RN(a·b + c), one instruction."""
    return tl.inline_asm_elementwise(
        """{
        // exact
        fma.rn.f32 $0, $1, $2, $3;
        }""",
        "=f,f,f,f", [a, b, c], dtype=tl.float32, is_pure=True, pack=1,
    )  # fmt: skip


fused = fused_by_steps if INTERPRETED else fused_at_once
"""RN(a·b + c) where a·b is exact, so that two operations and one have the same bits."""
MOST_EXACT = constant(1 << 17)
"""A sum of weights up to which sums of their products with bytes, within 2²⁴, are exact floats."""


@device
def whole_sum(
    nothing: Tensor, weights: Tensor, highs: Tensor, lows: Tensor, start: Tensor, stop: Tensor,
    live: Tensor, inside: Tensor, H: tl.constexpr, DV: tl.constexpr,
) -> Tensor:  # fmt: skip
    """RN(O) of a tile's keys whatever their weights, [BM, WIDTH]: sums of integers."""
    high = nothing.to(tl.int32, bitcast=True)
    low = high
    for n in range(start, stop):
        w = tl.load(weights + n * H, mask=live, other=0.0).to(tl.int32)[:, None]
        high += w * tl.load(highs + n * DV, mask=inside, other=0.0).to(tl.int32)[None, :]
        low += w * tl.load(lows + n * DV, mask=inside, other=0.0).to(tl.int32)[None, :]
    return round_two_planes(high, low)


@device
def float_sum(
    nothing: Tensor, weights: Tensor, highs: Tensor, lows: Tensor, start: Tensor, stop: Tensor,
    live: Tensor, inside: Tensor, H: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr,
    WIDTH: tl.constexpr, KEYS: tl.constexpr,
) -> Tensor:  # fmt: skip
    """RN(O) of a tile's keys, [BM, WIDTH], where sums of both planes are exact floats."""
    high, low = nothing, nothing
    heads, columns = tl.full((BM,), 0, tl.int32) + stop, tl.full((WIDTH,), 0, tl.int32) + stop
    for first in range(start, stop, KEYS):
        for i in tl.static_range(KEYS):
            n = first + i
            w = tl.load(weights + n * H, mask=live & (heads > n), other=0.0)[:, None]
            mask = inside & (columns > n)
            vh = tl.load(highs + n * DV, mask=mask, other=0.0).to(tl.float32)[None, :]
            vl = tl.load(lows + n * DV, mask=mask, other=0.0).to(tl.float32)[None, :]
            high, low = fused(w, vh, high), fused(w, vl, low)
    return fused(high, nothing + 256.0, low)


@device
def end_of(
    states: Tensor, tile: Tensor, head: Tensor, live: Tensor, H: tl.constexpr
) -> tuple[Tensor, Tensor]:
    """E of a tile and the sum of its weights, of heads: [BM, 1]; of no use if none is chosen."""
    state = (states + tile * 4 * H + head)[:, None]
    E = tl.load(state + 2 * H, mask=live[:, None], other=NONE)
    return E, tl.load(state + 3 * H, mask=live[:, None], other=0)


@kernel
def add_chosen(
    positions: Tensor, places: Tensor, weights: Tensor, states: Tensor, highs: Tensor,
    lows: Tensor, sums: Tensor, numbers: Tensor, most: Tensor, H: tl.constexpr, G: tl.constexpr,
    DV: tl.constexpr, BM: tl.constexpr, WIDTH: tl.constexpr, SETS: tl.constexpr,
    CHOSEN: tl.constexpr, KEYS: tl.constexpr,
) -> None:  # fmt: skip
    """State of a run of tiles: WIDTH columns of BM heads of a row.

    sums : [R, H, most / 16, DV]. numbers : int32 [R, H, most / 16, 4], bits of the mass, M, N.
    """
    begin()
    columns: tl.constexpr = (DV + WIDTH - 1) // WIDTH
    which, r, run = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    part, column = which // columns, which % columns
    head, live, g = heads_of(part, H, G, BM)
    v = column * WIDTH + tl.arange(0, WIDTH)
    inside = v < DV
    last = tl.minimum(run * 16 + 16, tl.load(positions + r) // 64 + 1)
    if run * 16 < last:
        at = (r * H + head).to(tl.int64) * (most // 16) + run
        to, mask = sums + at[:, None] * DV + v[None, :], live[:, None] & inside[None, :]
        zeros = tl.load(to, mask=mask & ((at < 0) & live)[:, None], other=0.0)
        nothing = (zeros.to(tl.int32, bitcast=True) & (run >> 31)).to(tl.float32, bitcast=True)
        o, N = zeros, tl.full((BM, 1), NONE, tl.int32)
        mass, M = empty(BM, 1)
        place = places + (r * SETS + g * SETS // G) * (most + 1)
        mine = weights + r.to(tl.int64) * CHOSEN * H + head
        values = (r * G + g).to(tl.int64) * CHOSEN * DV + v
        states += r.to(tl.int64) * most * 4 * H
        start, stop = tl.load(place + run * 16), tl.load(place + run * 16 + 1)
        E, total = end_of(states, run * 16, head, live, H)
        for tile in range(run * 16, last):
            later = tl.load(place + tl.minimum(tile + 2, last))  # asked for a tile ahead
            next_E, next_total = end_of(states, tl.minimum(tile + 1, last - 1), head, live, H)
            if start < stop:
                if tl.max(total) <= MOST_EXACT:
                    O = float_sum(  # noqa: E741
                        nothing, mine, highs + values, lows + values, start, stop, live, inside, H,
                        DV, BM, WIDTH, KEYS,
                    )  # fmt: skip
                else:
                    O = whole_sum(  # noqa: E741
                        nothing, mine, highs + values, lows + values, start, stop, live, inside, H,
                        DV,
                    )  # fmt: skip
                before, after, N = rescaling(N, E)
                o = fused(O, after, o * before)
                if column == 0:
                    state = (states + tile * 4 * H + head)[:, None]
                    L = tl.load(state, mask=live[:, None], other=0).to(tl.float32, bitcast=True)
                    K = tl.load(state + H, mask=live[:, None], other=NONE)
                    mass, M = combine(mass, M, L, K)
            start, stop, E, total = stop, later, next_E, next_total
        tl.store(to, o, mask=mask)
        if column == 0:
            number = numbers + at[:, None] * 4
            tl.store(number, mass.to(tl.int32, bitcast=True), mask=live[:, None])
            tl.store(number + 1, M, mask=live[:, None])
            tl.store(number + 2, N, mask=live[:, None])


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
