"""The CPU backend of cortiq: native kernels with the bits of the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cortiq.hookspecs import hookimpl
from cortiq_cpu.native_kernel import INCLUDE, NativeKernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cortiq.backend import Backend

__all__ = ["INCLUDE", "NativeKernel", "cortiq_backends"]


@hookimpl
def cortiq_backends() -> Sequence[Backend]:
    """Return the one backend of this package."""
    from cortiq_cpu.backend import CpuBackend

    return [CpuBackend()]
