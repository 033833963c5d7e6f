"""A kernel that a third party brings for a primitive, perhaps its own, on an existing backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from cortiq.backend.peers import PeerRows
from cortiq.errors import BackendError, shown
from cortiq.ir import Op, Type
from cortiq.numerics.layouts import Weight
from cortiq.numerics.recurrent import StepFunction


class OperatorExample(NamedTuple):
    """An operator of a package's own, with inputs of these types, for the conformance kit.

    They are f32, or i32[] for the row's own position.
    """

    op: Op
    inputs: tuple[Type, ...]


@dataclass(frozen=True)
class Kernel:
    """A kernel from the hook `cortiq_kernels`.

    Attributes
    ----------
    backend : name of the backend it is for.
    op : the primitive that it computes, with every option and layout of it. It may be a class of
        the package's own: on the reference the kernel is then the operator's definition.
    function : what the backend computes it with, in the backend's own form: a Python function that
        is called as the backend calls its own kernels, a C function, a shader.
    name : `placement` says `BACKEND/NAME` for the nodes it computes.
    examples : of a kernel for the reference, for an operator of the package's own: on these
        `cortiq conform` compares the other backends with it, at level 0.
    """

    backend: str
    op: type[Op]
    function: Any
    name: str
    examples: tuple[OperatorExample, ...] = ()

    @property
    def owner(self) -> str:
        """Label of the kernel in the placement."""
        return f"{self.backend}/{self.name}"


class StepKernel:
    """A kernel whose state every position replaces, in a `Recurrent` slot of the role `state`.

    The step from row to row is the definition. The reference computes with it, goes back with it
    from a state that it keeps, and the conformance kit compares with it.

    Attributes
    ----------
    step : makes of the operator its `StepFunction`, which never writes to the state it is given.
    """

    def __init__(self, step: Callable[[Any], StepFunction]) -> None:
        self.step = step

    def __call__(self, call: Any, *rows: Any) -> Any:
        """Feed each sequence's rows to its state in order."""
        outputs, step = [], self.step(call.op)
        for segment in call.segments:
            cut = segment.cut
            store = segment.state.stores[call.slots["state"]]
            outputs.append(store.advance(step, tuple(x[cut] for x in rows), call.faults[cut]))
        return np.concatenate(outputs)


HostFunction = Callable[..., Any]
"""Of an operator and its inputs, arrays [rows, ...] of 32-bit numbers that may all be seen as
float32: its output, float32 or int32."""
TensorFunction = Callable[..., Any]
"""As `HostFunction`, of tensors of PyTorch: it launches, and waits for nothing."""
TableFunction = Callable[[Any], Any]
"""Of ids, an int32 tensor of PyTorch: rows of a table, float32 [ids, width] on the same device. A
row with a value outside the domain is NaN: whatever takes it raises its fault."""
GivenKernels = Mapping[type[Op], Kernel]
NO_KERNELS: GivenKernels = MappingProxyType({})


class TakesKernels:
    """Mixin of a backend that lets others replace its kernels.

    Attributes
    ----------
    given : kernels of others, by primitive.
    """

    given: GivenKernels = NO_KERNELS

    def check_kernel(self, kernel: Kernel) -> None:
        """Refuse a kernel that is not in the backend's form: here, a function of Python.

        Raises
        ------
        BackendError : what it is, and what the backend takes.
        """
        if not callable(kernel.function):
            what = f"the function of {kernel.owner} is {shown(kernel.function)}"
            raise BackendError(what, hint=f"The backend {kernel.backend} calls a Python function.")

    def use_kernel(self, kernel: Kernel) -> None:
        """Compute a primitive with this kernel from now on.

        Raises
        ------
        BackendError : another kernel was given for it already, or it is not in the backend's form.
        """
        self.check_kernel(kernel)
        other = self.given.get(kernel.op)
        if other is not None:
            what = f"{kernel.owner} and {other.name} are both for {kernel.op.__name__}"
            raise BackendError(what, hint="Load one of them only: CORTIQ_PLUGINS")
        self.given = {**self.given, kernel.op: kernel}

    def host_kernel(self, function: HostFunction) -> Any:
        """Return a `Kernel.function` that hands all rows of a batch to a function at once.

        Parameters
        ----------
        function : must not raise; its output has one array.
        """

        def computed(call: Any, *inputs: Any) -> Any:
            library = getattr(call, "library", None)
            if library is None:
                return function(call.op, *inputs)
            return library.array(function(call.op, *map(library.host, inputs)))

        return computed

    def tensor_kernel(self, function: TensorFunction) -> Any:
        """Return a `Kernel.function` that hands all rows to a function of PyTorch's tensors, which
        stay on the device; None where a backend's arrays are others.
        """
        return None

    def table_function(self, table: Weight, name: str) -> TableFunction | None:
        """Return what looks up rows of a table, and waits for nothing; None where a backend has
        no such function: then the host looks them up.
        """
        return None

    def peer_rows(self, device: str, rank: int, size: int, seconds: float) -> PeerRows | None:
        """Return memory of a device that its peers write rows to; None where there is none.

        Parameters
        ----------
        rank, size : this one of the peers, and how many there are. seconds : until one is given up.

        Raises
        ------
        BackendError : why the device has none for others.
        """
        return None

    def drop_kernel(self, kernel: Kernel) -> None:
        """Go back to the backend's own kernel."""
        self.given = {op: other for op, other in self.given.items() if other != kernel}
