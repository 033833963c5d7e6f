"""The reference's executable: a batch walked node by node."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

from threadpoolctl import ThreadpoolController

from cortiq.backend import CompileOptions
from cortiq.backend.kernel import NO_KERNELS, GivenKernels
from cortiq.backend.kernel_executable import KernelExecutable, placement_of
from cortiq.backend.numpy_arrays import NumPyArrays
from cortiq.backend.plan import KernelPlan, Kernels, Prepared
from cortiq.backend.stored import SlotStore
from cortiq.ir import Program, Recurrent, Slot, primitives_of
from cortiq.numerics.layouts import Weight
from cortiq_reference.kernels import KERNELS, prepare
from cortiq_reference.recurrent_store import COPIES, CheckpointedStore

REFERENCE = "reference"
ONE_THREAD = 1


class ReferenceArrays(NumPyArrays):
    """NumPy, and threads of our own that tiles are spread over.

    Attributes
    ----------
    pool : the threads; None for the caller's only.
    """

    def __init__(self, options: CompileOptions) -> None:
        threads = options.threads or os.cpu_count() or 1
        # A BLAS that starts more threads of its own only waits.
        self._blas = ThreadpoolController().select(user_api="blas")
        self.pool = ThreadPoolExecutor(threads) if threads > ONE_THREAD else None

    @contextmanager
    def running(self, options: CompileOptions) -> Iterator[None]:
        """Compute with one thread of the BLAS in this context."""
        with self._blas.limit(limits=1):
            yield

    def close(self) -> None:
        """Release threads."""
        if self.pool is not None:
            self.pool.shutdown()


class ReferenceExecutable(KernelExecutable):
    """A program bound to its weights; see `cortiq.backend.Executable`.

    Attributes
    ----------
    name : who computes the nodes whose kernels are not the reference's; `placement` says so.
    kernels : what computes primitives. A backend built on the reference replaces some of them in a
        subclass, and sets `name`.
    """

    name: ClassVar[str] = REFERENCE
    kernels: ClassVar[Kernels] = KERNELS

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Weight],
        options: CompileOptions,
        given: GivenKernels = NO_KERNELS,
    ) -> None:
        kernels = {**self.kernels, **{op: kernel.function for op, kernel in given.items()}}
        self.arrays = ReferenceArrays(options)

        def planned(
            program: Program, weights: Mapping[str, Weight], made: dict[Any, Any]
        ) -> dict[str, KernelPlan]:
            prepared = Prepared(weights, partial(prepare, pool=self.arrays.pool), made=made)
            graphs = primitives_of(program).graphs
            return {name: KernelPlan(g, prepared.bound(g), kernels) for name, g in graphs.items()}

        made: dict[Any, Any] = {}
        plans = planned(program, weights, made)
        own = {op for op, kernel in self.kernels.items() if kernel is not KERNELS.get(op)}
        computes = (lambda op: type(op) in own) if own else None
        owner = self.name if own else REFERENCE
        placement = placement_of(program, computes, owner, REFERENCE, given)
        super().__init__(program, options, self.arrays, plans, placement)
        self.planner, self._made = planned, made

    def new_store(self, name: str, slot: Slot) -> SlotStore:
        """Return an empty store for the slot of this name; a recurrent one has marks."""
        if isinstance(slot, Recurrent):
            return CheckpointedStore(slot)
        return super().new_store(name, slot)

    def slot_bytes(self, slot: Slot, rows: int) -> int:
        """Return the memory of a slot; there are marks beside a recurrent state."""
        copies = COPIES if isinstance(slot, Recurrent) else 1
        return copies * super().slot_bytes(slot, rows)

    def close(self) -> None:
        """Release threads and sequences."""
        self.arrays.close()
        super().close()
