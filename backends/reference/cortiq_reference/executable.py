"""The reference's executable: a batch walked node by node."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ClassVar

from threadpoolctl import ThreadpoolController

from cortiq.backend import Batch, CompileOptions
from cortiq.backend.answers import ON_HOST, Answers
from cortiq.backend.executable import Accepted, Brought
from cortiq.backend.kernel import NO_KERNELS, GivenKernels
from cortiq.backend.plan import Kernels, Plan, Prepared
from cortiq.backend.stored import SlotStore, StoredExecutable, StoredState
from cortiq.ir import Program, Recurrent, Slot, primitives_of
from cortiq.numerics.layouts import Weight
from cortiq_reference.kernels import KERNELS, prepare
from cortiq_reference.placement import REFERENCE, placement_of
from cortiq_reference.recurrent_store import COPIES
from cortiq_reference.run import Run
from cortiq_reference.stores import open_store

ONE_THREAD = 1


class ReferenceExecutable(StoredExecutable[StoredState, Plan]):
    """A program bound to its weights; see `cortiq.backend.Executable`.

    Attributes
    ----------
    name : who computes the nodes whose kernels are not the reference's; `placement` says so.
    kernels, answers, state_type : what computes primitives, answers wants, and keeps sequences. A
        backend built on the reference replaces some of them in a subclass, and sets `name`.
    """

    trims: ClassVar[bool] = True
    name: ClassVar[str] = REFERENCE
    kernels: ClassVar[Kernels] = KERNELS
    answers: ClassVar[Answers] = ON_HOST
    state_type: ClassVar[type[StoredState]] = StoredState

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Weight],
        options: CompileOptions,
        given: GivenKernels = NO_KERNELS,
    ) -> None:
        kernels = {**self.kernels, **{op: kernel.function for op, kernel in given.items()}}
        threads = options.threads or os.cpu_count() or 1
        # Tiles are spread over our own threads: a BLAS that starts more of its own only waits.
        self._blas = ThreadpoolController().select(user_api="blas")
        self._pool = ThreadPoolExecutor(threads) if threads > ONE_THREAD else None
        graphs = primitives_of(program).graphs
        prepared = Prepared(weights, partial(prepare, pool=self._pool))
        plans = {name: Plan(g, prepared.bound(g), kernels) for name, g in graphs.items()}
        super().__init__(program, options, plans)
        self.placement = placement_of(program, self.kernels, self.name, given)

    def new_state(self, limit: int) -> StoredState:
        """An empty sequence of at most `limit` positions."""
        return self.state_type(self, limit)

    def new_store(self, name: str, slot: Slot) -> SlotStore:
        """An empty store for the slot of this name."""
        page, poison = self.options.page_rows, bool(self.options.extra.get("poison"))
        return open_store(slot, page, poison, self.extent(name))

    def slot_bytes(self, slot: Slot, rows: int) -> int:
        """Memory of a slot; there are marks beside a recurrent state."""
        copies = COPIES if isinstance(slot, Recurrent) else 1
        return copies * super().slot_bytes(slot, rows)

    def close(self) -> None:
        """Release threads and sequences."""
        if self._pool is not None:
            self._pool.shutdown()
        super().close()

    def compute(
        self, plan: Plan, batch: Batch, accepted: Sequence[Accepted[StoredState]]
    ) -> list[list[Brought] | None]:
        """What the rows of each sequence bring, None for one with a fault."""
        run = Run(plan, batch, accepted)
        run.answers = self.answers
        with self._blas.limit(limits=1):
            return run.compute()
