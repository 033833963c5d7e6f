"""Operators by which ranks put their parts of a row together, and their kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cortiq.backend import Kernel
from cortiq.ir import Op, Type, ops
from cortiq.ir.op import expect
from cortiq.numerics.dequantise import embedding_rows
from cortiq.numerics.layouts import Weight
from cortiq.ranks.shares import Range, Split


class Exchange(Protocol):
    """A group of ranks, as far as kernels need it."""

    @property
    def rank(self) -> int:
        """This rank."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    def gather(self, part: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return every rank's array of this shape, one after the other, [ranks, ...]."""

    def add(self, bits: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Return the sum of every rank's array."""


@dataclass(frozen=True)
class GatherParts(Op):
    """Parts of a row, one of each rank, put together: exact, since nothing is computed.

    Parameters
    ----------
    shape : of the whole row. split : which part is whose. rank : this one.
    """

    shape: tuple[int, ...]
    split: Split
    rank: int

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Infer the whole row."""
        wanted = (Type(self.split.local(self.shape, self.rank)),)
        expect(inputs == wanted, f"GatherParts takes {wanted}, got {inputs}")
        return (Type(self.shape),)

    @property
    def inner(self) -> int:
        """Values that lie behind each index of the axis."""
        return int(np.prod(self.shape[self.split.axis + 1 :], dtype=np.int64))


@dataclass(frozen=True)
class OwnExperts(Op):
    """Numbers of chosen experts among this rank's own; `stop - start` for those of other ranks."""

    range: Range

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the type."""
        (index,) = inputs
        expect(index.dtype == "i32", f"OwnExperts takes experts, got {index}")
        return inputs


def _owned(numbers: npt.NDArray[np.int32], owned: Range) -> npt.NDArray[np.bool_]:
    """Return which of some ids are this rank's."""
    start, stop = owned
    return (numbers >= start) & (numbers < stop)


def own_experts(op: OwnExperts, index: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Return the numbers of experts on this rank."""
    start, stop = op.range
    chosen = index.view(np.int32)
    return np.where(_owned(chosen, op.range), chosen - start, stop - start).astype(np.int32)


@dataclass(frozen=True)
class JoinExperts(Op):
    """Rows of chosen experts, of each one from the rank that has it: a sum of bits with zeros.

    Parameters
    ----------
    owned : experts of this rank.
    """

    owned: Range

    def infer(self, *inputs: Type) -> tuple[Type, ...]:
        """Keep the type of the rows; the second input has their experts."""
        rows, index = inputs
        expect(rows.shape[:1] == index.shape, f"JoinExperts takes {rows} for {index}")
        return (rows,)


def joined_experts(
    op: JoinExperts, rows: npt.NDArray[np.float32], index: npt.NDArray[Any], group: Exchange
) -> npt.NDArray[np.float32]:
    """Return every chosen expert's row."""
    chosen = index.view(np.int32)
    apart = rows.reshape(len(rows), chosen.shape[1], -1)
    mine = _owned(chosen, op.owned)
    bits = np.where(mine[:, :, None], apart.view(np.int32), 0).astype(np.int32)
    return group.add(bits).view(np.float32).reshape(rows.shape)


@dataclass(frozen=True)
class TableRows(ops.EmbedRows):
    """Rows of a table of tokens of which every rank has some: a sum of bits with zeros.

    Parameters
    ----------
    owned : ids of this rank. part : name of its part of the table.
    """

    owned: Range = (0, 1)
    part: str = ""

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Declare nothing: the kernel has the table."""
        return {}


def looked_up(
    op: TableRows, tokens: npt.NDArray[Any], table: Weight, group: Exchange
) -> npt.NDArray[np.float32]:
    """Return the rows of tokens; +0 for ids past the table, which only some operators let pass."""
    ids = tokens.view(np.int32).reshape(-1)
    mine = _owned(ids, op.owned)
    rows = np.zeros((len(ids), op.width), np.float32)
    if mine.any():
        faults = np.zeros(int(mine.sum()), np.bool_)
        found = embedding_rows(table, ids[mine] - op.owned[0], faults)
        found[faults] = np.nan  # whatever takes the row raises its fault
        rows[mine] = found
    return group.add(rows.view(np.int32)).view(np.float32)


def gathered(
    op: GatherParts, part: npt.NDArray[np.float32], group: Exchange
) -> npt.NDArray[np.float32]:
    """Return whole rows [rows, *shape] from this rank's parts of them."""
    rows, split = len(part), op.split
    lead, inner = (1 if split.axis == 0 else op.shape[0]), op.inner
    widest = max(split.size(rank) for rank in range(group.size))
    own = part.reshape(rows, lead, -1)
    sent = np.zeros((rows, lead, widest * inner), np.float32)
    sent[:, :, : own.shape[2]] = own
    parts = group.gather(sent)
    whole = np.empty((rows, lead, split.length * inner), np.float32)
    for rank, given in enumerate(parts):
        for at, (start, stop) in split.owned(rank):
            until = at + stop - start
            whole[:, :, start * inner : stop * inner] = given[:, :, at * inner : until * inner]
    return whole.reshape(rows, *op.shape)


def exchange_kernels(
    backend: Any, group: Exchange, tables: Mapping[str, Weight]
) -> dict[type[Op], Kernel]:
    """Return the kernels of this module's operators in the form that a backend takes."""
    functions: dict[type[Op], Any] = {
        GatherParts: lambda op, part: gathered(op, part, group),
        TableRows: lambda op, tokens: looked_up(op, tokens, tables[op.part], group),
        OwnExperts: own_experts,
        JoinExperts: lambda op, rows, index: joined_experts(op, rows, index, group),
    }
    return {
        op: Kernel(backend.name, op, backend.host_kernel(function), "ranks")
        for op, function in functions.items()
    }
