"""NumPy as an array library: what the reference keeps its rows in, and a start for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from cortiq.backend.arrays import ArrayLibrary
from cortiq.numerics.contract import snap
from cortiq.numerics.quantise import Quantised

Array = npt.NDArray[Any]


class NumPyArrays(ArrayLibrary):
    """Arrays in the host's memory."""

    dtypes: ClassVar[Mapping[str, Any]] = {
        "f32": np.float32, "i32": np.int32, "i16": np.int16, "i8": np.int8,
    }  # fmt: skip
    rows = Quantised

    def array(self, host: Array) -> Array:
        """Return the array itself."""
        return host

    def host(self, array: Array) -> Array:
        """Return a copy: an array of one row would hold those of all."""
        return array.copy()

    def full(self, shape: Sequence[int], dtype: str, value: float = 0) -> Array:
        """Return an array that holds one value."""
        return np.full(shape, value, self.dtypes[dtype])

    def cast(self, array: Array, dtype: str) -> Array:
        """Return the values in another type."""
        return array.astype(self.dtypes[dtype], copy=False)

    def concatenate(self, arrays: Sequence[Array], axis: int = 0) -> Array:
        """Return the arrays as one."""
        return np.concatenate(arrays, axis)

    def copy(self, array: Array) -> Array:
        """Return a copy."""
        return array.copy()

    def snap(self, x: Array, faults: Array) -> Array:
        """End a primitive."""
        return snap(x, faults)

    def read(self, q: Array, e: Array) -> Quantised:
        """Return rows that are kept as kernels read them: exponents as int32."""
        return Quantised(q, e.astype(np.int32))
