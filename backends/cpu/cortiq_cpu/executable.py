"""The executable: a batch admitted, computed chunk by chunk in native calls, and answered."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

from cortiq.backend import Batch, CompileOptions
from cortiq.backend.columns import Brought
from cortiq.backend.executable import Accepted
from cortiq.backend.kernel import NO_KERNELS, GivenKernels
from cortiq.backend.kernel_executable import placement_of
from cortiq.backend.paged import PagedState
from cortiq.backend.paged_executable import EARLY_POSITIONS, PagedExecutable
from cortiq.backend.windows import windows_of
from cortiq.ir import Program, primitives_of
from cortiq.numerics.layouts import Weight
from cortiq_cpu.memory import CpuStateMemory
from cortiq_cpu.native import ThreadPool, library_hash
from cortiq_cpu.plan import CpuPlan
from cortiq_cpu.profile import OpProfile
from cortiq_cpu.run import CpuRun
from cortiq_cpu.state import CpuState
from cortiq_cpu.state_layout import StateLayout
from cortiq_cpu.weights import PackedWeights


class CpuExecutable(PagedExecutable[CpuState, CpuPlan]):
    """A program bound to its packed weights; see `cortiq.backend.Executable`.

    Parameters
    ----------
    options : `extra` may hold `isa`, the instruction set to use (`native.ISAS`), `profile` to be
        able to record the time of each op, and `poison`, which fills unused memory in tests.
    given : kernels of other packages, by primitive.

    Attributes
    ----------
    profile : see `cortiq_cpu.profile.OpProfile`; None unless asked for.
    """

    trims: ClassVar[bool] = True
    state_type: ClassVar[type[PagedState]] = CpuState
    memory: CpuStateMemory
    layout: StateLayout

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Weight],
        options: CompileOptions,
        given: GivenKernels = NO_KERNELS,
    ) -> None:
        threads = options.threads or _cores()
        self.pool = ThreadPool(threads, options.extra.get("isa"))
        graphs = primitives_of(program).graphs
        poison = bool(options.extra.get("poison"))
        windows = {} if options.full_windows else windows_of(program)
        layout = StateLayout(program, graphs, options.page_rows, windows, given)
        with ThreadPoolExecutor(threads) as packers:
            packed = PackedWeights(weights, packers, options.kept)
            plans = {n: CpuPlan(g, packed, layout, self.pool, given) for n, g in graphs.items()}
            packed.place()
        self._packed, self._given = packed, given
        super().__init__(program, options, plans)
        self.use_memory(CpuStateMemory(layout, self.pool, poison))
        for plan in plans.values():
            if plan.angles.supplied:  # Rows may be anywhere in the context from the first one on.
                plan.prepare(min(program.context, EARLY_POSITIONS))
        self.placement = placement_of(program, None, "cpu", "cpu", given)
        self.profile = OpProfile(self.pool) if options.extra.get("profile") else None
        self._ending = weakref.finalize(self, self.pool.close)

    def varied_plans(
        self, program: Program, weights: Mapping[str, Weight]
    ) -> Mapping[str, CpuPlan]:
        """Plan the trunk of a program with overlays; only their banks are packed."""
        graph = primitives_of(program).trunk
        with ThreadPoolExecutor(self.pool.threads) as packers:
            packed = self._packed.with_more(weights, packers)
            plan = CpuPlan(graph, packed, self.layout, self.pool, self._given)
        plan.prepare(self._prepared)
        return {"trunk": plan}

    def revise(self, number: int, weights: Mapping[str, Weight]) -> bool:
        """Pack the part of one overlay in place."""
        if "trunk" not in self.varied:
            return not weights
        packed = self.varied["trunk"].weights
        if not all(packed.takes(name, number, weight) for name, weight in weights.items()):
            return False
        for name, weight in weights.items():
            packed.revise(name, number, weight)
        return True

    @property
    def provenance(self) -> Mapping[str, str]:
        """Return what receipts record: the instruction set, and the hash of the native core."""
        return {"isa": self.pool.isa, "native": library_hash()}

    def fits(self, nbytes: int) -> bool:
        """Check whether sequences may take so many bytes more; spare memory is freed if needed."""
        if nbytes + self.memory.spare_bytes > self.free_bytes():
            self.memory.spare.clear()
        return super().fits(nbytes)

    def close(self) -> None:
        """Release threads, weights and sequences."""
        super().close()
        self.pool.close()

    def compute(
        self, plan: CpuPlan, batch: Batch, accepted: Sequence[Accepted[CpuState]]
    ) -> list[Sequence[Brought] | None]:
        """Compute a batch: for each sequence the outputs of its rows, None for one with a fault."""
        for s in accepted:
            s.state.turn(batch.entry, s.state.length(batch.entry) + len(s.tokens))
        recording = self.profile is not None and self.profile.recording
        return CpuRun(plan, batch, accepted, self.profile if recording else None).compute()


def _cores() -> int:
    """Return the number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
