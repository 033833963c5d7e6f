"""Kernels of another backend in place of those that a backend does not have yet.

They are called with NumPy arrays, and their outputs become arrays of the library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from cortiq.backend.arrays import ArrayLibrary
from cortiq.backend.kernel_walk import KernelCall
from cortiq.backend.plan import Kernels
from cortiq.backend.stores import ArrayStore
from cortiq.backend.walk import Call
from cortiq.ir import Op
from cortiq.numerics.contract import Flags, Floats
from cortiq.numerics.layouts import Weight
from cortiq.numerics.quantise import Quantised, from_planes
from cortiq.numerics.recurrent import StepFunction, in_order

Prepare = Callable[[ArrayLibrary, Op, str, Weight, str], Any]


@dataclass(frozen=True)
class FallbackKernels:
    """Kernels in NumPy that compute what a backend has no kernel for.

    Attributes
    ----------
    name : who computes, for `placement`.
    kernels : by primitive. prepare : makes of (op, role, weight, its name) what they take.
    """

    name: str
    kernels: Kernels
    prepare: Callable[[Op, str, Weight, str], Any]

    def completed(
        self, kernels: Kernels, computes: Callable[[Op], bool], prepare: Prepare
    ) -> tuple[Kernels, Prepare]:
        """Return kernels of every primitive, and how a weight is prepared for its kernel.

        Parameters
        ----------
        computes : whether the backend's own kernel knows an operator with all its options.
        """

        def prepared(library: ArrayLibrary, op: Op, role: str, weight: Weight, name: str) -> Any:
            if not computes(op) and type(op) in self.kernels:
                return self.prepare(op, role, weight, name)
            return prepare(library, op, role, weight, name)

        def chosen(kind: type[Op], other: Callable[..., Any]) -> Callable[..., Any]:
            own, there = kernels.get(kind), _delegated(other)
            if own is None:
                return there
            return lambda call, *inputs: (own if computes(call.op) else there)(call, *inputs)

        return {**kernels, **{k: chosen(k, f) for k, f in self.kernels.items()}}, prepared


def _delegated(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that is called with NumPy arrays."""

    def on_host(call: KernelCall, *inputs: Any) -> Any:
        library = call.library
        faults = np.zeros(len(call.group.places), np.bool_)
        segments = [s._replace(state=_HostState(s.state, library)) for s in call.segments]
        host = Call(call.op, call.weights, call.slots, segments, faults)
        result = kernel(host, *(_to_host(library, value) for value in inputs))
        if faults.any():
            library.raise_flags(call.faults, faults)
        if isinstance(result, Quantised) or not isinstance(result, tuple):
            return _from_host(library, result)
        return tuple(_from_host(library, part) for part in result)

    return on_host


def _to_host(library: ArrayLibrary, value: Any) -> Any:
    if isinstance(value, tuple):
        return Quantised(*(library.host(part).astype(np.int32) for part in value))
    return library.host(value)


def _from_host(library: ArrayLibrary, value: Any) -> Any:
    if isinstance(value, Quantised):
        q = library.cast(library.array(value.q), library.row_type)
        return library.rows(q, library.array(value.e))
    return library.array(np.ascontiguousarray(value))


class _HostState(SimpleNamespace):
    """A sequence whose stores are read and written with NumPy arrays."""

    def __init__(self, state: Any, library: ArrayLibrary) -> None:
        super().__init__(stores={n: _HostStore(s, library) for n, s in state.stores.items()})


class _HostStore:
    """A store that is read and written with NumPy arrays."""

    def __init__(self, store: ArrayStore, library: ArrayLibrary) -> None:
        self._store: Any = store
        self._library = library

    @property
    def base(self) -> int:
        return self._store.base

    @property
    def last(self) -> Floats:
        return self._library.host(self._store.last)

    def append(self, *parts: Any) -> None:
        self._store.append(*(_from_host(self._library, part) for part in parts))

    def read(self) -> tuple[Quantised, Quantised]:
        planes = self._store.export()
        keys = from_planes(planes.key_high, planes.key_low), planes.key_exponent
        values = from_planes(planes.value_high, planes.value_low), planes.value_exponent
        return tuple(Quantised(q, e.astype(np.int32)) for q, e in (keys, values))  # type: ignore

    def advance(self, step: StepFunction, rows: tuple[Floats, ...], faults: Flags) -> Floats:
        state = self._library.host(self._store.state)
        state, out = in_order(step, state, rows, faults)
        self._store.advance(self._library.array(state), len(rows[0]))
        return out
