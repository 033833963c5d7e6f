"""The reference's executable: a batch walked node by node."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from threadpoolctl import ThreadpoolController

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
    check_exported,
)
from cortiq.backend.admission import drawn_token, groups_of, refusals, token_of, vocabulary_of
from cortiq.backend.kernel import NO_KERNELS, GivenKernels
from cortiq.errors import RequestError
from cortiq.ir import Program, Recurrent, Ring, primitives_of
from cortiq.numerics.layouts import Weight
from cortiq_reference.kernels import KERNELS, Kernels
from cortiq_reference.placement import REFERENCE, placement_of
from cortiq_reference.plan import Plan
from cortiq_reference.recurrent_store import COPIES
from cortiq_reference.run import Run
from cortiq_reference.state import ReferenceState
from cortiq_reference.wants import WANTS, Answers

ONE_THREAD = 1


class ReferenceExecutable:
    """A program bound to its weights; see `cortiq.backend.Executable`.

    Attributes
    ----------
    asynchronous : `forward` returns when the batch is computed.
    name : who computes the nodes whose kernels are not the reference's; `placement` says so.
    kernels, answers, state_type : what computes primitives, answers wants, and keeps sequences. A
        backend built on the reference replaces some of them in a subclass, and sets `name`.
    """

    asynchronous: ClassVar[bool] = False
    name: ClassVar[str] = REFERENCE
    kernels: ClassVar[Kernels] = KERNELS
    answers: ClassVar[Answers] = WANTS
    state_type: ClassVar[type[ReferenceState]] = ReferenceState

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Weight],
        options: CompileOptions,
        given: GivenKernels = NO_KERNELS,
    ) -> None:
        self.program, self.options = program, options
        kernels = {**self.kernels, **{op: kernel.function for op, kernel in given.items()}}
        self.vocabulary = vocabulary_of(program)
        threads = options.threads or os.cpu_count() or 1
        # Tiles are spread over our own threads: a BLAS that starts more of its own only waits.
        self._blas = ThreadpoolController().select(user_api="blas")
        self._pool = ThreadPoolExecutor(threads) if threads > ONE_THREAD else None
        graphs = primitives_of(program).graphs
        self._plans = {name: Plan(g, weights, self._pool, kernels) for name, g in graphs.items()}
        self.written = {name: graph.written_slots() for name, graph in graphs.items()}
        self.placement = placement_of(program, self.kernels, self.name, given)
        self._states: list[ReferenceState] = []
        self._drawn: list[int | None] = []

    def open(self, limit: int) -> ReferenceState:
        """A new, empty sequence of at most `limit` positions."""
        state = self.state_type(self, limit)
        self._states.append(state)
        return state

    def import_(self, exported: ExportedState, limit: int) -> ReferenceState:
        """A sequence that continues an exported one."""
        check_exported(exported, self.program, limit)
        state = self.open(limit)
        try:
            state.load(exported)
        except BaseException:
            state.release()
            raise
        return state

    def forget(self, state: ReferenceState) -> None:
        """Drop a released sequence."""
        self._states = [s for s in self._states if s is not state]

    def slot_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """Rows of each slot when the entry graphs have seen these."""
        return {slot: lengths[entry] for entry, slots in self.written.items() for slot in slots}

    def state_bytes(self, rows: int) -> int:
        """Memory one sequence of this many rows takes."""
        page = self.options.page_rows
        whole = -(-rows // page) * page
        return sum(_slot_bytes(slot, whole) for slot in self.program.slots.values())

    def free_bytes(self) -> int:
        """Memory left for sequences: the limit's rest, or what the machine has free."""
        if self.options.memory_limit is None:
            return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return self.options.memory_limit - sum(state.nbytes() for state in self._states)

    def fits(self, state: ReferenceState, rows: int) -> bool:
        """Whether a sequence may grow to this many rows."""
        return self.state_bytes(rows) - state.nbytes() <= self.free_bytes()

    def close(self) -> None:
        """Release threads and sequences."""
        if self._pool is not None:
            self._pool.shutdown()
        for state in list(self._states):
            state.release()
        self._plans = {}

    def forward(self, batch: Batch) -> Finished:
        """Compute a batch; see `cortiq.backend.Executable`."""
        plan = self._plan(batch.entry)
        groups = groups_of(batch, self._owns)
        outcomes: dict[State, Outcome] = {}
        outcomes |= {state: self._admit(plan, batch, rows) for state, rows in groups.items()}
        accepted = [
            (state, rows)
            for state, rows in groups.items()
            if outcomes[state].status is Status.COMPLETED
        ]
        brought: list[Mapping] = [{} for _ in batch.rows]
        if accepted:
            tokens = [token_of(row, self._drawn) for row in batch.rows]
            run = Run(plan, batch, accepted, tokens, self.answers)
            wants = self._compute(run, accepted)
            for state, rows in accepted:
                if run.failed(state):
                    outcomes[state] = Outcome(Status.FAILED, FAULT)
                    state.clear()
                else:
                    state.advance(batch.entry, run.tokens_of(state))
                    for index in rows:
                        brought[index] = wants[index]
        self._drawn = [drawn_token(wants) for wants in brought]
        return Finished(BatchResult(outcomes, brought))

    def _compute(self, run: Run, accepted: list[tuple[ReferenceState, range]]) -> dict:
        """Compute the rows, and answer the wants of each by its index."""
        try:
            with self._blas.limit(limits=1):
                run.compute()
            return {index: run.wants_of(index) for _, rows in accepted for index in rows}
        except BaseException:
            for state, _ in accepted:
                state.clear()
            raise

    def _plan(self, entry: str) -> Plan:
        if entry not in self._plans:
            there = ", ".join(self._plans) or "none: it was closed"
            raise RequestError(f"no entry graph is named {entry!r}", hint=f"There are {there}")
        return self._plans[entry]

    def _admit(self, plan: Plan, batch: Batch, indices: range) -> Outcome:
        """Whether a sequence's rows can be computed; makes room for them, and moves nothing."""
        rows = [batch.rows[i] for i in indices]
        state: Any = rows[0].state
        start = state.length(batch.entry)
        tokens = [token_of(row, self._drawn) for row in rows]
        reason = next(refusals(plan.graph, rows, tokens, start, self.vocabulary), None)
        if reason is None and not state.grow(start + len(rows)):
            reason = f"no room for {len(rows)} rows after {start}"
        return Outcome(Status.COMPLETED) if reason is None else Outcome(Status.DECLINED, reason)

    def _owns(self, state: State) -> bool:
        return isinstance(state, ReferenceState) and state.owner is self and state.alive


def _slot_bytes(slot: Any, rows: int) -> int:
    """Memory of a slot's store; a ring keeps all its rows."""
    if isinstance(slot, Recurrent):
        return COPIES * slot.constant_bytes()
    return rows * (slot.width * 4 if isinstance(slot, Ring) else slot.bytes_per_row())
