"""A program bound to its weights on a device; see `cortiq.backend.Executable`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import triton

from cortiq.backend import Batch, CompileOptions, Row, Ticket
from cortiq.backend.columns import Brought
from cortiq.backend.executable import Accepted
from cortiq.backend.kernel import NO_KERNELS, GivenKernels
from cortiq.backend.kernel_executable import placement_of
from cortiq.backend.paged import PagedState
from cortiq.backend.paged_executable import EARLY_POSITIONS, PagedExecutable
from cortiq.ir import Program, expand, primitives_of
from cortiq.ir.encoders import ENCODER
from cortiq.ir.overlays import OVERLAY_ROW
from cortiq.numerics.layouts import Weight
from cortiq_triton import compiled, flight, graph_memory, warm
from cortiq_triton.activation_memory import MOST_ROWS, WHOLE_ROWS, batch_rows, row_bytes
from cortiq_triton.call import Counters, Shared
from cortiq_triton.current_device import on_own_device
from cortiq_triton.decode import StepDecoder
from cortiq_triton.memory import DeviceBytes, TritonMemory
from cortiq_triton.plan import Plan, weights_of
from cortiq_triton.rotary import Angles
from cortiq_triton.run import Run
from cortiq_triton.shapes import Scratch
from cortiq_triton.state import TritonState
from cortiq_triton.under_way import UnderWay

LOADERS = 8
"""Threads that make weights; each holds a slice of one on the host."""


class TritonExecutable(PagedExecutable[TritonState, Plan]):
    """A program on one device.

    Attributes
    ----------
    decoder : steps of decoding, which are captured and run ahead. graphs : whether that is done;
        not where devices that share a program exchange through the host.
    asynchronous : a batch may be given before the one before it is read; not where devices share a
        program, whose driver reads every batch.
    """

    trims: ClassVar[bool] = True
    piece_rows: ClassVar[int] = sys.maxsize
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
        if device != "cpu":
            nodes = [node for graph in graphs.values() for node in graph.nodes]
            prepared.make_ahead(nodes, min(LOADERS, os.cpu_count() or 1))
        fuses = bool(options.extra.get("fuse", True))
        angles = Angles(device)
        plans = {n: Plan(graph, prepared, angles, fuses, given) for n, graph in graphs.items()}
        self._prepared_weights, self._fuses, self._given = prepared, fuses, given
        super().__init__(program, options, plans)
        poison = bool(options.extra.get("poison"))
        self.use_memory(TritonMemory(program, device, poison, self.windows))
        launched = options.peers.launches(device)
        self.graphs = launched and bool(options.extra.get("graphs", device != "cpu"))
        self._asynchronous = options.peers.size == 1
        self._settling = False
        self._workspace = 0
        self._graphs_idle: tuple[tuple[int, ...], int] = (), 0
        self._spoilt: tuple[list[DeviceBytes], DeviceBytes | None] | None = None
        counters, peers = Counters(device), options.peers
        self.shared = Shared(program, self.layout, angles, device, counters, peers=peers)
        self.decoder = StepDecoder(self)
        self.placement = placement_of(program, None, "triton", "triton", given)
        if device != "cpu":
            each = max(map(row_bytes, plans.values()))
            most = WHOLE_ROWS if ENCODER in program.facts else MOST_ROWS
            self.batch_rows = batch_rows(each, self.device_bytes(), most)
            self._workspace = (each + self.memory.windowed_row_bytes) * self.batch_rows

    def varied_plans(self, program: Program, weights: Mapping[str, Weight]) -> Mapping[str, Plan]:
        """Plan the trunk of a program with overlays; only their banks are uploaded.

        Matrices are one where they are in the plan without: more would hold second copies.
        """
        more = weights_of(weights, self.device)
        more.made.update(self._prepared_weights.made)
        graph = primitives_of(program).trunk
        plan = Plan(graph, more, self.shared.angles, self._fuses, self._given, self.plans["trunk"])
        plan.prepare(self._prepared)
        return {"trunk": plan}

    @on_own_device
    def vary(self, program: Program | None, weights: Mapping[str, Weight]) -> None:
        """Take a program with overlays in place of the one before, and of what was captured."""
        before = [*self.varied.values()]
        super().vary(program, weights)
        self.decoder.forget_plans(before)

    @property
    def asynchronous(self) -> bool:  # type: ignore[override]
        """Whether `forward` returns with the batch under way."""
        return self._asynchronous

    @property
    def provenance(self) -> Mapping[str, str]:
        """Return versions of what computes, for receipts: Triton, PyTorch, CUDA, the device."""
        facts = {"triton": triton.__version__, "torch": str(torch.__version__)}
        if self.device == "cpu":
            return facts | {"device": "Triton's interpreter"}
        name = torch.cuda.get_device_name(self.device)
        return facts | {"device": name, "cuda": str(torch.version.cuda)}

    def device_bytes(self) -> int:
        """Memory the device has free, with what torch and the pool keep for later, but for what
        graphs keep, and without what a batch of `batch_rows` takes while it is computed.
        """
        if self.device == "cpu":
            return super().device_bytes()
        free = torch.cuda.mem_get_info(self.device)[0]
        known = torch.cuda.memory_stats_as_nested_dict(
            self.device
        )  # a tenth of the flat one's time
        idle = sum(
            sign * known[f"{kind}_bytes"]["all"]["current"]
            for kind, sign in (("reserved", 1), ("allocated", -1))
        )
        graphs = self.decoder.graphs
        if graphs != self._graphs_idle[0]:
            self._graphs_idle = graphs, graph_memory.idle_bytes(self.device)
        idle -= self._graphs_idle[1]
        return max(0, free + idle + self.memory.spare_bytes - self._workspace)

    def scratch_memory(self) -> tuple[list[DeviceBytes], DeviceBytes | None]:
        """Return a page of each group and a block, of no sequence, that kernels may spoil."""
        if self._spoilt is None:
            layout = self.layout
            pages = [self.memory.allocate(group) for group in layout.groups]
            block = self.memory.allocate(layout.block) if layout.block.page_bytes else None
            if block is not None:
                block.memory.zero_()
            self._spoilt = pages, block
        return self._spoilt

    def scratch(self) -> Scratch:
        """Return a stand-in for one more sequence, in pages and a block that all such share."""
        pages, block = self.scratch_memory()
        return Scratch([p.address for p in pages] or [0], 0 if block is None else block.address)

    @on_own_device
    def settle(self, last: UnderWay | None = None) -> None:
        """Wait for what is under way, up to a batch if one is given."""
        if not self._settling:
            self._settling = True
            try:
                self.decoder.settle(last)
            finally:
                self._settling = False

    @on_own_device
    def settle_state(self, state: TritonState) -> None:
        """Wait for what is under way of one sequence, and for what was launched before that."""
        with_rows = [
            batch
            for batch in self.decoder.under_way
            if any(known is state for known in batch.states)
        ]
        if with_rows:
            self.settle(with_rows[-1])

    def late_masks(self, batch: Batch) -> bool:
        """Check whether draws of this batch may have masks that come later: those of steps may."""
        plan = self.plan_of(batch) if batch.entry in self.plans else None
        return plan is not None and self.graphs and self.decoder.takes(plan, batch) is not None

    @on_own_device
    def forward(self, batch: Batch) -> Ticket:
        """Compute a batch; it is under way when this returns."""
        plan = self.plan_of(batch) if batch.entry in self.plans else None
        if plan is not None and self.graphs and OVERLAY_ROW not in plan.graph.inputs:
            going = self.decoder.submit(plan, batch) or flight.submit(self.decoder, plan, batch)
            if going is not None:
                return going
        self.settle()
        return super().forward(batch)

    @on_own_device
    def warm(self, progress: Callable[[int, int], None] = lambda done, total: None) -> bool:
        """Compile the kernels that serving needs, those that Triton's cache lacks.

        Return False in Triton's interpreter, which compiles nothing. An error is logged: what could
        not be compiled ahead may never be needed, and else raises when it is.

        Parameters
        ----------
        progress : called with how many kernels are ready, and how many there are.
        """
        if self.device == "cpu":
            return False
        self.prepare(min(self.program.context, EARLY_POSITIONS))
        try:
            with compiled.collecting(progress):
                warm.walk(self)
        except Exception:
            compiled.LOG.exception("not all kernels could be compiled ahead")
        compiled.COMPILATIONS.expected = False
        return True

    @on_own_device
    def close(self) -> None:
        """Release weights, sequences and pages."""
        super().close()
        self.decoder.forget()
        self.memory.clear()

    @on_own_device
    def new_state(self, limit: int) -> TritonState:
        """Return an empty sequence of at most `limit` positions."""
        made: TritonState = super().new_state(limit)
        return made

    def lets_in(self, plan: Plan, entry: str, row: Row, token: int) -> bool:
        """Check whether a row certainly can be computed, its pages there."""
        state: Any = row.state
        return super().lets_in(plan, entry, row, token) and state.has_pages(entry, row.position)

    def refusal(self, plan: Plan, batch: Batch, sequence: Accepted[TritonState]) -> str | None:
        """Say why a sequence's rows cannot be computed; where they can, have their pages."""
        reason = super().refusal(plan, batch, sequence)
        start, rows = sequence.state.length(batch.entry), len(sequence.tokens)
        if reason is None and not sequence.state.have_pages(batch.entry, start + rows):
            return f"no room for {rows} rows after {start}"
        return reason

    def compute(
        self, plan: Plan, batch: Batch, accepted: Sequence[Accepted[TritonState]]
    ) -> list[Sequence[Brought] | None]:
        """Return the answers of each sequence's rows, None for one with a fault."""
        return Run(plan, batch, accepted, self.shared).compute()
