"""Array libraries whose arrays cannot be written to, such as JAX: every change makes an array."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.backend.arrays import ArrayLibrary


class RowFlags:
    """A flag for each row, which `|=` sets: the array of flags is replaced, not written to.

    Attributes
    ----------
    values : bool [rows] of the library.
    """

    def __init__(self, values: Any) -> None:
        self.values = values

    def __ior__(self, found: Any) -> RowFlags:
        """Set the flags that are set in `found`, flags or an array of the library."""
        self.values = self.values | values_of(found)
        return self

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return the flags on the host, for `np.array`."""
        return np.array(self.values, dtype)


def values_of(found: Any) -> Any:
    """Return the array of flags, or an array as it is."""
    return found.values if isinstance(found, RowFlags) else found


class FunctionalArrays(ArrayLibrary):
    """A mixin in front of `Float64Arrays` or `Arithmetic` for arrays that are never written to.

    A library says how arrays are made (`array`), read (`host`, also called with `RowFlags`;
    `np.array` reads both) and changed (`put`); flags of rows, `copy` and `write` follow.
    """

    @abstractmethod
    def put(self, array: Any, index: Any, rows: Any) -> Any:
        """Return a copy of the array with other rows at `index`, a slice or integers."""

    def copy(self, array: Any) -> Any:
        """Return the array itself."""
        return array

    def write(self, array: Any, start: int, rows: Any) -> Any:
        """Return a copy of the array with other rows at `start`…."""
        return self.put(array, slice(start, start + len(rows)), rows)

    def flags(self, count: int) -> RowFlags:
        """Return a flag for each of so many rows, none set."""
        return RowFlags(self.array(np.zeros(count, np.bool_)))

    def flag(self, faults: RowFlags, index: Any, found: Any, concerned: Any = True) -> None:
        """Set the flags of rows `index` of `faults` where `found` has them and `concerned` too."""
        rows = faults.values[index] | (values_of(found) & concerned)
        faults.values = self.put(faults.values, index, rows)

    def gather_flags(self, faults: RowFlags, parts: Sequence[Any]) -> None:
        """Set the flag of each row where one of its own is set."""
        found = self.concatenate([values_of(part) for part in parts])
        faults |= found.reshape(len(faults), -1).any(1)
