"""Rotary embedding: tables made on the host and kept on the device, and the turn itself."""

from __future__ import annotations

import numpy as np
import torch
import triton.language as tl

from cortiq.ir import ops
from cortiq.numerics.rope import RopeTable
from cortiq_triton.language import INTERPRETED, Tensor, ceil_div, kernel, launch, pow2
from cortiq_triton.scalar import outside, snapped

FIRST = 1024
"""Positions that a table is made for at first; it grows by doubling."""
ROWS = 256 if INTERPRETED else 4


@kernel
def turn(
    x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, axes: Tensor, out: Tensor,
    faults: Tensor, M: Tensor, heads: Tensor, width: Tensor, pairs: Tensor, count: Tensor,
    HALF: tl.constexpr, SECTIONS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Heads x [M, width]: pairs turned by the angles of their row's position, the rest passed on.

    With SECTIONS positions are [rows, count], and `axes` says which of them turns each pair.
    """
    m, i = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    live, turned = m < M, i < 2 * pairs
    if HALF:
        pair, first = i % pairs, i < pairs
        partner = tl.where(first, i + pairs, i - pairs)
    else:
        pair, first = i // 2, i % 2 == 0
        partner = tl.where(first, i + 1, i - 1)
    mask = live[:, None] & turned[None, :]
    if SECTIONS:
        axis = tl.load(axes + pair, mask=turned, other=0)
        where = (m // heads)[:, None] * count + axis[None, :]
        position = tl.load(positions + where, mask=mask, other=0)
    else:
        position = tl.load(positions + m // heads, mask=live, other=0)[:, None]
    base = m.to(tl.int64)[:, None] * width
    inside = live[:, None] & (i < width)[None, :]
    value = tl.load(x + base + i[None, :], mask=inside, other=0.0)
    other = tl.load(x + base + partner[None, :], mask=mask, other=0.0)
    angle = position.to(tl.int64) * pairs + pair[None, :]
    along = value * tl.load(cos + angle, mask=mask, other=0.0)
    across = other * tl.load(sin + angle, mask=mask, other=0.0)
    y = tl.where(first[None, :], along - across, along + across)
    y = tl.where(turned[None, :], y, value)
    tl.store(out + base + i[None, :], snapped(y), mask=inside)
    tl.store(faults + (m // heads)[:, None] + i[None, :] * 0, 1, mask=inside & outside(y))


class Angles:
    """Tables of cosines and sines on a device, as far as positions reach.

    Attributes
    ----------
    version : counts what was made anew: addresses that somebody noted are old then.
    """

    def __init__(self, device: str) -> None:
        self.device, self.version = device, 0
        self._tables: dict[RopeTable, tuple[torch.Tensor, torch.Tensor]] = {}
        self._axes: dict[object, torch.Tensor] = {}

    def reach(self, tables: set[RopeTable], positions: int) -> None:
        """Know the angles of this many positions."""
        for table in tables:
            known = len(self._tables[table][0]) if table in self._tables else 0
            if known < positions:
                size = max(FIRST, pow2(positions))
                parts = table.table(np.arange(size))
                cos, sin = (torch.from_numpy(part).to(self.device) for part in parts)
                self._tables[table] = cos, sin
                self.version += 1

    def of(self, op: ops.Rope) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Cosines, sines, and the axis of each pair (or anything, without sections)."""
        cos, sin = self._tables[op.table]
        if op.sections is None:
            return cos, sin, cos
        if op.sections not in self._axes:
            axes = torch.from_numpy(op.sections.axes.astype(np.int32))
            self._axes[op.sections] = axes.to(self.device)
        return cos, sin, self._axes[op.sections]


def rope(
    op: ops.Rope, angles: Angles, x: torch.Tensor, positions: torch.Tensor, faults: torch.Tensor
) -> torch.Tensor:
    """Turned heads of x [rows, heads, width]."""
    out, (rows, heads, width) = torch.empty_like(x), x.shape
    cos, sin, axes = angles.of(op)
    size = min(ROWS, pow2(rows * heads))
    launch(
        turn, (ceil_div(rows * heads, size),), x, cos, sin, positions, axes, out, faults,
        rows * heads, heads, width, cos.shape[1], op.sections.count if op.sections else 1,
        HALF=op.pairing == "half", SECTIONS=op.sections is not None, ROWS=size, WIDTH=pow2(width),
    )  # fmt: skip
    return out
