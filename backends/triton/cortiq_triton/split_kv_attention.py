"""Attention of few rows: the tiles of their keys spread over the machine, added in their order.

A program computes a span of tiles. Where one span is not all, states of tiles wait in memory; who
comes last to a run of 16 adds its tiles, who comes last of all adds the runs. Whoever that is, the
order of the additions is the contract's.
"""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.attention import (
    finish,
    load_queries,
    queries_of,
    seen_weights,
    sight,
    slope,
    tiles_of,
)
from cortiq_triton.language import Tensor, begin, device, kernel
from cortiq_triton.tile import (
    NONE,
    combine,
    empty,
    factors,
    rescaling,
    slot_of,
    tile_values,
)


@device
def span_of(tiles: Tensor, programs: Tensor, serial: Tensor) -> Tensor:
    """Tiles of a span: a power of two, at most a run, that few programs need no second of."""
    length = tl.where(tiles <= serial, 16, 1)
    for _ in tl.static_range(4):
        length = tl.where((length < 16) & (length * programs < tiles), length * 2, length)
    return length


@device
def store_state(
    sums: Tensor, numbers: Tensor, at: Tensor, live: Tensor, mass: Tensor, M: Tensor, o: Tensor,
    N: Tensor, DV: tl.constexpr, VP: tl.constexpr,
) -> None:  # fmt: skip
    """A state of each query to its place."""
    v = tl.arange(0, VP)
    mask = live[:, None] & (v < DV)[None, :]
    tl.store(sums + at[:, None] * DV + v[None, :], o, mask=mask)
    place = numbers + at[:, None] * 4
    tl.store(place, mass.to(tl.int32, bitcast=True), mask=live[:, None])
    tl.store(place + 1, M, mask=live[:, None])
    tl.store(place + 2, N, mask=live[:, None])


@device
def added_states(
    sums: Tensor, numbers: Tensor, at: Tensor, live: Tensor, count: Tensor, step: tl.constexpr,
    DV: tl.constexpr, VP: tl.constexpr, MQ: tl.constexpr, AHEAD: tl.constexpr,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The states at `count` places, `step` apart, in order; AHEAD are asked for at once."""
    mass, M = empty(MQ, 1)
    o, N = empty(MQ, VP)
    v = tl.arange(0, VP)
    for first in range(0, count, AHEAD):
        for i in tl.static_range(AHEAD):
            there = (live & (at * 0 + (first + i) < count))[:, None]
            place = (at + (first + i) * step)[:, None]
            mask = there & (v < DV)[None, :]
            O = tl.load(  # noqa: E741
                sums + place * DV + v[None, :], mask=mask, other=0.0, cache_modifier=".cg"
            )
            bits = tl.load(numbers + place * 4, mask=there, other=0, cache_modifier=".cg")
            K = tl.load(numbers + place * 4 + 1, mask=there, other=NONE, cache_modifier=".cg")
            E = tl.load(numbers + place * 4 + 2, mask=there, other=NONE, cache_modifier=".cg")
            mass, M = combine(mass, M, bits.to(tl.float32, bitcast=True), K)
            before, after, N = rescaling(N, E)
            o = o * before + O * after
    return mass, M, o, N


@device
def is_last(counter: Tensor, expected: Tensor) -> Tensor:
    """Whether `expected` programs have come here with this one; then the next will be the first.

    What they stored before is visible to the last one after.
    """
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == expected - 1
    if last:
        tl.store(counter, 0)
    return last


@kernel
def attend_spans(
    qh: Tensor, ql: Tensor, qe: Tensor, table: Tensor, owners: Tensor, positions: Tensor,
    own: Tensor, blocks: Tensor, sink: Tensor, chosen: Tensor, slopes: Tensor, out: Tensor,
    largest: Tensor, logs: Tensor, faults: Tensor, sums: Tensor, numbers: Tensor, counters: Tensor,
    stride: Tensor, pages: Tensor, slot: Tensor, window: Tensor, factor: Tensor, cap: Tensor,
    inverse_cap: Tensor, log2_e: Tensor, most: Tensor, serial: Tensor, H: tl.constexpr,
    G: tl.constexpr, HB: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, KP: tl.constexpr,
    VP: tl.constexpr, BM: tl.constexpr, MQ: tl.constexpr, AHEAD: tl.constexpr, SINK: tl.constexpr,
    CAPPED: tl.constexpr, BLOCK: tl.constexpr, SETS: tl.constexpr, CHOSEN: tl.constexpr,
    MASS: tl.constexpr, SLOPED: tl.constexpr, STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """Queries [R, H, DK] of one sequence a block, of which the first MQ live, to out [R, H, DV].

    sums : [R, H, most, DV], numbers : [R, H, most, 4], states of tiles counted from the run of the
    first visible one. counters : zeros, one more than there are runs for each block and part."""
    part, block, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_row, row, head, live, g = queries_of(blocks, block, part, H, G, HB, BM)
    position, lowest = sight(positions, own, row, live, window)
    first, last, _, _ = tiles_of(position, lowest, live)
    highest, base = tl.max(position, 0), first // 16 * 16
    length = span_of(last - base, tl.num_programs(2), serial)
    listed = table + tl.load(owners + first_row).to(tl.int64) * pages
    at = (row * H + head).to(tl.int64) * most
    counter = counters + (block * tl.num_programs(0) + part) * (most // 16 + 2)
    begin()
    for span in range(base + split * length, last, tl.num_programs(2) * length):
        start, stop = tl.maximum(span, first), tl.minimum(span + length, last)
        if start < stop:
            high, low, exponent = load_queries(qh, ql, qe, row, head, live, stride, H, DK, KP)
            scale = factors(exponent, factor, KP)
            steep, mine = slope(slopes, own, row, head, live, SLOPED)
            blocks_of = chosen + (row * SETS + head * SETS // H) * CHOSEN
            mass, M = empty(BM, 1)
            o, N = empty(BM, VP)
            for tile in tl.range(start, stop, num_stages=STAGES):
                page = slot_of(tl.load(listed + tile), slot)
                L, K, E, wh, wl = seen_weights(  # no tile counts as whole: few rows, few tiles
                    page, g, tile, highest, high, low, scale, cap, inverse_cap, log2_e, position,
                    lowest, tile, tile, blocks_of, steep, mine, G, DK, DV, KP, BM, CAPPED, BLOCK,
                    CHOSEN, SLOPED,
                )  # fmt: skip
                O = tile_values(page, g, wh, wl, G, DK, DV, 0, VP, BM) * 65536.0  # noqa: E741
                if length < 16:
                    store_state(sums, numbers, at + tile - base, live, L, K, O, E, DV, VP)
                mass, M = combine(mass, M, L, K)
                before, after, N = rescaling(N, E)
                o = o * before + O * after
            if (start == first) & (stop == last):
                finish(
                    mass, M, o, N, row, head, live, sink, out, largest, logs, faults, log2_e, H,
                    DV, VP, SINK, MASS,
                )  # fmt: skip
            else:
                if length == 16:
                    store_state(sums, numbers, at + span - base, live, mass, M, o, N, DV, VP)
                add_up(
                    blocks, block, part, sink, out, largest, logs, faults, sums, numbers, counter,
                    span, first, last, length, most, log2_e, H, G, HB, DV, VP, MQ, AHEAD, SINK,
                    MASS,
                )  # fmt: skip


@device
def add_up(
    blocks: Tensor, block: Tensor, part: Tensor, sink: Tensor, out: Tensor, largest: Tensor,
    logs: Tensor, faults: Tensor, sums: Tensor, numbers: Tensor, counter: Tensor, span: Tensor,
    first: Tensor, last: Tensor, length: Tensor, most: Tensor, log2_e: Tensor, H: tl.constexpr,
    G: tl.constexpr, HB: tl.constexpr, DV: tl.constexpr, VP: tl.constexpr, MQ: tl.constexpr,
    AHEAD: tl.constexpr, SINK: tl.constexpr, MASS: tl.constexpr,
) -> None:  # fmt: skip
    """After a span's states are stored: its run's if no other span is missing, then all runs."""
    _, row, head, live, _ = queries_of(blocks, block, part, H, G, HB, MQ)
    at = (row * H + head).to(tl.int64) * most
    base, run = first // 16 * 16, span // 16 * 16
    runs = (last - 1) // 16 - first // 16 + 1
    start, stop = tl.maximum(run, first), tl.minimum(run + 16, last)
    spans = (stop - 1) // length - start // length + 1
    if is_last(counter + 1 + (run - base) // 16, spans):
        mass, M, o, N = added_states(
            sums, numbers, at + start - base, live, tl.where(length < 16, stop - start, 0), 1,
            DV, VP, MQ, AHEAD,
        )  # fmt: skip
        complete = runs == 1
        if runs > 1:
            if length < 16:
                tl.debug_barrier()
                store_state(sums, numbers, at + run - base, live, mass, M, o, N, DV, VP)
            complete = is_last(counter, runs)
            if complete:
                mass, M, o, N = added_states(sums, numbers, at, live, runs, 16, DV, VP, MQ, AHEAD)
        if complete:
            finish(
                mass, M, o, N, row, head, live, sink, out, largest, logs, faults, log2_e, H, DV,
                VP, SINK, MASS,
            )  # fmt: skip
