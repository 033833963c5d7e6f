"""A program bound to its weights on a device; see `cortiq.backend.Executable`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
import triton

from cortiq.backend import Batch, CompileOptions, Finished
from cortiq.backend.executable import Accepted, Brought
from cortiq.backend.kernel import NO_KERNELS, GivenKernels
from cortiq.backend.kernel_executable import placement_of
from cortiq.backend.paged import PagedState
from cortiq.backend.paged_executable import PagedExecutable
from cortiq.ir import Program, expand
from cortiq.numerics.layouts import Weight
from cortiq_triton.call import Counters, Shared
from cortiq_triton.decode import Decoder, Step
from cortiq_triton.memory import TritonMemory
from cortiq_triton.plan import Plan, weights_of
from cortiq_triton.rotary import Angles
from cortiq_triton.run import Run
from cortiq_triton.state import TritonState


class TritonExecutable(PagedExecutable[TritonState, Plan]):
    """A program on one device.

    Attributes
    ----------
    decoder : steps of decoding, which are captured and run ahead. graphs : whether that is done.
    asynchronous : `forward` returns with a step of decoding under way.
    """

    asynchronous: ClassVar[bool] = True
    state_type: ClassVar[type[PagedState]] = TritonState
    memory: TritonMemory

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Weight],
        options: CompileOptions,
        device: str,
        given: GivenKernels = NO_KERNELS,
    ) -> None:
        self.device = device
        layouts = {weight: spec.layout for weight, spec in program.weights.items()}
        graphs = {n: expand(g, layouts, lambda node: False) for n, g in program.graphs.items()}
        prepared = weights_of(weights, device)
        fuses = bool(options.extra.get("fuse", True))
        angles = Angles(device)
        plans = {n: Plan(graph, prepared, angles, fuses, given) for n, graph in graphs.items()}
        super().__init__(program, options, plans)
        self.use_memory(TritonMemory(program, device, bool(options.extra.get("poison"))))
        self.graphs = bool(options.extra.get("graphs", device != "cpu"))
        self._settling = False
        self.shared = Shared(program, self.layout, angles, device, Counters(device))
        self.decoder = Decoder(self)
        self.placement = placement_of(program, None, "triton", "triton", given)

    @property
    def provenance(self) -> Mapping[str, str]:
        """What computes here, for receipts: Triton, PyTorch, CUDA, the device."""
        facts = {"triton": triton.__version__, "torch": str(torch.__version__)}
        if self.device == "cpu":
            return facts | {"device": "Triton's interpreter"}
        name = torch.cuda.get_device_name(self.device)
        return facts | {"device": name, "cuda": str(torch.version.cuda)}

    def device_bytes(self) -> int:
        """Memory the device has free, with what torch and the pool keep for later."""
        if self.device == "cpu":
            return super().device_bytes()
        free = torch.cuda.mem_get_info(self.device)[0]
        idle = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return free + idle + len(self.memory.spare) * self.layout.page_bytes

    def settle(self, last: Step | None = None) -> None:
        """Wait for what is under way, up to a step if one is given."""
        if not self._settling:
            self._settling = True
            try:
                self.decoder.settle(last)
            finally:
                self._settling = False

    def forward(self, batch: Batch) -> Finished | Step:  # type: ignore[override]
        """Compute a batch; a step of decoding is under way when this returns."""
        plan = self.plans.get(batch.entry)
        step = self.decoder.submit(plan, batch) if plan is not None and self.graphs else None
        if step is not None:
            return step
        self.settle()
        return super().forward(batch)

    def close(self) -> None:
        """Release weights, sequences and pages."""
        super().close()
        self.memory.spare.clear()

    def compute(
        self, plan: Plan, batch: Batch, accepted: Sequence[Accepted[TritonState]]
    ) -> list[Sequence[Brought] | None]:
        """What the rows of each sequence bring, None for one with a fault."""
        return Run(plan, batch, accepted, self.shared).compute()
