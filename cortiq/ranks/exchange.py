"""Operators by which ranks put their parts of a row together, and their kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cortiq.backend import Kernel
from cortiq.ir import Op, Type
from cortiq.ir.op import expect
from cortiq.ranks.shares import Split


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


def gathered(
    op: GatherParts, part: npt.NDArray[np.float32], group: Exchange
) -> npt.NDArray[np.float32]:
    """Return whole rows [rows, *shape] from this rank's parts of them."""
    rows, split = len(part), op.split
    lead, inner = (1 if split.axis == 0 else op.shape[0]), op.inner
    widest = max(stop - start for start, stop in split.ranges)
    own = part.reshape(rows, lead, -1)
    sent = np.zeros((rows, lead, widest * inner), np.float32)
    sent[:, :, : own.shape[2]] = own
    parts = group.gather(sent)
    whole = np.empty((rows, lead, split.length * inner), np.float32)
    for given, (start, stop) in zip(parts, split.owned, strict=True):
        whole[:, :, start * inner : stop * inner] = given[:, :, : (stop - start) * inner]
    return whole.reshape(rows, *op.shape)


def gather_kernel(backend: Any, group: Exchange) -> Kernel:
    """Return the kernel of `GatherParts` in the form that a backend takes."""

    def computed(op: GatherParts, part: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return gathered(op, part, group)

    return Kernel(backend.name, GatherParts, backend.host_kernel(computed), "ranks")
