"""Self test of a device's arithmetic before its first use: one wrong bit and it is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cortiq.backend.arrays import ArrayLibrary
from cortiq.errors import BackendError
from cortiq.numerics.contract import Floats
from cortiq.numerics.philox import philox

COUNT = 1 << 14
Operations = Mapping[str, tuple[Callable[[Any, Any], Any], Callable[[Floats, Floats], Floats]]]
"""By name: an operation of two arrays of a library, and the same in NumPy."""


def probes() -> tuple[Floats, Floats]:
    """Return numbers from 2⁻²⁰ to 2²⁰ of both signs; among the first are all halves up to 16."""
    words = philox((np.arange(COUNT, dtype=np.uint32), 0, 0, 0), (1, 2))
    bits = [(w & np.uint32(0x807FFFFF)) + ((107 + w % np.uint32(40)) << 23) for w in words[:2]]
    a, b = (word.astype(np.uint32).view(np.float32) for word in bits)
    a[:256] = np.arange(-128, 128, dtype=np.float32) / np.float32(8)
    return a, b


def check_operations(where: str, library: ArrayLibrary, operations: Operations) -> None:
    """Refuse a device that computes another bit than IEEE arithmetic has.

    Parameters
    ----------
    where : the library and the device, for the error.

    Raises
    ------
    BackendError : names the operation.
    """
    a, b = probes()
    there = library.array(a), library.array(b)
    for name, (operation, definition) in operations.items():
        got = library.host(operation(*there))
        if (got.view(np.uint32) != definition(a, b).view(np.uint32)).any():
            raise BackendError(f"{where} computes {name} with other bits than IEEE's")
