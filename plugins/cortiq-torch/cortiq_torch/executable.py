"""A program bound to its weights on a device; see `cortiq.backend.Executable`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from cortiq.backend import (
    FAULT,
    Batch,
    BatchResult,
    CompileOptions,
    ExportedState,
    Finished,
    Outcome,
    State,
    Status,
    Want,
    check_exported,
)
from cortiq.backend.admission import drawn_token, groups_of, refusals, token_of, vocabulary_of
from cortiq.backend.kernel import NO_KERNELS, GivenKernels
from cortiq.errors import RequestError
from cortiq.ir import Node, Program, Ring, Slot, expand
from cortiq.numerics.layouts import Weight
from cortiq_torch.kernels import LAYERS
from cortiq_torch.plan import Plan
from cortiq_torch.run import Run
from cortiq_torch.state import TorchState

Groups = list[tuple[TorchState, range]]


class TorchExecutable:
    """A program on one device.

    Attributes
    ----------
    asynchronous : `forward` returns when the batch is computed.
    written : slots that each entry graph writes.
    """

    asynchronous = False

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Weight],
        options: CompileOptions,
        device: str,
        name: str,
        given: GivenKernels = NO_KERNELS,
    ) -> None:
        self.program, self.options, self.device = program, options, device
        self.vocabulary = vocabulary_of(program)
        layouts = {weight: spec.layout for weight, spec in program.weights.items()}
        whole = {} if given else LAYERS  # a kernel of others is for the primitives inside, too

        def is_claimed(node: Node) -> bool:
            return type(node.op) in whole

        graphs = {n: expand(g, layouts, is_claimed) for n, g in program.graphs.items()}
        self._plans = {n: Plan(graph, weights, device, given) for n, graph in graphs.items()}
        self.written = {n: graph.written_slots() for n, graph in graphs.items()}
        nodes = [node for graph in program.graphs.values() for node in graph.nodes]
        theirs = {op: kernel.owner for op, kernel in given.items()}
        self.placement = {node.name: theirs.get(type(node.op), name) for node in nodes}
        self._states: list[TorchState] = []
        self._drawn: list[int | None] = []

    @property
    def provenance(self) -> Mapping[str, str]:
        """What computes here, for receipts: PyTorch, CUDA, the device."""
        facts = {"torch": str(torch.__version__), "device": self.device}
        if self.device != "cpu":
            facts["device"] = torch.cuda.get_device_name(self.device)
            facts["cuda"] = str(torch.version.cuda)
        return facts

    def open(self, limit: int) -> TorchState:
        """A new, empty sequence of at most `limit` positions."""
        state = TorchState(self, limit)
        self._states.append(state)
        return state

    def import_(self, exported: ExportedState, limit: int) -> TorchState:
        """A sequence that continues an exported one."""
        check_exported(exported, self.program, limit)
        state = self.open(limit)
        try:
            state.load(exported)
        except BaseException:
            state.release()
            raise
        return state

    def forget(self, state: TorchState) -> None:
        """Drop a released sequence."""
        self._states = [s for s in self._states if s is not state]

    def state_bytes(self, rows: int) -> int:
        """Memory one sequence of this many rows takes."""
        page = self.options.page_rows
        whole = -(-rows // page) * page
        return sum(_slot_bytes(slot, whole) for slot in self.program.slots.values())

    def free_bytes(self) -> int:
        """Memory left for sequences: the limit's rest, or what the device has free."""
        if self.options.memory_limit is not None:
            return self.options.memory_limit - sum(state.nbytes() for state in self._states)
        if self.device != "cpu":
            return torch.cuda.mem_get_info(self.device)[0]
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def fits(self, state: TorchState, rows: int) -> bool:
        """Whether a sequence may grow to this many rows."""
        return self.state_bytes(rows) - state.nbytes() <= self.free_bytes()

    def close(self) -> None:
        """Release weights and sequences."""
        for state in list(self._states):
            state.release()
        self._plans = {}

    def forward(self, batch: Batch) -> Finished:
        """Compute a batch: admit, run, then settle each sequence's outcome."""
        plan = self._plan(batch.entry)
        tokens = [token_of(row, self._drawn) for row in batch.rows]
        groups = groups_of(batch, self._owns)
        outcomes: dict[State, Outcome] = {
            state: self._admit(plan, batch, rows, tokens) for state, rows in groups.items()
        }
        accepted = [
            (state, rows)
            for state, rows in groups.items()
            if outcomes[state].status is Status.COMPLETED
        ]
        brought: list[Mapping[Want, Any]] = [{} for _ in batch.rows]
        if accepted:
            self._compute(plan, batch, accepted, tokens, outcomes, brought)
        self._drawn = [drawn_token(wants) for wants in brought]
        return Finished(BatchResult(outcomes, brought))

    def _compute(
        self,
        plan: Plan,
        batch: Batch,
        accepted: Groups,
        tokens: list[int],
        outcomes: dict[State, Outcome],
        brought: list[Mapping[Want, Any]],
    ) -> None:
        """Fill in what the accepted rows brought; a sequence with a fault is cleared."""
        run = Run(plan, batch, accepted, tokens, self.device)
        try:
            with _threads(self.options.threads):
                run.compute()
            answers = {index: run.answers(index) for _, rows in accepted for index in rows}
        except BaseException:
            for state, _ in accepted:
                state.clear()
            raise
        for state, rows in accepted:
            if run.failed(state):
                outcomes[state] = Outcome(Status.FAILED, FAULT)
                state.clear()
                continue
            state.advance(batch.entry, run.tokens_of(state))
            for index in rows:
                brought[index] = answers[index]

    def _plan(self, entry: str) -> Plan:
        if entry not in self._plans:
            there = ", ".join(self._plans) or "none: it was closed"
            raise RequestError(f"no entry graph is named {entry!r}", hint=f"There are {there}")
        return self._plans[entry]

    def _admit(self, plan: Plan, batch: Batch, indices: range, tokens: list[int]) -> Outcome:
        """Whether a sequence's rows can be computed; makes room for them, and moves nothing."""
        rows = [batch.rows[index] for index in indices]
        state: Any = rows[0].state
        start, given = state.length(batch.entry), tokens[indices.start : indices.stop]
        reason = next(refusals(plan.graph, rows, given, start, self.vocabulary), None)
        if reason is None and not state.grow(start + len(rows)):
            reason = f"no room for {len(rows)} rows after {start}"
        return Outcome(Status.COMPLETED) if reason is None else Outcome(Status.DECLINED, reason)

    def _owns(self, state: State) -> bool:
        return isinstance(state, TorchState) and state.owner is self and state.alive


def _slot_bytes(slot: Slot, rows: int) -> int:
    """Memory of a slot; every row of a ring is kept, so that rewinding is exact."""
    if isinstance(slot, Ring):
        return slot.width * 4 * rows
    return slot.bytes_per_row() * rows + slot.constant_bytes()


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Let torch use so many host threads, 0 for what it chose itself."""
    before = torch.get_num_threads()
    if count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if count:
            torch.set_num_threads(before)
