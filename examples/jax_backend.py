"""A backend in one file: every primitive on JAX, with cortiq's kernels over JAX's arrays.

`cortiq --plugin examples/jax_backend.py conform -b jax --level 0 --only RMSNorm`
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from cortiq.backend import (
    FLOAT64_KERNELS,
    FLOAT64_OPTIONS,
    MATRICES,
    ArrayLibrary,
    CompileOptions,
    Device,
    Float64Arrays,
    Float64Matrix,
    FunctionalArrays,
    KernelBackend,
    KernelTable,
    float_weight,
)
from cortiq.backend.self_test import check_arithmetic
from cortiq.hookspecs import hookimpl
from cortiq.ir import Op
from cortiq.numerics.layouts import Weight

jax.config.update("jax_enable_x64", True)


class JaxArrays(FunctionalArrays, Float64Arrays):
    """JAX's arrays, one operation at a time: a compiled expression would be rounded otherwise."""

    module: ClassVar[Any] = jnp

    def __init__(self, device: jax.Device) -> None:
        self.device = device

    def running(self, options: CompileOptions) -> AbstractContextManager[None]:
        """Compute on the device in this context."""
        return jax.default_device(self.device)

    def array(self, host: np.ndarray) -> jax.Array:
        """Return a copy on the device."""
        return jax.device_put(jnp.array(host), self.device)

    def host(self, array: Any) -> np.ndarray:
        """Return a copy in the host's memory."""
        return np.array(array)

    def put(self, array: jax.Array, index: Any, rows: jax.Array) -> jax.Array:
        """Return the array with other rows at `index`."""
        return array.at[index].set(rows)

    def running_highest(self, n: jax.Array) -> jax.Array:
        """Return the largest integer so far along the first axis."""
        return jax.lax.cummax(n)

    def quotient(self, a: Any, b: jax.Array) -> jax.Array:
        """Return RN(a/b): where XLA broadcasts b, it multiplies by 1/b."""
        return a / self.spread(b, np.broadcast_shapes(np.shape(a), b.shape))

    def provenance(self) -> dict[str, str]:
        """Return what computes here, for receipts."""
        return {"jax": jax.__version__, "device": self.device.device_kind}


@cache
def arrays_on(device: str) -> JaxArrays:
    """Return the arrays of a device; `BackendError` if its arithmetic is not IEEE's."""
    library = JaxArrays(jax.devices(device)[0])
    check_arithmetic(f"JAX on {device}", library)
    return library


class JaxBackend(KernelBackend):
    """All kernels are cortiq's own; products take their weights as `Float64Matrix`."""

    name = "jax"

    def devices(self) -> Sequence[Device]:
        """Return the CPU: others have not been tried."""
        return [Device("cpu", f"JAX {jax.__version__}")]

    def library(self, device: str, options: CompileOptions) -> ArrayLibrary:
        """Return how arrays are made and read."""
        return arrays_on(device)

    def table(self) -> KernelTable:
        """Return the kernels, and the options that they know."""
        return KernelTable(FLOAT64_KERNELS, FLOAT64_OPTIONS)

    def prepare(self, library: Any, op: Op, role: str, weight: Weight, name: str) -> Any:
        """Return a matrix by its blocks, or an array of floats."""
        if isinstance(op, MATRICES):
            return Float64Matrix(library, weight, name)
        return library.array(float_weight(op, role, weight, name))


@hookimpl
def cortiq_backends() -> Sequence[JaxBackend]:
    """The backend of this file."""
    return [JaxBackend()]
