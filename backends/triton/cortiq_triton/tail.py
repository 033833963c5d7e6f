"""Argmax and digests, computed on the device."""

from __future__ import annotations

import torch
import triton.language as tl

from cortiq.numerics.digest import INDEX_KEY, LANE_KEYS, MIX_MULTIPLIERS
from cortiq_triton.language import (
    INTERPRETED,
    Tensor,
    ceil_div,
    constant,
    device,
    kernel,
    launch,
    pow2,
    signed,
)
from cortiq_triton.rows import ordered_bits

MIX0, MIX1 = (constant(signed(word)) for word in MIX_MULTIPLIERS)
LANE0, LANE1, LANE2, LANE3 = (constant(signed(word)) for word in LANE_KEYS)
INDEX = constant(signed(INDEX_KEY))
BLOCK = 1 << 16 if INTERPRETED else 2048
LOWEST = constant(-2147483648)


@device
def shifted(word: Tensor, distance: tl.constexpr) -> Tensor:
    """The int32 word shifted right as an unsigned one."""
    return (word >> distance) & ((1 << (32 - distance)) - 1)


@device
def mix(word: Tensor) -> Tensor:
    """The digest's bijection, on int32: products wrap alike with or without a sign."""
    word = (word ^ shifted(word, 16)) * MIX0
    word = (word ^ shifted(word, 15)) * MIX1
    return word ^ shifted(word, 16)


@kernel
def digest(x: Tensor, out: Tensor, n: Tensor, BLOCK: tl.constexpr) -> None:
    """Four words of the digest of each row of x [rows, n], added up by integer atomics."""
    row = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(x + row * n + i, mask=i < n, other=0) ^ mix(i + INDEX)
    tl.atomic_add(out + 4 * row, tl.sum(tl.where(i < n, mix(word + LANE0), 0), 0))
    tl.atomic_add(out + 4 * row + 1, tl.sum(tl.where(i < n, mix(word + LANE1), 0), 0))
    tl.atomic_add(out + 4 * row + 2, tl.sum(tl.where(i < n, mix(word + LANE2), 0), 0))
    tl.atomic_add(out + 4 * row + 3, tl.sum(tl.where(i < n, mix(word + LANE3), 0), 0))


def digests(x: torch.Tensor) -> torch.Tensor:
    """Digest of each row: int32 [rows, 4]."""
    flat = x.reshape(len(x), -1)
    n = flat.shape[1]
    out = torch.zeros((len(x), 4), dtype=torch.int32, device=x.device)
    block = min(BLOCK, pow2(n))
    launch(digest, (ceil_div(n, block), len(x)), flat.view(torch.int32), out, n, BLOCK=block)
    return out


@kernel
def argmax_parts(x: Tensor, out: Tensor, n: Tensor, parts: Tensor, BLOCK: tl.constexpr) -> None:
    """Of each block of a row: the largest value's order and place, as one int64."""
    row, part = tl.program_id(1).to(tl.int64), tl.program_id(0)
    i = part * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    key = ordered_bits(tl.load(x + row * n + i, mask=inside, other=0.0))
    order = (key.to(tl.int64) << 32) + (2147483647 - i).to(tl.int64)
    order = tl.where(inside, order, -9223372036854775807)
    tl.store(out + row * parts + part, tl.max(order, 0))


@kernel
def argmax_whole(orders: Tensor, out: Tensor, parts: Tensor, PP: tl.constexpr) -> None:
    """The place of the largest of a row's parts."""
    row, i = tl.program_id(0), tl.arange(0, PP)
    order = tl.load(orders + row * parts + i, mask=i < parts, other=-9223372036854775807)
    tl.store(out + row, (2147483647 - (tl.max(order, 0) & 0xFFFFFFFF)).to(tl.int32))


def argmax(x: torch.Tensor) -> torch.Tensor:
    """The lowest index of each row's largest value: int32 [rows]."""
    rows, n = x.shape
    block = min(BLOCK, pow2(n))
    parts = ceil_div(n, block)
    orders = torch.empty((rows, parts), dtype=torch.int64, device=x.device)
    out = torch.empty(rows, dtype=torch.int32, device=x.device)
    launch(argmax_parts, (parts, rows), x, orders, n, parts, BLOCK=block)
    launch(argmax_whole, (rows,), orders, out, parts, PP=pow2(parts))
    return out
