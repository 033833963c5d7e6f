"""Products of one row with what overlays add, y + B·quantise(A·x), of three matrices at once.

A row reads the factors of its own overlay. A first launch multiplies by A, the second quantises the
few sums of a row, multiplies by B and adds. Of many rows, those of one overlay are tiles for tensor
cores (`grouping`). Where factors lie is a table in memory, a line a matrix: a launch has them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from cortiq_triton.grouping import Groups
from cortiq_triton.language import INTERPRETED, ceil_div, launch, pow2
from cortiq_triton.low_rank_rows import add_second, multiply_first
from cortiq_triton.low_rank_tiles import add_second_tiles, multiply_first_tiles
from cortiq_triton.products import EXPERTS, Stack, grouped_rows
from cortiq_triton.rows import Rows
from cortiq_triton.weights import Packed

MOST, MOST_RANK = 3, 128
"""Matrices of a launch, and the rank up to which a row's sums stay in a program."""
COLUMNS = 9
"""Words of a matrix in the table: A's codes, scales, plane, rank; the same of B with its height;
B's columns."""
RANKS, WORDS = (128, 1024) if INTERPRETED else (8, 256)
"""Rows of A, and words of them, that a program has at a time."""
OUTPUTS = 8192 if INTERPRETED else 256
"""Outputs of a program that adds one row's."""
TILED = 8192 if INTERPRETED else 128
"""Outputs of a program that adds those of a tile of rows."""


class FirstTiles(NamedTuple):
    """Rows of a tile of A·x, columns of a step, warps of its program, steps on their way."""

    rows: int = 16
    columns: int = 128
    warps: int = 2
    stages: int = 4


FIRST = FirstTiles()


class FactorBanks(NamedTuple):
    """Banks of A and B of a matrix."""

    a: Packed
    b: Packed

    def fits(self) -> bool:
        """Whether the kernels take them."""
        planes = all(weight.codes.dim() == 3 and not weight.block for weight in self)
        return planes and self.b.width <= MOST_RANK


def table_of(parts: Sequence[FactorBanks], members: int) -> torch.Tensor:
    """Return where the factors of so many overlays lie: int64 [parts, COLUMNS]."""
    lines = []
    for a, b in parts:
        height = b.height // members
        first = [a.codes.data_ptr(), a.scale.data_ptr(), a.plane // 4, a.height // members]
        second = [b.codes.data_ptr(), b.scale.data_ptr(), b.plane // 4, height, b.padded // 4]
        lines.append([*first, *second])
    return torch.tensor(lines, dtype=torch.int64).to(parts[0].a.codes.device)


def three(arrays: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """As many as kernels name; the first stands in for what there is not."""
    return tuple([*arrays, arrays[0], arrays[0]][:MOST])


class Overlaid(NamedTuple):
    """Rows x whose products `base` overlays change.

    Attributes
    ----------
    index : int32 [rows, 1], the overlays. residual : what the sum of the one product is added to.
    in_place : whether sums may lie where the products are, which nobody else reads.
    known : groups of these rows. start : when the first launch may begin.
    """

    x: Rows
    index: torch.Tensor
    base: Sequence[torch.Tensor]
    residual: torch.Tensor | None
    in_place: bool
    known: dict[tuple[int, int], Groups]
    start: int


def with_low_rank(
    table: torch.Tensor, parts: Sequence[FactorBanks], members: int, given: Overlaid,
    faults: torch.Tensor,
) -> list[torch.Tensor]:  # fmt: skip
    """Sums of products and what the overlay of each row adds to them."""
    x, index, count = given.x, given.index, len(given.index)
    ranks, heights = ([w.height // members for w in side] for side in zip(*parts, strict=True))
    how = Stack(EXPERTS, ranks[0], index=index, groups=given.known)
    groups = grouped_rows(parts[0].a, count, how)
    out = [y if given.in_place else torch.empty_like(y) for y in given.base]
    most, width, rp = max(heights), parts[0].a.padded, max(16, pow2(max(ranks)))
    residual = given.base[0] if given.residual is None else given.residual
    ends = *three(given.base), residual, *three(out), faults
    added = given.residual is not None
    if groups is None:
        sums = three([out[0].new_empty((count, rank)) for rank in ranks])
        words = x.high.view(torch.int32), x.low.view(torch.int32)
        launch(
            multiply_first, (ceil_div(max(ranks), RANKS), count, len(parts)), table, *words, x.e,
            index, *sums, faults, width // 4, words[0].shape[-1], BN=RANKS,
            BW=max(16, min(WORDS, pow2(width // 4))), START=given.start, early=True,
        )  # fmt: skip
        launch(
            add_second, (ceil_div(most, OUTPUTS), count, len(parts)), table, index, *sums, *ends,
            RP=rp, BN=OUTPUTS, RESIDUAL=added, START=given.start, early=True,
        )  # fmt: skip
    else:
        planes = torch.empty((len(parts), 2, count, rp), dtype=torch.int8, device=faults.device)
        exponents = x.e.new_empty((len(parts), count))
        rows = min(groups.height, FIRST.rows)
        cuts = groups.height // rows
        launch(
            multiply_first_tiles, (len(groups.tiles) * cuts, len(parts)), table, x.high, x.low, x.e,
            groups.order, groups.tiles, planes, exponents, faults, count, width,
            x.high.shape[-1], RP=rp, BM=rows, BK=min(FIRST.columns, max(32, pow2(width))),
            CUTS=cuts, warps=FIRST.warps, stages=FIRST.stages,
        )  # fmt: skip
        launch(
            add_second_tiles, (ceil_div(most, TILED), len(groups.tiles), len(parts)), table,
            groups.order, groups.tiles, planes.view(torch.int32), exponents, *ends, count, RP=rp,
            BN=TILED, RESIDUAL=added,
        )  # fmt: skip
    return out
