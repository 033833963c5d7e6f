"""Products of rows with weights, stacks of heads and experts, and look-ups."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from cortiq_triton import hopper_products, matmul, matvec
from cortiq_triton.grouping import Groups, grouped
from cortiq_triton.host_codes import BYTES, FLOATS, NIBBLES, PLANES, WIDE
from cortiq_triton.language import INTERPRETED, ceil_div, launch, pow2, shared_memory
from cortiq_triton.matmul_blocks import matmul_blocks, sums_across
from cortiq_triton.matvec_blocks import matvec_blocks
from cortiq_triton.rows import Rows
from cortiq_triton.scales import E4M3S
from cortiq_triton.tuning import Tuning, tuning
from cortiq_triton.weights import FloatMatrix, Packed, block_constants

PLAIN, HEADS, EXPERTS = range(3)
"""Which matrix of a stack meets a row: there is one; its head's; the one that its index names."""


@dataclass(frozen=True)
class Stack:
    """Pairing of rows with matrices.

    Attributes
    ----------
    choice : PLAIN, HEADS or EXPERTS. height : rows of one matrix. per : rows of the output that
        share a row of x. count : heads. group : rows of the output that share a fault flag.
    index : experts, int32, one a row of the output.
    bias, residual : added to the output, in this order, each sum snapped.
    parts : heights of the matrices whose outputs are kept apart, three at most; none for one.
    groups : rows of `index` grouped, by experts and rows of a tile, for products to share.
    """

    choice: int
    height: int
    per: int = 1
    count: int = 1
    group: int = 1
    index: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    residual: torch.Tensor | None = None
    parts: tuple[int, ...] = ()
    groups: dict[tuple[int, int], Groups] = field(default_factory=dict)

    @property
    def cuts(self) -> tuple[int, int]:
        """Return the columns at which the second and the third part begin."""
        first = self.parts[0] if self.parts else self.height
        return first, first + self.parts[1] if len(self.parts) > 2 else self.height

    def ending(self, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Bias and residual; `other` stands in for what there is not."""
        found = (self.bias, self.residual)
        bias, residual = (other if part is None else part for part in found)
        return bias, residual

    @property
    def endings(self) -> dict[str, Any]:
        """Compile-time facts of them."""
        return {
            "BIASED": self.bias is not None,
            "RESIDUAL": self.residual is not None,
            "PARTS": max(1, len(self.parts)),
        }


def _parts(weight: Packed, codes: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Codes, bits above them (as wide), scales, minima or factors, sub-scales, offsets; the codes
    stand in for what there is not.
    """
    bits = codes if weight.bits is None else weight.bits.view(codes.dtype)
    low = weight.factors if weight.minimum is None else weight.minimum
    optional = (low, weight.sub_scales, weight.offsets)
    return codes, bits, weight.scale, *(codes if part is None else part for part in optional)


def product(
    weight: Packed | FloatMatrix,
    x: Rows | torch.Tensor,
    rows: int,
    faults: torch.Tensor,
    how: Stack,
) -> torch.Tensor:
    """Rows of the output, [rows, height], float32."""
    device = faults.device
    out = torch.empty((rows, how.height), dtype=torch.float32, device=device)
    if isinstance(weight, FloatMatrix):
        assert isinstance(x, torch.Tensor)
        _floats(weight, x, out, faults, how)
        return out
    assert isinstance(x, Rows)
    groups = grouped_rows(weight, rows, how)
    few = groups is None if how.choice == EXPERTS else rows <= tuning().few and how.choice == PLAIN
    if few:
        _few(weight, x, out, faults, how)
    else:
        _many(weight, x, out, faults, how, groups)
    return out


def lets_next(weight: Packed, rows: int) -> bool:
    """Whether a product of so many rows starts once all launches before it are done, and lets the
    next one start then.
    """
    many = rows > tuning().few and tuning().special
    kernel = hopper_products.kernel_for(weight, rows, rows + 1) if many else None
    return kernel is hopper_products.multiply_codes


def _few(weight: Packed, x: Rows, out: torch.Tensor, faults: torch.Tensor, how: Stack) -> None:
    sizes, (rows, n) = tuning(), out.shape
    rb = 1 if how.choice else min(sizes.rows, pow2(rows))
    planes = x.high.view(torch.int32), x.low.view(torch.int32), x.e
    index = x.e if how.index is None else how.index
    words, kw = weight.words, weight.padded // 4
    last = (*how.cuts, how.per, how.count, how.group)
    if not weight.block:
        stride = planes[0].shape[-1]
        plane, bw = weight.plane // 4, max(16, min(sizes.bw, pow2(kw)))
        bn = min(sizes.bn * max(1, sizes.bw // bw), pow2(n))  # of short rows more
        grid = ceil_div(n, bn), ceil_div(rows, rb)
        launch(
            matvec.matvec_rows, grid, words, weight.scale, *planes, index, *how.ending(out), out,
            faults, rows, n, kw, stride, plane, *last, CHOICE=how.choice, **how.endings,
            PLANES=1 + (weight.kind == PLANES), RB=rb, BN=bn,
            BW=bw, warps=sizes.warps, early=True,
        )  # fmt: skip
        return
    bn = min(sizes.bn_e2m1 if weight.e2m1 else sizes.bn_blocked, pow2(n))
    span = sizes.span
    codes, bits, scale, *others = _parts(weight, words)
    if weight.forms[0] == E4M3S:  # two bytes at a time
        scale = scale.view(torch.int16)
    units = weight.padded // 32
    launch(
        matvec_blocks, (ceil_div(n, bn), rows), codes, bits, scale, *others, *planes, x.sums, index,
        *how.ending(out), out, faults, rows, n, units, weight.blocks, *last, CHOICE=how.choice,
        **how.endings, NIBBLES=weight.kind == NIBBLES, **block_constants(weight),
        EVEN=units % span == 0, ONCE=units <= span, BN=bn, T=span, warps=max(1, span // 32),
        early=True,
    )  # fmt: skip


def stages_that_fit(wanted: int, nbytes: int) -> int:
    """Steps of a loop on their way at once, each with so many bytes in shared memory."""
    return max(1, min(wanted, shared_memory() // nbytes))


def _tile_sizes(sizes: Tuning, weight: Packed, rows: int) -> tuple[int, int, int]:
    """Rows and columns of a tile, and warps of its program."""
    if weight.block:
        return sizes.bm_blocks, sizes.bn_blocks, sizes.warps_blocks
    if rows <= sizes.some:
        return sizes.bm, sizes.bn_some, sizes.warps_some
    return sizes.bm, sizes.bn_many, sizes.warps_many


def grouped_rows(weight: Packed, rows: int, how: Stack) -> Groups | None:
    """Return the rows of experts by expert; None if they are few or no experts choose."""
    if how.choice != EXPERTS or how.index is None:
        return None
    experts = weight.height // how.height
    if rows < tuning().grouped * experts:
        return None
    most = tuning().bm_blocks if weight.block else tuning().bm
    height = max(16, min(most, pow2(rows // experts)))
    known = how.groups.get((experts, height))
    if known is None:
        known = how.groups[experts, height] = grouped(how.index, experts, height)
    return known


def _many(
    weight: Packed, x: Rows, out: torch.Tensor, faults: torch.Tensor, how: Stack,
    groups: Groups | None,
) -> None:  # fmt: skip
    sizes, (rows, n) = tuning(), out.shape
    special = how.choice == PLAIN and sizes.special
    own = hopper_products.kernel_for(weight, rows, sizes.laid) if special else None
    if own is not None:
        own(weight, x, out, faults, how.ending(out), (*how.cuts, how.group), how.endings)
        return
    heads = how.count if how.choice == HEADS else 1
    each = rows // heads
    bm, bn, warps = _tile_sizes(sizes, weight, each)
    bm, bn = max(16, min(bm, pow2(each))), max(16, min(bn, pow2(n)))
    down, which = ceil_div(each, bm), (x.e, x.e)
    if groups is not None:
        bm, which = groups.height, (groups.order, groups.tiles)
        down = heads = len(groups.tiles)
    grid = (down * ceil_div(n, bn), 1 if groups else heads)
    planes = x.high, x.low, x.e, *which
    last = (*how.cuts, heads, how.per, how.group)
    known = {"CHOICE": how.choice, **how.endings, "BM": bm, "BN": bn, "GROUP": sizes.group}
    if not weight.block:
        count, few = 1 + (weight.kind == PLANES), each <= sizes.some
        bk = min(sizes.bk_some if few else sizes.bk, max(32, pow2(weight.padded)))
        stages = stages_that_fit(
            sizes.stages_some if few else sizes.stages, bk * (2 * bm + count * bn)
        )
        launch(
            matmul.matmul_rows, grid, weight.codes, weight.scale, *planes, *how.ending(out), out,
            faults, each, n, weight.padded, x.high.shape[-1], weight.plane, *last, **known,
            PLANES=count, BK=bk, warps=warps, stages=stages,
        )  # fmt: skip
        return
    sums, turn = sums_across(weight, x), sizes.turn if weight.padded % (32 * sizes.turn) == 0 else 2
    turn = min(turn, 4) if weight.block == 16 else turn  # eight blocks are a run
    width = 0 if weight.offsets is None else sums.shape[-1]  # else a number of rows, unread
    launch(
        matmul_blocks, grid, *_parts(weight, weight.codes), *planes, sums, *how.ending(out), out,
        faults, each, n, weight.padded, weight.blocks, weight.padded // (weight.sub or 32),
        x.e.numel(), width, *last, **known, NIBBLES=weight.kind == NIBBLES,
        **block_constants(weight), TURN=turn, warps=warps, stages=sizes.stages_blocks,
    )  # fmt: skip


def _floats(
    weight: FloatMatrix, x: torch.Tensor, out: torch.Tensor, faults: torch.Tensor, how: Stack
) -> None:
    rows, n = out.shape
    bn = min(512 if INTERPRETED else 8, pow2(n))
    launch(
        matmul.matmul_floats, (ceil_div(n, bn), rows), x, weight.values,
        x if how.index is None else how.index, out, faults, n, weight.width, how.per, how.count,
        how.group, CHOICE=how.choice, BN=bn,
    )  # fmt: skip


def look_up(table: Packed | FloatMatrix, ids: torch.Tensor, faults: torch.Tensor) -> torch.Tensor:
    """Rows of a table as floats; an id past the table gives +0."""
    out = torch.empty((len(ids), table.width), dtype=torch.float32, device=ids.device)
    width = min(pow2(table.width), 1 << 13 if INTERPRETED else 1024)
    grid = (len(ids), ceil_div(table.width, width))
    if isinstance(table, FloatMatrix):
        values = table.values
        launch(
            matmul.gather_rows, grid, *[values] * 6, ids, out, faults, table.height, table.width,
            table.width, 0, 0, KIND=FLOATS, BLOCK=0, WIDE=0, SUB=0, SCALED=False,
            MINIMUM=False, OFFSETS=False, BIAS=0, E2M1=False, HIGH=0, FORM=0, LOW_FORM=0, SHARE=1,
            WIDTH=width,
        )  # fmt: skip
        return out
    plane = table.plane
    assert table.kind in (BYTES, NIBBLES, PLANES, WIDE)
    launch(
        matmul.gather_rows, grid, *_parts(table, table.codes), ids, out, faults, table.height,
        table.width, table.padded, table.blocks, plane, KIND=table.kind, **block_constants(table),
        WIDTH=width,
    )  # fmt: skip
    return out
