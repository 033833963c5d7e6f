"""Orders of the columns of a row, for matrices whose columns a file keeps in another order.

A sum of products does not care in which order both rows stand; the contract's runs of blocks do.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from cortiq.domains import Domain
from cortiq.numerics.contract import Floats
from cortiq.numerics.matmul import MAX_COLUMNS

STORED = np.dtype("<u2")
"""Type of a packed column: it holds any below `MAX_COLUMNS`."""


@dataclass(frozen=True)
class PackedColumns(Domain):
    """Columns 0 to K − 1 in any order, packed."""

    def text(self) -> str:
        """Return what is admitted."""
        return f"16-bit integers below their number, at most {MAX_COLUMNS}, each of them once"

    def admits(self, value: Any) -> bool:
        """Return whether these are bytes that name every column once."""
        if not isinstance(value, bytes) or len(value) % STORED.itemsize:
            return False
        columns = np.frombuffer(value, STORED)
        there = 0 < len(columns) <= MAX_COLUMNS
        return there and bool((np.sort(columns) == np.arange(len(columns))).all())


@dataclass(frozen=True)
class ColumnOrder:
    """An order of the columns of a row, every one of them once.

    Attributes
    ----------
    packed : the columns as little-endian 16-bit integers, which compare and hash quickly.
    """

    packed: Annotated[bytes, PackedColumns()]

    @classmethod
    def of(cls, columns: npt.ArrayLike) -> ColumnOrder:
        """Return the order of these columns."""
        return cls(np.asarray(columns).astype(STORED).tobytes())

    @cached_property
    def columns(self) -> npt.NDArray[np.int32]:
        """Column in each place: int32 [K]."""
        return np.frombuffer(self.packed, STORED).astype(np.int32)

    def __len__(self) -> int:
        return len(self.packed) // STORED.itemsize

    def __repr__(self) -> str:
        """Name the order by its length and hash: lists of columns are long."""
        return f"ColumnOrder({len(self)}, {hashlib.sha256(self.packed).hexdigest()[:8]})"


def permute(x: Floats, order: ColumnOrder) -> Floats:
    """Return rows with their columns in an order; no value changes."""
    return x[..., order.columns]
