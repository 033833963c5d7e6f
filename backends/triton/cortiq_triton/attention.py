"""Attention over pages of 64 keys: int8 tensor-core dots, integer exponents, base 2.

A page is a tile of the contract. `attend_stream` walks over a query's tiles in order, for prompts;
`split_kv_attention.attend_spans` computes tiles in parallel and adds them in order, for decoding:
same bits.
"""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.language import Tensor, device, kernel
from cortiq_triton.scalar import exp2_int, inverse, log, magnitude_bits, outside, snapped
from cortiq_triton.tile import (
    MAGIC_BITS,
    NONE,
    combine,
    empty,
    factors,
    rescaling,
    slot_of,
    tile_exponents,
    tile_scores,
    tile_values,
    tile_weights,
    unseen_away,
    weight_of,
)


@device
def queries_of(
    blocks: Tensor, block: Tensor, part: Tensor, H: tl.constexpr, G: tl.constexpr,
    HB: tl.constexpr, BM: tl.constexpr,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """First row, and rows, heads and validity of a program's BM queries, and their keys' head."""
    first, count = tl.load(blocks + 2 * block), tl.load(blocks + 2 * block + 1)
    chunks = (H // G + HB - 1) // HB
    g, chunk = part // chunks, part % chunks
    m = tl.arange(0, BM)
    within = chunk * HB + m % HB
    live = (m // HB < count) & (within < H // G)
    row = tl.where(live, first + m // HB, first)
    return first, row, tl.where(live, g * (H // G) + within, 0), live, g


@device
def sight(
    positions: Tensor, own: Tensor, row: Tensor, live: Tensor, window: Tensor
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Last and first keys of queries, −1 and 0 if dead; windows count back from `own` positions."""
    position = tl.where(live, tl.load(positions + row), -1)
    behind = tl.where(live, tl.load(own + row), -1) - window + 1
    return position, tl.where(window > 0, tl.maximum(behind, 0), 0)


@device
def slope(
    slopes: Tensor, own: Tensor, row: Tensor, head: Tensor, live: Tensor, SLOPED: tl.constexpr
) -> tuple[Tensor, Tensor]:
    """Return how fast queries' scores fall with distance, and the positions it counts from."""
    steep, at = row.to(tl.float32), row
    if SLOPED:
        steep, at = tl.load(slopes + head), tl.where(live, tl.load(own + row), 0)
    return steep, at


@device
def tiles_of(
    position: Tensor, lowest: Tensor, live: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """First tile and end of those that queries see; first and end of those that all see whole."""
    first, last = tl.min(tl.where(live, lowest, 2147483647), 0) // 64, tl.max(position, 0) // 64
    begun = (tl.max(tl.where(live, lowest, 0), 0) + 63) // 64
    return first, last + 1, begun, (tl.min(tl.where(live, position, 2147483646), 0) + 1) // 64


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
    some = M > NONE
    if SINK:
        kappa, fraction = weight_of(tl.load(sink + head)[:, None] * log2_e)
        total, M = combine(total, M, fraction * 2097152.0, kappa - MAGIC_BITS)
    shift = N - M + 7
    power = tl.where(shift < -126, 0.0, exp2_int(tl.minimum(tl.maximum(shift, -126), 127)))
    return tl.where(some, (o * inverse(tl.where(some, total, 1.0))) * power, 0.0)


@device
def log_mass(
    total: Tensor, M: Tensor, sink: Tensor, head: Tensor, log2_e: Tensor, SINK: tl.constexpr
) -> Tensor:
    """The logarithm of l·2^(M−21), with the head's sink in l; −2¹⁵ where no key was seen."""
    some = M > NONE
    if SINK:
        kappa, fraction = weight_of(tl.load(sink + head)[:, None] * log2_e)
        total, M = combine(total, M, fraction * 2097152.0, kappa - MAGIC_BITS)
    exponent = tl.where(some, M - 21, 0).to(tl.float32)
    y = log(tl.where(some, total, 1.0)) + exponent * 0.6931471805599453
    return tl.where(some, snapped(y), -32768.0)


@device
def answer(
    y: Tensor, out: Tensor, faults: Tensor, at: Tensor, row: Tensor, live: Tensor,
    DV: tl.constexpr, FIRST: tl.constexpr, WIDTH: tl.constexpr,
) -> Tensor:  # fmt: skip
    """Columns FIRST … of results y to out [R, H, DV], snapped, with faults: bits of the largest."""
    v = FIRST + tl.arange(0, WIDTH)
    mask = live[:, None] & (v < DV)[None, :]
    tl.store(faults + row[:, None] + v[None, :] * 0, 1, mask=mask & outside(y))
    y = snapped(y)
    tl.store(out + at[:, None] * DV + v[None, :], y, mask=mask)
    return tl.max(magnitude_bits(y), 1)


@device
def finish(
    total: Tensor, M: Tensor, o: Tensor, N: Tensor, row: Tensor, head: Tensor, live: Tensor,
    sink: Tensor, out: Tensor, largest: Tensor, logs: Tensor, faults: Tensor, log2_e: Tensor,
    H: tl.constexpr, DV: tl.constexpr, VP: tl.constexpr, SINK: tl.constexpr, MASS: tl.constexpr,
) -> None:  # fmt: skip
    """All columns of a state's result, its largest magnitude, and with MASS its mass."""
    at = (row * H + head).to(tl.int64)
    y = result(total, M, o, N, sink, head, log2_e, SINK)
    tl.store(largest + at, answer(y, out, faults, at, row, live, DV, 0, VP), mask=live)
    if MASS:
        tl.store(logs + at[:, None], log_mass(total, M, sink, head, log2_e, SINK), live[:, None])


@device
def added_to(
    out: Tensor, at: Tensor, live: Tensor, before: Tensor, o: Tensor, after: Tensor,
    earlier: Tensor, later: Tensor, DV: tl.constexpr, FIRST: tl.constexpr, WIDTH: tl.constexpr,
) -> Tensor:  # fmt: skip
    """Columns of `earlier` runs' sums, kept in out, and of this run's, kept for `later` ones."""
    v = FIRST + tl.arange(0, WIDTH)
    mask = live[:, None] & (v < DV)[None, :]
    place = out + at[:, None] * DV + v[None, :]
    sums = (
        tl.load(place, mask=mask & (v * 0 + earlier > 0)[None, :], other=0.0) * before + o * after
    )
    tl.store(place, sums, mask=mask & (v * 0 + later > 0)[None, :])
    return sums


@device
def seen_weights(
    page: Tensor, g: Tensor, tile: Tensor, highest: Tensor, high: Tensor, low: Tensor,
    scale: Tensor, cap: Tensor, inverse_cap: Tensor, log2_e: Tensor, position: Tensor,
    lowest: Tensor, begun: Tensor, whole: Tensor, blocks_of: Tensor, steep: Tensor, at: Tensor,
    G: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, KP: tl.constexpr, BM: tl.constexpr,
    CAPPED: tl.constexpr, BLOCK: tl.constexpr, CHOSEN: tl.constexpr, SLOPED: tl.constexpr,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """`tile_weights` of a tile's keys; those out of sight are looked for where there may be any."""
    ke, ve = tile_exponents(page, g, tile, highest, G, DK, DV)
    kappa, fraction = tile_scores(
        page, g, high, low, scale, ke, cap, inverse_cap, log2_e, steep, tile * 64 - at, G, DK, KP,
        BM, CAPPED, SLOPED,
    )  # fmt: skip
    if (tile >= whole) | (tile < begun) | (BLOCK > 0):
        kappa = unseen_away(kappa, tile, position, lowest, blocks_of, BM, BLOCK, CHOSEN)
    return tile_weights(kappa, fraction, ve)


@kernel
def attend_stream(
    qh: Tensor, ql: Tensor, qe: Tensor, table: Tensor, owners: Tensor, positions: Tensor,
    own: Tensor, blocks: Tensor, sink: Tensor, chosen: Tensor, slopes: Tensor, out: Tensor,
    largest: Tensor, logs: Tensor, faults: Tensor, stride: Tensor, pages: Tensor, slot: Tensor,
    window: Tensor, factor: Tensor, cap: Tensor, inverse_cap: Tensor, log2_e: Tensor,
    H: tl.constexpr, G: tl.constexpr, HB: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    KP: tl.constexpr, VP: tl.constexpr, BM: tl.constexpr, SINK: tl.constexpr, CAPPED: tl.constexpr,
    BLOCK: tl.constexpr, SETS: tl.constexpr, CHOSEN: tl.constexpr, MASS: tl.constexpr,
    SLOPED: tl.constexpr, REST: tl.constexpr, STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """Queries [R, H, DK] of one sequence a block to out [R, H, DV], tile after tile.

    largest : int32 [R, H], bits of the largest magnitudes. logs : [R, H], masses with MASS. Values'
    columns come as VP / 2 and REST more, which fit into registers; earlier runs wait in `out`."""
    block = tl.num_programs(1) - 1 - tl.program_id(1)  # long rows come last and begin first
    first_row, row, head, live, g = queries_of(blocks, block, tl.program_id(0), H, G, HB, BM)
    position, lowest = sight(positions, own, row, live, window)
    first, last, begun, whole = tiles_of(position, lowest, live)
    high, low, exponent = load_queries(qh, ql, qe, row, head, live, stride, H, DK, KP)
    scale = factors(exponent, factor, KP)
    steep, mine = slope(slopes, own, row, head, live, SLOPED)
    blocks_of = chosen + (row * SETS + head * SETS // H) * CHOSEN
    HALF: tl.constexpr = VP // 2
    listed = table + tl.load(owners + first_row).to(tl.int64) * pages
    at, highest = (row * H + head).to(tl.int64), tl.max(position, 0)
    total, M = empty(BM, 1)
    o0, N = empty(BM, HALF)
    o1, N = empty(BM, REST)
    for run in range(first // 16 * 16, last, 16):
        start, stop = tl.maximum(run, first), tl.minimum(run + 16, last)
        mass, mm = empty(BM, 1)
        o0, nn = empty(BM, HALF)
        o1, nn = empty(BM, REST)
        address = tl.load(listed + start)
        for tile in tl.range(start, stop, num_stages=STAGES):
            page = slot_of(address, slot)
            address = tl.load(listed + tl.minimum(tile + 1, last - 1))
            L, K, E, wh, wl = seen_weights(
                page, g, tile, highest, high, low, scale, cap, inverse_cap, log2_e, position,
                lowest, begun, whole, blocks_of, steep, mine, G, DK, DV, KP, BM, CAPPED, BLOCK,
                CHOSEN, SLOPED,
            )  # fmt: skip
            mass, mm = combine(mass, mm, L, K)
            before, after, nn = rescaling(nn, E, 16)
            o0 = o0 * before + tile_values(page, g, wh, wl, G, DK, DV, 0, HALF, BM) * after
            o1 = o1 * before + tile_values(page, g, wh, wl, G, DK, DV, HALF, REST, BM) * after
        total, M = combine(total, M, mass, mm)
        before, after, N = rescaling(N, nn)
        earlier, later = tl.maximum(run - first, 0), tl.maximum(last - stop, 0)
        if earlier + later > 0:
            o0 = added_to(out, at, live, before, o0, after, earlier, later, DV, 0, HALF)
            o1 = added_to(out, at, live, before, o1, after, earlier, later, DV, HALF, REST)
            tl.debug_barrier()
    o0 = result(total, M, o0, N, sink, head, log2_e, SINK)
    o1 = result(total, M, o1, N, sink, head, log2_e, SINK)
    if MASS:
        tl.store(logs + at[:, None], log_mass(total, M, sink, head, log2_e, SINK), live[:, None])
    most = answer(o0, out, faults, at, row, live, DV, 0, HALF)
    most = tl.maximum(most, answer(o1, out, faults, at, row, live, DV, HALF, REST))
    tl.store(largest + at, most, mask=live)
