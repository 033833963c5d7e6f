"""A package's kernel for this backend: a C function over rows, see include/cortiq_kernel.h."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cortiq.errors import BackendError, shown

FUNCTION: Any = ctypes.CFUNCTYPE(None).__mro__[1]
"""Class of all functions that ctypes loads."""
INCLUDE = Path(__file__).parent / "include"
"""Folder of the header, for the compiler's `-I`."""


@dataclass(frozen=True)
class NativeKernel:
    """A C function for `cortiq.backend.Kernel` on the backend `cpu`.

    Attributes
    ----------
    function : of a library that ctypes has loaded; its type is `cortiq_kernel_function`.
    constants : makes of the operator the struct that the function finds in `call->constants`.
    whole : whether one thread calls it once for all rows of a batch, rather than several for some.
    steps : the function is a `cortiq_step_function`; the operator has a `Recurrent` slot `state`.
    """

    function: Any
    constants: Callable[[Any], ctypes.Structure | None] = lambda op: None
    whole: bool = False
    steps: bool = False

    @property
    def address(self) -> int:
        """Address of the function; BackendError where it is none of C."""
        if not isinstance(self.function, FUNCTION):
            what = f"{shown(self.function)} is no function of a library that ctypes has loaded"
            raise BackendError(what, hint="ctypes.CDLL(path).name")
        return ctypes.cast(self.function, ctypes.c_void_p).value or 0
