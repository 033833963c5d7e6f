"""One batch on its way through a plan, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from cortiq.backend.stored import StoredState
from cortiq.backend.walk import Walk
from cortiq.numerics.contract import Flags, Floats, Ints, snap
from cortiq.numerics.quantise import Quantised


class Run(Walk[StoredState]):
    """A batch whose arrays are NumPy's."""

    def array(self, host: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Itself."""
        return host

    def host(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A copy: an array of one row would hold those of all."""
        return array.copy()

    def quantised(self, q: Ints, e: Ints) -> Quantised:
        """Rows as they are."""
        return Quantised(q, e)

    def snap(self, x: Floats, faults: Flags) -> Floats:
        """As every kernel ends."""
        return snap(x, faults)
