"""Weights on the device, and what meets them: products, look-ups, stacks of experts and heads.

Codes stay small integers in memory. A product converts a tile of them to float64, in which sums of
16-bit products are exact in any order up to 2⁵³: whatever the library, one rounding remains, that
of the block's integer to float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from cortiq.numerics.contract import RUN_BLOCKS
from cortiq.numerics.layouts import Weight, decode, floats
from cortiq.numerics.matmul import check_columns
from cortiq_torch.arithmetic import FLOATS, Rows, snap

TILE = 1 << 21
"""Numbers that a product holds at a time, about."""
Span = tuple[int, int]


class Matrix:
    """A weight [N, K]: codes by blocks of columns with their scales, or plain floats."""

    def __init__(self, weight: Weight, name: str, device: str) -> None:
        self.height, self.width = weight.shape
        self.floating = weight.layout.kind == "float"
        if self.floating:
            self.values = torch.tensor(floats(weight, name), device=device)
            return
        codes = decode(weight, name)
        self.block = min(codes.block, self.width)
        stored = torch.tensor(codes.codes, device=device)
        if int(stored.abs().max()) <= torch.iinfo(torch.int8).max:
            stored = stored.to(torch.int8)
        self.codes = self._by_block(stored)
        self.scale = torch.tensor(codes.scale, device=device).T[:, None]
        self.minimum = self.offsets = None
        if codes.minimum is not None and codes.offsets is not None:
            self.sub = codes.sub
            subs = self.block // self.sub
            self.minimum = torch.tensor(codes.minimum, device=device).T[:, None]
            self.offsets = torch.tensor(codes.offsets.copy(), device=device)
            self.offsets = self.offsets.unflatten(1, (-1, subs)).transpose(0, 1)

    def _by_block(self, x: Tensor) -> Tensor:
        """[rows, K] as [blocks, rows, block], the last block filled up with zeros."""
        return pad(x, (0, -self.width % self.block)).unflatten(1, (-1, self.block)).transpose(0, 1)

    def joins(self, other: Matrix) -> bool:
        """Whether both can be rows of one matrix."""
        if self.floating or other.floating:
            return False
        mine, theirs = (self.codes.dtype, self.block), (other.codes.dtype, other.block)
        return mine == theirs and (self.minimum is None) == (other.minimum is None)

    @staticmethod
    def joined(parts: Sequence[Matrix]) -> Matrix:
        """One matrix with the rows of all parts."""
        whole = object.__new__(Matrix)
        whole.__dict__.update(parts[0].__dict__)
        whole.height = sum(part.height for part in parts)
        whole.codes = torch.cat([part.codes for part in parts], dim=1)
        whole.scale = torch.cat([part.scale for part in parts], dim=2)
        if whole.minimum is not None:
            whole.minimum = torch.cat([part.minimum for part in parts], dim=2)
            whole.offsets = torch.cat([part.offsets for part in parts], dim=1)
        return whole

    def multiply(self, x: Rows | Tensor, faults: Tensor, span: Span | None = None) -> Tensor:
        """x [rows, K] times the rows `span` of the weight (all by default): float32 [rows, n]."""
        start, stop = span or (0, self.height)
        if isinstance(x, Tensor):
            return self._float_product(x, faults, (start, stop))
        check_columns(self.width)
        columns = self._by_block(x.q)
        step = max(1, TILE // (len(columns) * max(len(x.q), self.block)))
        cuts = [slice(at, min(at + step, stop)) for at in range(start, stop, step)]
        y = torch.cat([self._tile(columns, cut) for cut in cuts], dim=1)
        return snap(y * FLOATS.exp2_int(x.e)[:, None], faults)

    def _tile(self, columns: Tensor, cut: slice) -> Tensor:
        """RN of each block's integer, scaled, summed in the contract's order: [rows, n]."""
        dots = columns @ self.codes[:, cut].double().transpose(1, 2)
        terms = dots.float() * self.scale[..., cut]
        if self.minimum is not None and self.offsets is not None:
            sums = columns.unflatten(2, (-1, self.sub)).sum(dim=-1)
            lows = sums @ self.offsets[:, cut].double().transpose(1, 2)
            terms = terms + lows.float() * self.minimum[..., cut]
        runs = pad(terms, (0, 0, 0, 0, 0, -len(terms) % RUN_BLOCKS)) if len(terms) > 1 else terms
        size = min(len(runs), RUN_BLOCKS)
        return in_order(in_order(runs.unflatten(0, (-1, size)).transpose(0, 1)))

    def _float_product(self, x: Tensor, faults: Tensor, span: Span) -> Tensor:
        """Canonical sums of snapped products, one row at a time."""
        y = torch.empty(len(x), span[1] - span[0], device=x.device)
        for index, row in enumerate(x):
            flag = faults[index : index + 1]
            products = snap((row * self.values[slice(*span)])[None], flag)[0]
            y[index] = snap(FLOATS.canonical_sum(products)[..., 0][None], flag)[0]
        return y

    def rows(self, ids: Tensor, faults: Tensor) -> Tensor:
        """Rows of a table: float32 [ids, K]."""
        if self.floating:
            return snap(self.values[ids], faults)
        values = self.codes[:, ids].float() * self.scale[:, 0, ids, None]
        if self.minimum is not None and self.offsets is not None:
            low = self.offsets[:, ids].float() * self.minimum[:, 0, ids, None]
            values = values + low.repeat_interleave(self.sub, dim=-1)
        return snap(values.transpose(0, 1).flatten(1)[:, : self.width], faults)


def in_order(terms: Tensor) -> Tensor:
    """(t0 + t1) + … over the first axis; that the contract starts at +0 only matters to a −0."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def stacked(matrix: Matrix, count: int, x: Rows | Tensor, choice: Tensor, faults: Tensor) -> Tensor:
    """Row i, slot j with matrix choice[i, j] of a stack of `count`: float32 [rows, k, n].

    x is [rows, k, K], or [rows, K] when every slot meets the same row.
    """
    height = matrix.height // count
    out = torch.empty(*choice.shape, height, device=choice.device)
    for index, rows, slots in _users(choice):
        flags = torch.zeros_like(rows, dtype=torch.bool)
        span = (index * height, (index + 1) * height)
        out[rows, slots] = matrix.multiply(_picked(x, rows, slots), flags, span)
        faults[rows[flags]] = True
    return out


def _users(choice: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Every matrix that is chosen, with the rows and slots that chose it."""
    for index in choice.unique().tolist():
        rows, slots = torch.nonzero(choice == index, as_tuple=True)
        yield index, rows, slots


def _picked(x: Rows | Tensor, rows: Tensor, slots: Tensor) -> Rows | Tensor:
    if isinstance(x, Rows):
        at = (rows,) if x.e.ndim == 1 else (rows, slots)
        return Rows(x.q[at], x.e[at])
    return x[(rows,) if x.ndim == 2 else (rows, slots)]
