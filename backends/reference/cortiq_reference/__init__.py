"""The reference backend: the numerics contract in NumPy, cache-blocked and held to its bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cortiq.hookspecs import hookimpl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cortiq.backend import Backend, FallbackKernels


@hookimpl
def cortiq_backends() -> Sequence[Backend]:
    """Return the one backend of this package."""
    from cortiq_reference.backend import ReferenceBackend

    return [ReferenceBackend()]


def delegate() -> FallbackKernels:
    """Return kernels for the primitives that a backend (`KernelBackend.others`) lacks."""
    from functools import partial

    from cortiq.backend import FallbackKernels
    from cortiq_reference.kernels import KERNELS, prepare

    return FallbackKernels("reference", KERNELS, partial(prepare, pool=None))
