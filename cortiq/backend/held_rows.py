"""Values that stay with the backend that computed them, for rows of its next batches to supply."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
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
    def joined(self, others: Sequence[Self]) -> Self:
        """Return these and others one after another."""

    @abstractmethod
    def fetched(self, beside: Sequence[Self] = ()) -> Callable[[], Floats]:
        """Start bringing the values to the host, each row with those of the same row `beside` it;
        return what waits for them.
        """

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        found = self.fetched()()
        return found.astype(dtype or found.dtype, copy=bool(copy))

    def __len__(self) -> int:
        return self.shape[0]


Values = Floats | HeldRows
"""Rows of values, wherever they are."""


def joined(parts: Sequence[Any], axis: int = 0) -> Any:
    """Return arrays as one, or values that a backend holds; a single one as it is."""
    if len(parts) == 1:
        return parts[0]
    if axis == 0 and (held := _held(parts)):
        return held[0].joined(held[1:])
    return np.concatenate(parts, axis)


def side_by_side(several: Sequence[Sequence[Values]]) -> list[Floats]:
    """Return the values of some rows side by side, on the host; for several such groups, which are
    brought together.
    """
    waiting: list[Callable[[], Floats]] = []
    for parts in several:
        if held := _held(parts):
            waiting.append(held[0].fetched(held[1:]))
        else:
            waiting.append(partial(joined, [np.asarray(part) for part in parts], axis=1))
    return [wait() for wait in waiting]


def _held(parts: Sequence[Any]) -> Sequence[HeldRows]:
    """Return parts that one backend holds, all of them; none otherwise."""
    alike = isinstance(parts[0], HeldRows) and len({*map(type, parts)}) == 1
    return parts if alike else ()
