"""A kernel that a third party brings for a primitive of an existing backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from cortiq.errors import BackendError
from cortiq.ir import Op


@dataclass(frozen=True)
class Kernel:
    """A kernel from the hook `cortiq_kernels`.

    Attributes
    ----------
    backend : name of the backend it is for.
    op : the primitive that it computes, with every option and layout of it.
    function : called as the backend calls its own kernels; the backend's documentation says how.
    name : `placement` says `BACKEND/NAME` for the nodes it computes.
    """

    backend: str
    op: type[Op]
    function: Callable[..., Any]
    name: str

    @property
    def owner(self) -> str:
        """Label of the kernel in the placement."""
        return f"{self.backend}/{self.name}"


GivenKernels = Mapping[type[Op], Kernel]
NO_KERNELS: GivenKernels = MappingProxyType({})


class TakesKernels:
    """Mixin of a backend that lets others replace its kernels.

    Attributes
    ----------
    given : kernels of others, by primitive.
    """

    given: GivenKernels = NO_KERNELS

    def use_kernel(self, kernel: Kernel) -> None:
        """Compute a primitive with this kernel from now on.

        Raises
        ------
        BackendError : another kernel was given for it already.
        """
        other = self.given.get(kernel.op)
        if other is not None:
            what = f"{kernel.owner} and {other.name} are both for {kernel.op.__name__}"
            raise BackendError(what, hint="Load one of them only: CORTIQ_PLUGINS")
        self.given = {**self.given, kernel.op: kernel}

    def drop_kernel(self, kernel: Kernel) -> None:
        """Go back to the backend's own kernel."""
        self.given = {op: other for op, other in self.given.items() if other != kernel}
