"""Launches of attention to keys chosen one by one, for few rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from cortiq_triton import chosen_keys, chosen_scores
from cortiq_triton.call import LaunchCall
from cortiq_triton.language import ceil_div, launch, pow2
from cortiq_triton.rows import Rows


@dataclass
class ChosenTuning:
    """Sizes of attention to chosen keys.

    heads : of a program that computes scores at most, added : of one that adds, weighed : of one
    that computes weights.
    keys : of a program that computes scores. deep : dimensions of a product at a time, stages : of
    them on their way. taken : columns of values that a program takes out of a page.
    columns : of values of a program that adds, together : keys that it adds at a time.
    ahead : runs that are asked for at once.
    """

    heads: int = 64
    added: int = 32
    weighed: int = 32
    keys: int = 32
    deep: int = 64
    stages: int = 3
    taken: int = 128
    columns: int = 64
    together: int = 2
    ahead: int = 8
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
    empty = partial(torch.empty, device=rows.device)
    places = empty((rows.count, sets, most + 1), dtype=torch.int32)
    kappas = empty((rows.count, count, op.heads), dtype=torch.int32)
    fractions, weights = empty(kappas.shape), empty(kappas.shape)
    states = empty((rows.count, most, 4, op.heads), dtype=torch.int32)
    values = empty((2, rows.count, op.kv_heads, count, op.value_dim), dtype=torch.float16)
    sums = empty((*shape, most // 16, op.value_dim))
    numbers = empty((*shape, most // 16, 4), dtype=torch.int32)
    table = call.table("kv")
    lists = {"H": op.heads, "G": op.kv_heads, "SETS": sets, "CHOSEN": count}
    sizes = lists | {"DK": op.key_dim, "DV": op.value_dim}
    block, added, weighed = (
        min(n, max(16, pow2(each))) for n in (how.heads, how.added, how.weighed)
    )
    parts = op.kv_heads * ceil_div(each, block)
    taken = min(how.taken, pow2(op.value_dim))
    programs = parts + op.kv_heads * ceil_div(op.value_dim, taken)
    launch(
        chosen_scores.score_chosen, (programs, rows.count, ceil_div(count, how.keys)),
        *q[:3], table, rows.owners, position, chosen, places, kappas, fractions, *values,
        q.high.shape[-1], rows.pages, offset, *factors, most, KP=max(32, pow2(op.key_dim)),
        BM=block, DEEP=min(how.deep, max(32, pow2(op.key_dim))), CAPPED=op.soft_cap is not None,
        N=how.keys, STAGES=how.stages, COLUMNS=taken, warps=how.warps, early=True, **sizes,
    )  # fmt: skip
    launch(
        chosen_keys.weigh_chosen, (most, rows.count, op.kv_heads * ceil_div(each, weighed)),
        table, rows.owners, position, chosen, places, kappas, fractions, weights, states,
        rows.pages, offset, most, BM=weighed, warps=1, early=True, **sizes,
    )  # fmt: skip
    width = min(how.columns, max(16, pow2(op.value_dim)))
    programs = op.kv_heads * ceil_div(each, added) * ceil_div(op.value_dim, width)
    launch(
        chosen_keys.add_chosen, (programs, rows.count, most // 16), position, places, weights,
        states, *values, sums, numbers, most, DV=op.value_dim, BM=added, WIDTH=width,
        KEYS=how.together, warps=how.sum_warps, early=True, **lists,
    )  # fmt: skip
    launch(
        chosen_keys.join_runs, shape[::-1], position, sums, numbers, out if sink is None else sink,
        out, largest, masses, call.faults, factors[-1], most, H=op.heads, DV=op.value_dim,
        VP=max(32, pow2(op.value_dim)), AHEAD=how.ahead, SINK=sink is not None,
        MASS=masses is not largest, early=True,
    )  # fmt: skip
