"""Registration of third-party kernels with their backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cortiq.errors import CortiqError
from cortiq.plugins.checks import BrokenPluginError

if TYPE_CHECKING:
    from cortiq.backend import Backend, Kernel


def register_kernels(kernels: Sequence[Kernel], backends: Mapping[str, Backend]) -> None:
    """Register each kernel with its backend, all of them or none.

    A kernel whose backend is not installed is left out if another one's is.

    Raises
    ------
    BrokenPluginError : no kernel's backend is there, or one takes none, or refuses this one.
    """
    usable = [kernel for kernel in kernels if kernel.backend in backends]
    if kernels and not usable:
        there, kernel = ", ".join(backends) or "none", kernels[0]
        what = f"brings {kernel.name!r} for the backend {kernel.backend!r}; there are {there}"
        raise BrokenPluginError(what)
    for kernel in usable:
        backend: Any = backends[kernel.backend]
        if not hasattr(backend, "use_kernel"):
            raise BrokenPluginError(f"the backend {kernel.backend!r} takes no kernels")
    given: list[Kernel] = []
    try:
        for kernel in usable:
            backends[kernel.backend].use_kernel(kernel)  # type: ignore[attr-defined]
            given.append(kernel)
    except CortiqError as error:
        for kernel in given:
            backends[kernel.backend].drop_kernel(kernel)  # type: ignore[attr-defined]
        raise BrokenPluginError(str(error)) from None
