"""Self test of a device's arithmetic before its first use: one wrong bit and it is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cortiq.backend.arithmetic import ACTIVATIONS
from cortiq.backend.arrays import ArrayLibrary
from cortiq.backend.float64 import Float64Arrays
from cortiq.backend.numpy_arrays import NumPyArrays
from cortiq.errors import BackendError
from cortiq.numerics.contract import Floats
from cortiq.numerics.philox import philox

COUNT = 1 << 14
Operations = Mapping[str, tuple[Callable[[Any, Any], Any], Callable[[Floats, Floats], Floats]]]
"""By name: an operation of two arrays of a library, and the same in NumPy."""

Check = Callable[[Any, Any, Any], Any]


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


def _activation(function: str) -> Check:
    return lambda library, a, b: library.activation(function, a)


CHECKS: Mapping[str, Check] = {
    "a + b": lambda library, a, b: a + b,
    "a * b": lambda library, a, b: a * b,
    "rounded": lambda library, a, b: library.rounded(a * 4.0),
    "quotient": lambda library, a, b: library.quotient(a, b),
    "quotient by one number a row": lambda library, a, b: library.quotient(a, b[:, :1]),
    "inverse": lambda library, a, b: library.inverse(b),
    "inverse_root": lambda library, a, b: library.inverse_root(library.magnitude(b)),
    "cast of float64 to float32": lambda library, a, b: library.cast(
        library.cast(a, "f64") * library.cast(b, "f64"), "f32"
    ),
    "canonical_sum": lambda library, a, b: library.canonical_sum(a),
    "canonical_mean": lambda library, a, b: library.canonical_mean(a),
    "exp": lambda library, a, b: library.exp(-library.magnitude(a)),
    "log": lambda library, a, b: library.log(library.magnitude(b)),
    "soft_cap": lambda library, a, b: library.soft_cap(a, 30.0),
    **{f"activation {name}": _activation(name) for name in ACTIVATIONS},
}
"""By method of a library: how it is called with two arrays [rows, n]."""


def check_arithmetic(where: str, library: Float64Arrays) -> None:
    """Refuse a library whose methods return other bits than NumPy's, as written or compiled.

    Parameters
    ----------
    where : the library and the device, for the error.

    Raises
    ------
    BackendError : names the method, and how many values are wrong.
    """
    a, b = (values.reshape(-1, 512) for values in probes())
    numpy, kind = NumPyArrays(), type(library).__name__
    there = library.array(a), library.array(b)
    for name, check in CHECKS.items():
        got, expected = library.host(check(library, *there)), check(numpy, a, b)
        if got.shape != expected.shape or got.dtype != expected.dtype:
            returned, right = (f"{x.dtype}{[*x.shape]}" for x in (got, expected))
            raise BackendError(f"{where}: `{name}` of {kind} returns {returned}, not {right}")
        wrong = int((got.view(np.uint32) != expected.view(np.uint32)).sum())
        if wrong:
            raise BackendError(
                f"{where}: `{name}` of {kind} rounds {wrong} of {got.size} values otherwise "
                "than IEEE arithmetic, one operation at a time",
                hint="override the method; a compiler may have joined or replaced operations",
            )
    q, codes = np.full((3, 4096), 32512.0), np.full((4096, 5), -32639.0)
    if (library.host(library.array(q) @ library.array(codes)) != q @ codes).any():
        raise BackendError(f"{where} does not add integers exactly in float64")
