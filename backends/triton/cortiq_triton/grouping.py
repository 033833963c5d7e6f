"""Rows of chosen experts, grouped by expert on the device, so that one product reads each expert's
weights once for all of its rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton.language as tl

from cortiq_triton.language import Tensor, ceil_div, kernel, launch, pow2

CHUNK = 1024
"""Rows that a program counts or places."""


class Groups(NamedTuple):
    """Rows of the output by expert; their order within one is nobody's concern.

    order : int32 [rows]. tiles : int32 [count, 3], expert, first and end in `order` of tiles of at
    most `height` rows; all −1 where there are fewer tiles. height : rows of a tile.
    """

    order: torch.Tensor
    tiles: torch.Tensor
    height: int


@kernel
def count_rows(index: Tensor, counts: Tensor, R: Tensor, CHUNK: tl.constexpr) -> None:
    """Rows of each expert, added to counts."""
    r = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    expert = tl.load(index + r, mask=r < R, other=0)
    tl.atomic_add(counts + expert, 1, mask=r < R)


@kernel
def cut_tiles(
    counts: Tensor, cursors: Tensor, tiles: Tensor, E: Tensor, BM: tl.constexpr, EP: tl.constexpr
) -> None:
    """One expert's tiles, and where its rows begin."""
    expert, e = tl.program_id(0), tl.arange(0, EP)
    count = tl.load(counts + e, mask=e < E, other=0)
    first = tl.sum(tl.where(e < expert, count, 0), 0)
    tile = tl.sum(tl.where(e < expert, (count + BM - 1) // BM, 0), 0)
    stop = first + tl.sum(tl.where(e == expert, count, 0), 0)
    tl.store(cursors + expert, first)
    for start in range(first, stop, BM):
        at = tiles + (tile + (start - first) // BM) * 3
        tl.store(at, expert)
        tl.store(at + 1, start)
        tl.store(at + 2, tl.minimum(start + BM, stop))


@kernel
def place_rows(
    index: Tensor, cursors: Tensor, order: Tensor, R: Tensor, CHUNK: tl.constexpr
) -> None:
    """Each row to a place of its expert."""
    r = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    expert = tl.load(index + r, mask=r < R, other=0)
    place = tl.atomic_add(cursors + expert, 1, mask=r < R)
    tl.store(order + place, r, mask=r < R)


def grouped(index: torch.Tensor, experts: int, height: int) -> Groups:
    """Group rows by `index`, int32, the expert of each."""
    rows, device = index.numel(), index.device
    counts = torch.zeros((2, experts), dtype=torch.int32, device=device)
    order = torch.empty(rows, dtype=torch.int32, device=device)
    most = ceil_div(rows // height + min(rows, experts), 16) * 16  # no binary for other numbers
    tiles = torch.full((most, 3), -1, dtype=torch.int32, device=device)
    grid = (ceil_div(rows, CHUNK),)
    launch(count_rows, grid, index, counts[0], rows, CHUNK=CHUNK)
    launch(
        cut_tiles, (experts,), counts[0], counts[1], tiles, experts, BM=height, EP=pow2(experts)
    )  # fmt: skip
    launch(place_rows, grid, index, counts[1], order, rows, CHUNK=CHUNK)
    return Groups(order, tiles, height)
