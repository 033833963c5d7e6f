"""Values that stay with the backend that computed them, for rows of its next batches to supply."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from cortiq.numerics.contract import Floats


class HeldRows(ABC):
    """Values [rows, ...] of float32 that a backend holds: canonical, and of completed sequences.

    A batch that is `held` may bring them in place of arrays, and rows of the same executable supply
    them. What needs only their form treats them as an array; NumPy makes one of them, which waits.
    """

    dtype = np.dtype(np.float32)

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Return the shape."""

    @abstractmethod
    def __getitem__(self, index: Any) -> Self:
        """Return some rows: of a number, a slice or an array of numbers."""

    @abstractmethod
    def reshape(self, *shape: int) -> Self:
        """Return the same values in another shape."""

    @abstractmethod
    def joined(self, others: Sequence[Self], axis: int) -> Self:
        """Return these and others as one, along an axis."""

    @abstractmethod
    def fetch(self) -> None:
        """Start bringing the values to the host, and return at once."""

    @abstractmethod
    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        """Return the values on the host."""

    def __len__(self) -> int:
        return self.shape[0]


Values = Floats | HeldRows
"""Rows of values, wherever they are."""


def joined(parts: Sequence[Any], axis: int = 0) -> Any:
    """Return arrays, or values that a backend holds, as one; a single one as it is."""
    first, *others = parts
    if not others:
        return first
    if all(type(part) is type(first) for part in others) and isinstance(first, HeldRows):
        return first.joined(others, axis)
    return np.concatenate(parts, axis)


def on_host(parts: Sequence[Values]) -> list[Floats]:
    """Return values as arrays; those that a backend holds are brought together."""
    for part in parts:
        if isinstance(part, HeldRows):
            part.fetch()
    return [np.asarray(part, np.float32) for part in parts]
