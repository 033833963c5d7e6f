"""Launches of attention to keys chosen one by one, for few rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from cortiq_triton import chosen_keys
from cortiq_triton.call import LaunchCall
from cortiq_triton.language import ceil_div, launch, pow2
from cortiq_triton.rows import Rows


@dataclass
class ChosenTuning:
    """Sizes of attention to chosen keys.

    heads : of a program at most.
    keys : of a program that computes scores. deep : dimensions of a product at a time.
    few : keys of a tile up to which its products are short. columns : of values of a program.
    """

    heads: int = 64
    keys: int = 32
    deep: int = 64
    few: int = 32
    columns: int = 64
    warps: int = 4
    sum_warps: int = 4


CHOSEN = ChosenTuning()
SPARSE = 4
"""Positions for each chosen key from which only the chosen ones are read."""


def reads_chosen_only(call: LaunchCall, op: Any, chosen: torch.Tensor) -> bool:
    """Whether rows read the chosen keys alone, not all keys of their tiles."""
    if op.block != 1 or op.window or op.until or op.slopes:
        return False
    _, sets, count = chosen.shape
    return sets in (1, op.kv_heads) and call.rows.last + 1 >= SPARSE * count


def attend_chosen(
    call: LaunchCall,
    op: Any,
    q: Rows,
    position: torch.Tensor,
    chosen: torch.Tensor,
    sink: torch.Tensor | None,
    factors: tuple[float, ...],
    answers: tuple[torch.Tensor, ...],
) -> None:
    """Fill results [rows, heads, columns], bits of the largest magnitudes, and masses."""
    rows, how = call.rows, CHOSEN
    (_, offset), (_, sets, count) = call.slot("kv"), chosen.shape
    out, largest, masses = answers
    most = max(16, rows.most_tiles(0))
    each = op.heads // op.kv_heads
    shape = (rows.count, op.heads)
    places = torch.empty((rows.count, sets, most), dtype=torch.int32, device=rows.device)
    kappas = torch.empty((*shape, count), dtype=torch.int32, device=rows.device)
    fractions = torch.empty((*shape, count), device=rows.device)
    sums = torch.empty((*shape, most // 16, op.value_dim), device=rows.device)
    numbers = torch.empty((*shape, most // 16, 4), dtype=torch.int32, device=rows.device)
    table = call.table("kv")
    sizes = {
        "H": op.heads, "G": op.kv_heads, "DK": op.key_dim, "DV": op.value_dim, "SETS": sets,
        "CHOSEN": count,
    }  # fmt: skip
    block, chunks = min(how.heads, max(16, pow2(each))), ceil_div(count, how.keys)
    parts = op.kv_heads * ceil_div(each, block)
    launch(
        chosen_keys.score_chosen, (parts, rows.count, chunks),
        *q[:3], table, rows.owners, position, chosen, places, kappas, fractions,
        q.high.shape[-1], rows.pages, offset, *factors, most, KP=max(32, pow2(op.key_dim)),
        BM=block, DEEP=min(how.deep, max(32, pow2(op.key_dim))), CAPPED=op.soft_cap is not None,
        N=how.keys, TILES=pow2(ceil_div(most, chunks)), warps=how.warps, early=True, **sizes,
    )  # fmt: skip
    width = min(how.columns, max(16, pow2(op.value_dim)))
    programs = parts * ceil_div(op.value_dim, width)
    launch(
        chosen_keys.add_chosen, (programs, rows.count, most // 16), table, rows.owners, position,
        chosen, places, kappas, fractions, sums, numbers, rows.pages, offset, most, BM=block,
        WIDTH=width, FEW=how.few, warps=how.sum_warps, early=True, **sizes,
    )  # fmt: skip
    launch(
        chosen_keys.join_runs, shape[::-1], position, sums, numbers, out if sink is None else sink,
        out, largest, masses, call.faults, factors[-1], most, H=op.heads, DV=op.value_dim,
        VP=max(32, pow2(op.value_dim)), AHEAD=8, SINK=sink is not None,
        MASS=masses is not largest, early=True,
    )  # fmt: skip
