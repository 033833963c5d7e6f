"""Operators by which ranks put their parts of a row together, and their kernels.

The kernels take tensors of PyTorch, wherever these are: on GPUs nothing waits for the host, if
the backend looks up rows of a table there. Backends with arrays of NumPy have the same ones over
the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cortiq.backend import Kernel
from cortiq.backend.kernel import TableFunction
from cortiq.backend.peers import PeerRows
from cortiq.ir import Op, Type, ops
from cortiq.ir.op import expect
from cortiq.numerics.dequantise import embedding_rows
from cortiq.numerics.layouts import Weight
from cortiq.ranks.shares import Range, Split

Tensor = Any
"""A tensor of PyTorch, which is imported where ranks are."""


class Exchange(Protocol):
    """A group of ranks, as far as kernels need it."""

    @property
    def rank(self) -> int:
        """This rank."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    def gather(self, part: Tensor) -> Tensor:
        """Return every rank's tensor of this shape, one after the other, [ranks, ...]."""

    def add(self, bits: Tensor) -> Tensor:
        """Return the sum of every rank's tensor of int32."""

    @property
    def rows(self) -> PeerRows | None:
        """Memory that the ranks write rows to; None where they exchange in another way."""


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


def _owned(numbers: Tensor, owned: Range) -> Tensor:
    """Return which of some ids are this rank's."""
    start, stop = owned
    return (numbers >= start) & (numbers < stop)


def _integers(numbers: Tensor) -> Tensor:
    """Return 32-bit numbers as the integers that they are, whatever a backend calls them."""
    import torch

    return numbers.view(torch.int32)


def own_experts(op: OwnExperts, index: Tensor) -> Tensor:
    """Return the numbers of experts on this rank."""
    start, stop = op.range
    chosen = _integers(index)
    return (chosen - start).masked_fill(~_owned(chosen, op.range), stop - start)


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


def joined_experts(op: JoinExperts, rows: Tensor, index: Tensor, group: Exchange) -> Tensor:
    """Return every chosen expert's row."""
    chosen = _integers(index)
    apart = _integers(rows.contiguous()).reshape(*chosen.shape, -1)
    bits = apart.masked_fill(~_owned(chosen, op.owned)[:, :, None], 0)
    return group.add(bits).view(rows.dtype).reshape(rows.shape)


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


def looked_up(op: TableRows, tokens: Tensor, table: TableFunction, group: Exchange) -> Tensor:
    """Return the rows of tokens; +0 for ids past the table, which only some operators let pass."""
    import torch

    ids = _integers(tokens).reshape(-1)
    others = ~_owned(ids, op.owned)
    rows = table((ids - op.owned[0]).masked_fill(others, 0))
    bits = _integers(rows).masked_fill(others[:, None], 0)
    return group.add(bits).view(torch.float32)


def on_host_looked_up(table: Weight) -> TableFunction:
    """Return the `TableFunction` of a table in the host's memory."""

    def rows(ids: Tensor) -> Tensor:
        import torch

        numbers = ids.cpu().numpy()
        faults = np.zeros(len(numbers), np.bool_)
        found = embedding_rows(table, numbers, faults)
        found[faults] = np.nan
        return torch.from_numpy(found).to(ids.device)

    return rows


def gathered(op: GatherParts, part: Tensor, group: Exchange) -> Tensor:
    """Return whole rows [rows, *shape] from this rank's parts of them."""
    rows, split = len(part), op.split
    lead, inner = (1 if split.axis == 0 else op.shape[0]), op.inner
    widest = max(split.size(rank) for rank in range(group.size))
    sent = part.reshape(rows, lead, -1)
    if sent.shape[2] < widest * inner:
        own, sent = sent, part.new_zeros((rows, lead, widest * inner))
        sent[:, :, : own.shape[2]] = own
    parts = group.gather(sent)
    even = (((0, (rank * widest, (rank + 1) * widest)),) for rank in range(group.size))
    if all(split.owned(rank) == owned for rank, owned in enumerate(even)):
        return parts.permute(1, 2, 0, 3).reshape(rows, *op.shape)
    whole = part.new_empty((rows, lead, split.length * inner))
    for rank in range(group.size):
        for at, (start, stop) in split.owned(rank):
            there = parts[rank, :, :, at * inner : (at + stop - start) * inner]
            whole[:, :, start * inner : stop * inner] = there
    return whole.reshape(rows, *op.shape)


def on_host(function: Callable[..., Tensor]) -> Callable[..., npt.NDArray[Any]]:
    """Return a function of tensors as one of NumPy's arrays over the same memory."""

    def computed(op: Any, *arrays: npt.NDArray[Any]) -> npt.NDArray[Any]:
        import torch

        result: npt.NDArray[Any] = function(op, *map(torch.from_numpy, arrays)).numpy()
        return result

    return computed


def exchange_kernels(
    backend: Any, group: Exchange, tables: Mapping[str, Weight]
) -> dict[type[Op], Kernel]:
    """Return the kernels of this module's operators in the form that a backend takes."""
    known = {
        name: backend.table_function(table, name) or on_host_looked_up(table)
        for name, table in tables.items()
    }
    functions: dict[type[Op], Any] = {
        GatherParts: lambda op, part: gathered(op, part, group),
        TableRows: lambda op, tokens: looked_up(op, tokens, known[op.part], group),
        OwnExperts: own_experts,
        JoinExperts: lambda op, rows, index: joined_experts(op, rows, index, group),
    }
    found = {
        op: backend.tensor_kernel(function) or backend.host_kernel(on_host(function))
        for op, function in functions.items()
    }
    if group.rows is not None:
        found[GatherParts] = group.rows.kernel(found[GatherParts])
    return {op: Kernel(backend.name, op, kernel, "ranks") for op, kernel in found.items()}
