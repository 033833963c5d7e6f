"""Hashed n-grams: rows of a table by the last tokens of each sequence."""

from __future__ import annotations

from functools import cache

import torch
import triton.language as tl

from cortiq.backend.extents import ring_rows
from cortiq.ir import ops
from cortiq_triton.call import LaunchCall
from cortiq_triton.language import Tensor, ceil_div, kernel, launch, pow2
from cortiq_triton.mixers import keep_rows


@kernel
def hash_rows(
    tokens: Tensor, multipliers: Tensor, heights: Tensor, firsts: Tensor, fixed: Tensor,
    owners: Tensor, positions: Tensor, starts: Tensor, out: Tensor, offset: Tensor, ring: Tensor,
    end: Tensor, H: Tensor, EACH: tl.constexpr, SIZE: tl.constexpr, HP: tl.constexpr,
) -> None:  # fmt: skip
    """Numbers of rows [R, H] by the SIZE last tokens, which EACH heads hash pair, triple and on."""
    r, h = tl.program_id(0), tl.arange(0, HP)
    sequence, position = tl.load(owners + r), tl.load(positions + r)
    start = tl.load(starts + sequence)
    held = (tl.load(fixed + sequence) + offset).to(tl.pointer_type(tl.float32))
    mixed = tl.load(tokens + r).to(tl.uint64) * tl.load(multipliers).to(tl.uint64)
    number = h * 0
    over = r < 0
    for back in tl.static_range(1, SIZE):
        here, there = r - back >= start, position - back >= 0
        new = tl.load(tokens + r - back, mask=here, other=0)
        old = tl.load(held + (position - back + ring) % ring, mask=there & (r - back < start),
                      other=0.0)  # fmt: skip
        token = tl.where(here, new, old.to(tl.int32) - 1)
        over = over | (token < 0) | (token == end)
        factor = tl.load(multipliers + back).to(tl.uint64)
        mixed = mixed ^ (tl.where(over, end, token).to(tl.uint64) * factor)
        ours = (h // EACH == back - 1) & (h < H)
        height = tl.load(heights + h, mask=ours, other=1).to(tl.uint64)
        number = tl.where(ours, ((mixed + height * 0) % height).to(tl.int32), number)
    first = tl.load(firsts + h, mask=h < H, other=0)
    tl.store(out + r.to(tl.int64) * H + h, number + first, mask=h < H)


@cache
def constants(op: ops.HashNGrams, device: str) -> tuple[torch.Tensor, ...]:
    """Multipliers int64, and of each head its rows and the first of them, int32."""
    heights = torch.tensor(op.heights, dtype=torch.int32)
    firsts = (torch.cumsum(heights, 0) - heights).to(torch.int32)
    return tuple(x.to(device) for x in (torch.tensor(op.multipliers), heights, firsts))


def hash_ngrams(call: LaunchCall, token: torch.Tensor) -> torch.Tensor:
    """Numbers of rows: int32 [rows, heads]."""
    op, rows, heads = call.op, call.rows, len(call.op.heights)
    slot, offset = call.slot("ring")
    ring, size = ring_rows(slot), len(op.multipliers)
    out = torch.empty((rows.count, heads), dtype=torch.int32, device=token.device)
    launch(
        hash_rows, (rows.count,), token, *constants(op, str(token.device)), rows.fixed,
        rows.owners, rows.positions, rows.starts, out, offset, ring, op.end, heads,
        EACH=heads // (size - 1), SIZE=size, HP=pow2(heads),
    )  # fmt: skip
    kept, block = (token + 1).to(torch.float32), min(64, pow2(rows.count))
    launch(
        keep_rows, (ceil_div(rows.count, block), 1), kept, rows.fixed, rows.owners, rows.positions,
        rows.stops, rows.count, 1, offset, ring, RB=block, BC=1,
    )  # fmt: skip
    return out
