"""Entries that stand for several rows, keys that close windows, streams, and listed experts."""

from __future__ import annotations

import torch
import triton.language as tl

from cortiq.backend.extents import ring_rows
from cortiq.numerics.contract import F32
from cortiq_triton.call import LaunchCall
from cortiq_triton.language import Tensor, ceil_div, device, kernel, launch, pow2
from cortiq_triton.mixers import keep_rows
from cortiq_triton.rows import softmaxed
from cortiq_triton.scalar import exp, outside, snapped

COLUMNS = 128
"""Columns of an entry that a program computes."""


@kernel
def weigh_rows(
    x: Tensor, gates: Tensor, bias: Tensor, positions: Tensor, kept: Tensor, faults: Tensor,
    W: Tensor, RATE: tl.constexpr, BC: tl.constexpr,
) -> None:  # fmt: skip
    """Rows [x | gates and bias] of W columns each to kept [R, 2·W]."""
    r, c = tl.program_id(0).to(tl.int64), tl.program_id(1) * BC + tl.arange(0, BC)
    inside, place = c < W, tl.load(positions + tl.program_id(0)) % RATE
    gate = tl.load(gates + r * W + c, mask=inside, other=0.0)
    z = gate + tl.load(bias + place * W + c, mask=inside, other=0.0)
    tl.store(faults + r + c * 0, 1, mask=inside & outside(z))
    tl.store(kept + r * 2 * W + c, tl.load(x + r * W + c, mask=inside, other=0.0), mask=inside)
    tl.store(kept + r * 2 * W + W + c, snapped(z), mask=inside)


@kernel
def compress_rows(
    kept: Tensor, fixed: Tensor, owners: Tensor, positions: Tensor, starts: Tensor, out: Tensor,
    faults: Tensor, width: Tensor, offset: Tensor, ring: Tensor, RATE: tl.constexpr,
    PARTS: tl.constexpr, BC: tl.constexpr,
) -> None:  # fmt: skip
    """Entries of rows that close a window, zeros of others: rows of the batch, or of the ring."""
    row, c = tl.program_id(0), tl.program_id(1) * BC + tl.arange(0, BC)
    inside, position = c < width, tl.load(positions + row)
    sequence = tl.load(owners + row)
    held = (tl.load(fixed + sequence) + offset).to(tl.pointer_type(tl.float32))
    place = out + row.to(tl.int64) * width + c
    tl.store(place, 0.0, mask=inside)
    if (position + 1) % RATE == 0:
        own = position + 1 - RATE
        first = own
        if PARTS > 1:
            first = tl.where(own >= RATE, own - RATE, own)
        begun = position - (row - tl.load(starts + sequence))
        wide = PARTS * width
        most = tl.full((BC,), -1125899906842624.0, tl.float32)
        for step in range(position + 1 - first):
            at = first + step
            most = tl.maximum(most, part_of(
                kept, held, row - (position - at), at, begun, ring, wide, own, width, c, inside, 1,
                PARTS,
            ))  # fmt: skip
        total = tl.full((BC,), 0.0, tl.float32)
        y = tl.full((BC,), 0.0, tl.float32)
        for step in range(position + 1 - first):
            at = first + step
            there = row - (position - at)
            z = part_of(kept, held, there, at, begun, ring, wide, own, width, c, inside, 1, PARTS)
            value = part_of(
                kept, held, there, at, begun, ring, wide, own, width, c, inside, 0, PARTS
            )
            weight = snapped(exp(z - most))
            total = total + weight
            y = y + weight * value
        y = y * tl.div_rn(tl.full((BC,), 1.0, tl.float32), total)
        tl.store(faults + row + c * 0, 1, mask=inside & outside(y))
        tl.store(place, snapped(y), mask=inside)


@device
def part_of(
    kept: Tensor, held: Tensor, row: Tensor, at: Tensor, begun: Tensor, ring: Tensor, wide: Tensor,
    own: Tensor, width: Tensor, c: Tensor, inside: Tensor, Z: tl.constexpr, PARTS: tl.constexpr,
) -> Tensor:  # fmt: skip
    """The columns that position `at` adds to an entry, of rows or (Z) of their numbers."""
    column = c + Z * wide
    if PARTS > 1:
        column = column + tl.where(at >= own, width, 0)
    fresh = c * 0 + at >= begun
    new = tl.load(kept + row.to(tl.int64) * 2 * wide + column, mask=inside & fresh, other=0.0)
    place = held + (at % ring).to(tl.int64) * 2 * wide + column
    old = tl.load(place, mask=inside & (c * 0 + at < begun), other=0.0)
    return tl.where(fresh, new, old)


def compress(
    call: LaunchCall, x: torch.Tensor, position: torch.Tensor, gates: torch.Tensor
) -> torch.Tensor:
    """An entry of each window that a row closes."""
    op, rows, (count, wide) = call.op, call.rows, x.shape
    slot, offset = call.slot("ring")
    kept = torch.empty((count, 2 * wide), dtype=torch.float32, device=x.device)
    out = torch.empty((count, op.width), dtype=torch.float32, device=x.device)
    launch(
        weigh_rows, (count, ceil_div(wide, COLUMNS)), x, gates, call.weights["bias"],
        rows.positions, kept, call.faults, wide, RATE=op.rate, BC=COLUMNS,
    )  # fmt: skip
    ring, columns = ring_rows(slot), min(COLUMNS, pow2(op.width))
    launch(
        compress_rows, (count, ceil_div(op.width, columns)), kept, rows.fixed, rows.owners,
        rows.positions, rows.starts, out, call.faults, op.width, offset, ring, RATE=op.rate,
        PARTS=op.parts, BC=columns,
    )  # fmt: skip
    block, across = min(4, pow2(count)), 256
    launch(
        keep_rows, (ceil_div(count, block), ceil_div(2 * wide, across)), kept, rows.fixed,
        rows.owners, rows.positions, rows.stops, count, 2 * wide, offset, ring, RB=block, BC=across,
    )  # fmt: skip
    return out


@kernel
def stochastic(
    c: Tensor, out: Tensor, faults: Tensor, eps: Tensor, N: tl.constexpr, NP: tl.constexpr,
    ROUNDS: tl.constexpr,
) -> None:  # fmt: skip
    """Matrices [R, N, N] whose rows are softmaxes, made doubly stochastic."""
    r, i, j = tl.program_id(0).to(tl.int64), tl.arange(0, NP)[:, None], tl.arange(0, NP)[None, :]
    live = (i < N) & (j < N)
    place = r * N * N + i * N + j
    y = snapped(tl.load(c + place, mask=live, other=0.0) + eps)
    y = divided(y, eps, i, j, 0, N, NP)
    for _ in range(ROUNDS - 1):
        y = divided(divided(y, eps, i, j, 1, N, NP), eps, i, j, 0, N, NP)
    tl.store(out + place, y, mask=live)


@device
def divided(
    y: Tensor, eps: Tensor, i: Tensor, j: Tensor, AXIS: tl.constexpr, N: tl.constexpr,
    NP: tl.constexpr,
) -> Tensor:  # fmt: skip
    """The matrix over its sums along an axis, added one by one, and eps."""
    total = tl.full((NP,), 0.0, tl.float32)
    for at in range(N):
        line = tl.where((i if AXIS == 0 else j) == at, y.to(tl.int32, bitcast=True), 0)
        total = total + tl.sum(line, AXIS).to(tl.float32, bitcast=True)
    total = total + eps
    along = total[None, :] if AXIS == 0 else total[:, None]
    return snapped(tl.div_rn(y, along + y * 0.0))


def sinkhorn(call: LaunchCall, x: torch.Tensor) -> torch.Tensor:
    """Matrices made doubly stochastic."""
    op, p = call.op, softmaxed(x, call.faults)
    out = torch.empty_like(p)
    launch(
        stochastic, (len(x),), p, out, call.faults, float(F32(op.eps)), N=op.streams,
        NP=pow2(op.streams), ROUNDS=op.rounds,
    )  # fmt: skip
    return out


@kernel
def keys_of(
    positions: Tensor, out: Tensor, TOP: Tensor, EVERY: tl.constexpr, WIDTH: tl.constexpr
) -> None:
    """The last TOP keys that close a window, ascending, to out [R, TOP]."""
    r, i = tl.program_id(0), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    position = tl.load(positions + r)
    there = (position + 1) // EVERY
    entry = tl.maximum(there - TOP, 0) + i
    key = tl.where(entry < there, (entry + 1) * EVERY - 1, position + 1 + entry - there)
    tl.store(out + r.to(tl.int64) * TOP + i, key, mask=i < TOP)


def list_keys(call: LaunchCall, position: torch.Tensor) -> torch.Tensor:
    """Keys that close a window: int32 [rows, 1, top]."""
    op, rows = call.op, call.rows
    out = torch.empty((rows.count, 1, op.top), dtype=torch.int32, device=rows.device)
    width = min(1024, pow2(op.top))
    grid = (rows.count, ceil_div(op.top, width))
    launch(keys_of, grid, rows.positions, out, op.top, EVERY=op.every, WIDTH=width)
    return out


def window_blocks(call: LaunchCall, keys: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Windows that keys close, and the row's own: int32 [rows, 1, top + 1]."""
    own = position[:, None, None]
    listed = torch.cat([keys, torch.maximum(keys[..., -1:], own) + 1], dim=-1)
    beyond = (own + 1) // call.op.every + listed - own - 1
    return torch.where(listed > own, beyond, listed // call.op.every)


@kernel
def listed_only(
    scores: Tensor, tokens: Tensor, table: Tensor, out: Tensor, E: Tensor, LISTED: tl.constexpr,
    EP: tl.constexpr,
) -> None:  # fmt: skip
    """Scores [R, E] of the experts that a row's token lists, -2^40 elsewhere."""
    r, index = tl.program_id(0).to(tl.int64), tl.arange(0, EP)
    inside, token = index < E, tl.load(tokens + tl.program_id(0)).to(tl.int64)
    there = index < 0
    for at in range(LISTED):
        there = there | (tl.load(table + token * LISTED + at) == index.to(tl.float32))
    x = tl.load(scores + r * E + index, mask=inside, other=0.0)
    tl.store(out + r * E + index, tl.where(there, x, -1099511627776.0), mask=inside)


def keep_listed(call: LaunchCall, scores: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    """Scores of the experts that tokens list."""
    out, op = torch.empty_like(scores), call.op
    launch(
        listed_only, (len(scores),), scores, token, call.weights["table"], out, op.experts,
        LISTED=op.listed, EP=pow2(op.experts),
    )  # fmt: skip
    return out


@kernel
def selected(
    x: Tensor, index: Tensor, out: Tensor, N: Tensor, M: Tensor, WIDTH: tl.constexpr
) -> None:
    """Values of x [R, N] by an index [M], to out [R, M]; -2^40 where it names none."""
    r, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    at = tl.load(index + i, mask=i < M, other=-1.0)
    there = (at >= 0.0) & (at < N)
    value = tl.load(x + r * N + tl.where(there, at, 0.0).to(tl.int32), mask=there, other=0.0)
    tl.store(out + r * M + i, tl.where(there, value, -1099511627776.0), mask=i < M)


def index_select(call: LaunchCall, x: torch.Tensor) -> torch.Tensor:
    """Values by an index."""
    op = call.op
    out = torch.empty((len(x), op.out_width), dtype=torch.float32, device=x.device)
    width = min(1024, pow2(op.out_width))
    launch(
        selected, (len(x), ceil_div(op.out_width, width)), x, call.weights["index"], out,
        op.in_width, op.out_width, WIDTH=width,
    )  # fmt: skip
    return out
