"""A program on a WebGPU device; see `cortiq.backend.Executable`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from cortiq.backend import Batch, CompileOptions, Ticket
from cortiq.backend.columns import Brought
from cortiq.backend.executable import Accepted
from cortiq.backend.kernel import NO_KERNELS, GivenKernels
from cortiq.backend.kernel_executable import placement_of
from cortiq.backend.paged import PagedState
from cortiq.backend.paged_executable import PagedExecutable
from cortiq.backend.windows import windows_of
from cortiq.ir import Graph, Program, primitives_of
from cortiq.ir.encoded import most_rows
from cortiq.numerics.layouts import Weight
from cortiq_wgpu import open_devices
from cortiq_wgpu.device import DeviceLostError
from cortiq_wgpu.plan import WgpuPlan
from cortiq_wgpu.run import WgpuRun
from cortiq_wgpu.state_memory import WgpuStateMemory
from cortiq_wgpu.tuning import ProductTuning
from cortiq_wgpu.weights import DeviceWeights


class WgpuExecutable(PagedExecutable[PagedState, WgpuPlan]):
    """A program bound to its weights on a device.

    Parameters
    ----------
    options : `extra` may hold `binding_bytes`, the largest buffer to use (for tests; devices have
        128 MiB at least), `gpu_kernels`, whether to use those for GPUs, `portable_dot`, to multiply
        bytes by shifts, `progress`, a function called with what is done, bytes done and bytes in
        all while weights are uploaded, and `poison`, which fills unused memory in tests.

    Attributes
    ----------
    gpu : the device. pools : the memory of its sequences.
    """

    trims: ClassVar[bool] = True

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Weight],
        options: CompileOptions,
        given: GivenKernels = NO_KERNELS,
    ) -> None:
        self._weights, self._given = weights, given
        self._graphs = primitives_of(program).graphs
        super().__init__(program, options, {})
        self.placement = placement_of(program, None, "wgpu", "wgpu", given)
        self._open_device()

    def _open_device(self) -> None:
        """Open the device and put everything there; sequences are empty afterwards."""
        options = self.options
        self.gpu = open_devices.opened(options.device, bool(options.extra.get("portable_dot")))
        limit = int(options.extra.get("binding_bytes") or self.gpu.binding_bytes)
        limit = min(limit, self.gpu.binding_bytes)
        windows = {} if options.full_windows else windows_of(self.program)
        poison = bool(options.extra.get("poison"))
        self.pools = WgpuStateMemory(self.program, self.gpu, limit, poison, windows)
        parallel = bool(options.extra.get("gpu_kernels", not self.gpu.software))
        tuning = ProductTuning(**options.extra.get("tuning", {})) if parallel else None
        self._limit, self._tuning = limit, tuning
        progress = options.extra.get("progress")
        self._uploaded = DeviceWeights(self._weights, self.gpu, limit, progress)
        self.plans = self._planned(self._uploaded, self._graphs)
        self.use_memory(self.pools)
        self._lost = False

    def _planned(self, weights: DeviceWeights, graphs: Mapping[str, Graph]) -> dict[str, WgpuPlan]:
        """Upload the weights of graphs, and plan these."""
        weights.prepare(list(graphs.values()))
        shared = self.pools, self.gpu, self._tuning, most_rows(self.program), self._given
        return {name: WgpuPlan(graph, weights, *shared) for name, graph in graphs.items()}

    def varied_plans(
        self, program: Program, weights: Mapping[str, Weight]
    ) -> Mapping[str, WgpuPlan]:
        """Plan the trunk of a program with overlays; of matrices only their banks are uploaded."""
        self._varied_from = program, weights
        graphs = {"trunk": primitives_of(program).trunk}
        plans = self._planned(self._uploaded.with_more(weights), graphs)
        for plan in plans.values():
            plan.prepare(self._prepared)
        return plans

    @property
    def provenance(self) -> Mapping[str, str]:
        """Return what receipts record: the adapter, its driver, and the interface."""
        info = self.gpu.info
        kinds = {"device": "device", "driver": "description", "interface": "backend_type"}
        return {key: str(info[name]) for key, name in kinds.items()}

    def open(self, limit: int) -> PagedState:
        """Open an empty sequence of at most `limit` positions."""
        self._reopen()
        return super().open(limit)

    def device_bytes(self) -> int:
        """Return the memory left in buffers: WebGPU does not tell how much a device has."""
        return self.pools.left_bytes()

    def fits(self, nbytes: int) -> bool:
        """Check whether sequences may take so many bytes more."""
        return super().fits(nbytes) and nbytes <= self.pools.left_bytes()

    def forward(self, batch: Batch) -> Ticket:
        """Compute a batch; see `BaseExecutable`. A device that was lost is opened again first."""
        self._reopen()
        try:
            return super().forward(batch)
        except Exception as error:
            if self.plans and not self.gpu.answers():
                self._lose()
                raise DeviceLostError(
                    f"the device {self.gpu.name} was lost while a batch was computed",
                    hint="Its sequences are empty; the next request opens it again.",
                ) from error
            raise

    def _lose(self) -> None:
        """Note that the device, and all that sequences held there, are gone."""
        self._lost = True
        self.drawn = []

    def _reopen(self) -> None:
        if not self._lost:
            return
        self._open_device()
        if self.varied:
            self.varied = self.varied_plans(*self._varied_from)
        for state in self.states:
            state.block = None
            state.clear()

    def compute(
        self, plan: WgpuPlan, batch: Batch, accepted: Sequence[Accepted[PagedState]]
    ) -> Sequence[Sequence[Brought] | None]:
        """Compute a batch: for each sequence the outputs of its rows, None for one with a fault."""
        for s in accepted:
            s.state.turn(batch.entry, s.state.length(batch.entry) + len(s.tokens))
        return WgpuRun(plan, batch, accepted).compute()
