"""Rows of keys and values in their pages: written, read back, scored by blocks."""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.attention import load_queries
from cortiq_triton.language import Tensor, kernel
from cortiq_triton.scalar import exp2_int, snapped
from cortiq_triton.tile import dot_planes, page_of


@kernel
def store_rows(
    kh: Tensor, kl: Tensor, ke: Tensor, vh: Tensor, vl: Tensor, ve: Tensor, table: Tensor,
    owners: Tensor, positions: Tensor, k_stride: Tensor, v_stride: Tensor, pages: Tensor,
    slot: Tensor, R: Tensor, G: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    KP: tl.constexpr, VP: tl.constexpr, RB: tl.constexpr,
) -> None:  # fmt: skip
    """Keys and values [R, G, …] of RB rows and one head, into the rows' pages."""
    r, g = tl.program_id(0) * RB + tl.arange(0, RB), tl.program_id(1)
    live = r < R
    position = tl.load(positions + r, mask=live, other=0)
    sequence = tl.load(owners + r, mask=live, other=0).to(tl.int64)
    address = tl.load(table + sequence * pages + position // 64, mask=live, other=0) + slot
    page, t = address.to(tl.pointer_type(tl.int8)), position % 64
    d = tl.arange(0, KP)
    mask = live[:, None] & (d < DK)[None, :]
    at = (r * G + g).to(tl.int64)
    source = at[:, None] * k_stride + d[None, :]
    target = page[:, None] + ((g * 64 + t) * DK)[:, None] + d[None, :]
    tl.store(target, tl.load(kh + source, mask=mask, other=0), mask=mask)
    tl.store(target + G * 64 * DK, tl.load(kl + source, mask=mask, other=0), mask=mask)
    target = page + 2 * G * 64 * (DK + DV) + g * 64 + t
    tl.store(target, tl.load(ke + at, mask=live, other=0).to(tl.int8), mask=live)
    if DV == 0:
        tl.store(target + G * 64, tl.full((RB,), -54, tl.int8), mask=live)
    else:
        v = tl.arange(0, VP)
        tl.store(target + G * 64, tl.load(ve + at, mask=live, other=0).to(tl.int8), mask=live)
        mask = live[:, None] & (v < DV)[None, :]
        source = at[:, None] * v_stride + v[None, :]
        target = page[:, None] + 2 * G * 64 * DK + (g * DV + v)[None, :] * 64 + t[:, None]
        tl.store(target, tl.load(vh + source, mask=mask, other=0), mask=mask)
        tl.store(target + G * 64 * DV, tl.load(vl + source, mask=mask, other=0), mask=mask)


@kernel
def recall_rows(
    table: Tensor, owners: Tensor, positions: Tensor, out: Tensor, faults: Tensor, pages: Tensor,
    slot: Tensor, R: Tensor, G: tl.constexpr, DK: tl.constexpr, KP: tl.constexpr,
    RB: tl.constexpr,
) -> None:  # fmt: skip
    """Keys of RB rows' own positions as floats [R, G, DK]; +0 where there is no page."""
    r, g = tl.program_id(0) * RB + tl.arange(0, RB), tl.program_id(1)
    position = tl.load(positions + r, mask=r < R, other=0)
    sequence = tl.load(owners + r, mask=r < R, other=0).to(tl.int64)
    known = (r < R) & (position // 64 < pages)
    address = tl.load(table + sequence * pages + position // 64, mask=known, other=0)
    known = known & (address != 0)
    page, t, d = (address + slot).to(tl.pointer_type(tl.int8)), position % 64, tl.arange(0, KP)
    mask = known[:, None] & (d < DK)[None, :]
    at = page[:, None] + ((g * 64 + t) * DK)[:, None] + d[None, :]
    high = tl.load(at, mask=mask, other=0).to(tl.int32)
    low = tl.load(at + G * 64 * DK, mask=mask, other=0).to(tl.int32)
    e = tl.load(page + 2 * G * 64 * DK + g * 64 + t, mask=known, other=0).to(tl.int32)
    e = tl.minimum(tl.maximum(e, -54), 36)  # what was never written is replaced by its row
    y = (high * 256 + low).to(tl.float32) * exp2_int(e)[:, None]
    inside = (r < R)[:, None] & (d < DK)[None, :]
    tl.store(out + ((r * G + g) * DK).to(tl.int64)[:, None] + d[None, :], snapped(y), mask=inside)


@kernel
def choose_blocks(
    qh: Tensor, ql: Tensor, qe: Tensor, table: Tensor, owners: Tensor, positions: Tensor,
    best: Tensor, out: Tensor, stride: Tensor, pages: Tensor, slot: Tensor, room: Tensor,
    H: tl.constexpr, DK: tl.constexpr, KP: tl.constexpr, HP: tl.constexpr, BLOCK: tl.constexpr,
    TOP: tl.constexpr, LOCAL: tl.constexpr, BP: tl.constexpr,
) -> None:  # fmt: skip
    """One row: out [R, H, TOP], the blocks taken; best [R, H, room] holds their scores meanwhile.

    Scores are ordered as integers. A block of rank 0 (local) comes before those of rank 1.
    """
    r = tl.program_id(0)
    position, sequence = tl.load(positions + r), tl.load(owners + r)
    h, t, d = tl.arange(0, HP), tl.arange(0, 64), tl.arange(0, KP)
    live = h < H
    row = tl.full((HP,), 0, tl.int32) + r
    high, low, exponent = load_queries(
        qh, ql, qe, row, tl.where(live, h, 0), live, stride, H, DK, KP
    )
    keys = t[:, None] * DK + d[None, :]
    inside = (d < DK)[None, :] & (t >= 0)[:, None]
    at = (r * H + h).to(tl.int64) * room
    for tile in range(position // 64 + 1):
        page = page_of(table, sequence, pages, tile, slot)
        kh, kl = (
            tl.load(page + keys, mask=inside, other=0),
            tl.load(page + keys + 64 * DK, mask=inside, other=0),
        )
        j = tile * 64 + t
        seen = j <= position
        ke = tl.where(seen, tl.load(page + 128 * DK + t).to(tl.int32), 0)
        dots = dot_planes(high, low, tl.trans(kh), tl.trans(kl), HP, 64, False)
        s = dots * exp2_int(exponent[:, None] + ke[None, :])
        s = tl.where(s == 0.0, 0.0, s)
        bits = s.to(tl.int32, bitcast=True)
        key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
        for block in range(tile * 64 // BLOCK, tl.minimum(tile * 64 + 63, position) // BLOCK + 1):
            mine = (seen & (j // BLOCK == block))[None, :] & live[:, None]
            largest = tl.max(tl.where(mine, key, -2147483648), 1)
            before = tl.load(
                best + at + block,
                mask=live & (h * 0 + block * BLOCK < tile * 64),
                other=-2147483648,
            )
            tl.store(best + at + block, tl.maximum(before, largest), mask=live)
    tl.debug_barrier()  # other threads read the scores now
    count, index = position // BLOCK + 1, tl.arange(0, BP)
    known = live[:, None] & (index < count)[None, :]
    key = tl.load(best + at[:, None] + index[None, :], mask=known, other=-2147483648).to(tl.int64)
    local = (index >= count - LOCAL) & (index < count)
    key = tl.where(local[None, :], 4294967296, key)
    key = tl.where((index >= count)[None, :], -4294967296, key)
    order = (key << 24) + (16777215 - index)[None, :].to(tl.int64)
    taken = tl.full((HP, BP), 0, tl.int32)
    for _ in range(TOP):
        rest = tl.where(taken > 0, -9223372036854775807, order)
        taken = tl.where(rest == tl.max(rest, 1)[:, None], 1, taken)
    for place in range(TOP):
        lowest = tl.min(tl.where(taken > 0, index[None, :], BP), 1)
        tl.store(out + (r * H + h) * TOP + place, lowest, mask=live)
        taken = tl.where(index[None, :] == lowest[:, None], 0, taken)
