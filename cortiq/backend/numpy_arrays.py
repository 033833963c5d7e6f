"""NumPy as an array library: what the reference keeps its rows in, and a start for others."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from cortiq.backend.float64 import Float64Arrays
from cortiq.numerics.quantise import Quantised

Array = npt.NDArray[Any]


class NumPyArrays(Float64Arrays):
    """Arrays in the host's memory."""

    module: ClassVar[Any] = np
    rows = Quantised
    row_type = "i32"

    def array(self, host: Array) -> Array:
        """Return the array itself."""
        return host

    def host(self, array: Array) -> Array:
        """Return a copy: an array of one row would hold those of all."""
        return array.copy()

    def copy(self, array: Array) -> Array:
        """Return a copy."""
        return array.copy()

    def read(self, q: Array, e: Array) -> Quantised:
        """Return rows that are kept as kernels read them: exponents as int32."""
        return Quantised(q, e.astype(np.int32))

    def running_highest(self, n: Array) -> Array:
        """Return the largest integer so far along the first axis."""
        return np.maximum.accumulate(n, axis=0)
