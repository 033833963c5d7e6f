"""The interface to an array library: how its arrays are made, read and kept.

Arrays are indexed, sliced and added up as NumPy's are. Types have short names: f64, f32, i64, i32,
i16, i8.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from cortiq.backend.outputs import Specimens
from cortiq.backend.protocol import CompileOptions
from cortiq.numerics.quantise import Quantised, from_planes, planes

TYPES = {
    "f64": "float64", "f32": "float32",
    "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8",
}  # fmt: skip
Planes = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]
"""High and low planes and exponents of rows, int8."""


class ArrayLibrary(ABC):
    """An array library on one device.

    Flags of rows at fault are bool arrays [rows], or-ed in place. `FunctionalArrays` is for a
    library whose arrays cannot be written to. A lazy library has flags of its own: `flags` makes
    an object that knows `|=` and `len`, which `flag`, `gather_flags`, `raise_flags` and `host`
    take.

    Attributes
    ----------
    module : the library's module, whose functions have NumPy's names where nothing is overridden.
    rows : the type of quantised rows that kernels take and return, a `NamedTuple` of q and e;
        `Quantised` unless a library has one of its own.
    row_type : short name of the type of q in it.
    poison : what unused memory of q and of exponents is filled with in tests.
    specimens : what arrays of each type look like, once a batch has asked.
    """

    module: ClassVar[Any]
    rows: type[Any] = Quantised
    row_type = "i32"
    poison: tuple[int, int] = (32512, 60)
    specimens: Specimens | None = None

    @abstractmethod
    def array(self, host: npt.NDArray[Any]) -> Any:
        """Return an array of the library with these values and their type."""

    @abstractmethod
    def host(self, array: Any) -> npt.NDArray[Any]:
        """Return the values of an array; NumPy owns the memory."""

    def dtype(self, name: str) -> Any:
        """Return the library's type of a short name."""
        return getattr(self.module, TYPES[name])

    def full(self, shape: Sequence[int], dtype: str, value: float = 0) -> Any:
        """Return an array that holds one value."""
        return self.module.full(tuple(shape), value, dtype=self.dtype(dtype))

    def cast(self, array: Any, dtype: str) -> Any:
        """Return the values of an array in another type, which holds them."""
        return array.astype(self.dtype(dtype))

    def concatenate(self, arrays: Sequence[Any], axis: int = 0) -> Any:
        """Return the arrays as one."""
        return self.module.concatenate([*arrays], axis)

    @abstractmethod
    def snap(self, x: Any, faults: Any) -> Any:
        """Make x [rows, ...] canonical; flag rows with a value outside the domain in `faults`."""

    @abstractmethod
    def copy(self, array: Any) -> Any:
        """Return an array with the same values, which may be written to by itself."""

    def write(self, array: Any, start: int, rows: Any) -> Any:
        """Return the array with other rows at `start`…; it may be changed in place."""
        array[start : start + len(rows)] = rows
        return array

    def put(self, array: Any, index: Any, rows: Any) -> Any:
        """Return a copy of the array with other rows at `index`."""
        array = self.copy(array)
        array[index] = rows
        return array

    def settle(self, arrays: Sequence[Any]) -> None:
        """Compute arrays and flags that are not computed yet: nothing, where there are none."""
        return

    def flags(self, count: int) -> Any:
        """Return a flag for each of so many rows, none set."""
        return self.array(np.zeros(count, np.bool_))

    def flag(self, faults: Any, index: Any, found: Any, concerned: Any = True) -> None:
        """Set the flags of rows `index` of `faults` where `found` has them and `concerned` too.

        Parameters
        ----------
        index : a slice, or integers that differ, of the length of `found`.
        found : flags. concerned : bool [rows of `found`], or True.
        """
        faults[index] |= found & concerned

    def gather_flags(self, faults: Any, parts: Sequence[Any]) -> None:
        """Set the flag of each row where one of its own is set.

        Parameters
        ----------
        parts : flags that, one part after the other, are [rows · n]: n for each row, row by row.
        """
        faults |= self.concatenate(parts).reshape(len(faults), -1).any(1)

    def raise_flags(self, faults: Any, found: npt.NDArray[np.bool_]) -> None:
        """Set the flags that are set in `found`, bool [rows] on the host."""
        faults |= self.array(found)

    def stored_shape(self, heads: int, dim: int) -> tuple[tuple[int, ...], str]:
        """Return shape and type of a row of keys or values as it is kept."""
        return (heads, dim), "i16"

    def stored(self, rows: Any) -> tuple[Any, Any]:
        """Return q and exponents of rows as they are kept."""
        return rows.q, rows.e

    def read(self, q: Any, e: Any) -> Any:
        """Return rows that are kept as kernels read them."""
        return self.rows(q, e)

    def to_planes(self, q: Any, e: Any) -> Planes:
        """Return rows that are kept as canonical planes."""
        return *planes(self.host(q).astype(np.int32)), self.host(e)

    def from_planes(self, high: Any, low: Any, e: Any) -> tuple[Any, Any]:
        """Return rows as they are kept, from canonical planes."""
        return self.array(from_planes(high, low)), self.array(e)

    def provenance(self) -> dict[str, str]:
        """Return what computes here, for receipts: the library and its device."""
        return {}

    def free_bytes(self) -> int | None:
        """Return the memory that the device has free; None where it is the host's."""
        return None

    @contextmanager
    def running(self, options: CompileOptions) -> Iterator[None]:
        """Compute on the device in this context, with so many threads as options say.

        Weights are prepared and batches computed in it. Sequences are opened, imported and read
        outside: `array` and `full` choose the device themselves where it is not the default.
        """
        yield
