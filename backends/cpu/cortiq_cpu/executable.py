"""The executable: a batch admitted, computed chunk by chunk in native calls, and answered."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from cortiq.backend import (
    FAULT,
    Batch,
    BatchResult,
    CompileOptions,
    ExportedState,
    Finished,
    Outcome,
    Row,
    State,
    Status,
    check_exported,
)
from cortiq.backend.admission import drawn_token, groups_of, refusals, token_of, vocabulary_of
from cortiq.errors import RequestError
from cortiq.ir import Program, primitives_of
from cortiq.numerics.layouts import Weight
from cortiq_cpu.accepted import Accepted
from cortiq_cpu.native import Pool, library_hash
from cortiq_cpu.plan import Plan
from cortiq_cpu.profile import Profile
from cortiq_cpu.run import Run
from cortiq_cpu.shared import Pages
from cortiq_cpu.state import CpuState, StateLayout
from cortiq_cpu.weights import Weights

EARLY_POSITIONS = 1 << 13
"""Positions that rotary tables are made for when a sequence is opened; others when it grows."""


class CpuExecutable:
    """A program bound to its packed weights; see `cortiq.backend.Executable`.

    Parameters
    ----------
    options : `extra` may hold `isa`, the instruction set to use (`native.ISAS`), `profile` to be
        able to record the time of each op, and `poison`, which fills unused memory in tests.

    Attributes
    ----------
    profile : see `cortiq_cpu.profile.Profile`; None unless asked for.
    asynchronous : `forward` returns when the batch is computed.
    """

    asynchronous: ClassVar[bool] = False

    def __init__(
        self, program: Program, weights: Mapping[str, Weight], options: CompileOptions
    ) -> None:
        self.program, self.options = program, options
        threads = options.threads or _cores()
        self.pool = Pool(threads, options.extra.get("isa"))
        graphs = primitives_of(program).graphs
        poison = bool(options.extra.get("poison"))
        self.layout = StateLayout(program, graphs, options.page_rows, poison)
        with ThreadPoolExecutor(threads) as packers:
            packed = Weights(weights, packers)
            self._plans = {n: Plan(g, packed, self.layout, self.pool) for n, g in graphs.items()}
        for plan in self._plans.values():
            if plan.angles.supplied:  # Rows may be anywhere in the context from the first one on.
                plan.prepare(min(program.context, EARLY_POSITIONS))
        self.placement = dict.fromkeys(
            (node.name for graph in program.graphs.values() for node in graph.nodes), "cpu"
        )
        self.profile = Profile(self.pool) if options.extra.get("profile") else None
        self.pages = Pages(self.layout.new_page)
        self._states: list[CpuState] = []
        self._drawn: list[int | None] = []
        self._ending = weakref.finalize(self, self.pool.close)
        self._vocabulary = vocabulary_of(program)

    @property
    def provenance(self) -> Mapping[str, str]:
        """What a receipt states: the instruction set, and the hash of the native core."""
        return {"isa": self.pool.isa, "native": library_hash()}

    def open(self, limit: int) -> CpuState:
        """A new, empty sequence of at most `limit` positions."""
        self.prepare(min(limit, EARLY_POSITIONS))
        state = CpuState(self, limit)
        self._states.append(state)
        return state

    def import_(self, exported: ExportedState, limit: int) -> CpuState:
        """A sequence that continues an exported one."""
        check_exported(exported, self.program, limit)
        state = self.open(limit)
        try:
            state.load(exported)
        except BaseException:
            state.release()
            raise
        return state

    def prepare(self, positions: int) -> None:
        """Know whatever sequences of this many positions need."""
        for plan in self._plans.values():
            plan.prepare(positions)

    def forget(self, state: CpuState) -> None:
        """Drop a released sequence."""
        self._states = [known for known in self._states if known is not state]

    def state_bytes(self, rows: int) -> int:
        """Memory one sequence of this many rows takes."""
        return self.layout.nbytes(rows)

    def free_bytes(self) -> int:
        """Memory left for sequences: the limit's rest, or what the machine has free."""
        if self.options.memory_limit is None:
            return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        rings = sum(state.ring_bytes() for state in self._states)
        return self.options.memory_limit - self.pages.count * self.layout.page_bytes - rings

    def fits(self, nbytes: int) -> bool:
        """Whether sequences may take so many bytes more."""
        return nbytes <= 0 or nbytes <= self.free_bytes()

    def close(self) -> None:
        """Release threads, weights and sequences."""
        for state in list(self._states):
            state.release()
        self._plans = {}
        self.pool.close()

    def forward(self, batch: Batch) -> Finished:
        """Compute a batch; see `cortiq.backend.Executable`."""
        plan = self._plan(batch.entry)
        outcomes: dict[State, Outcome] = {}
        accepted = []
        for state, indices in groups_of(batch, self._owns).items():
            tokens = [token_of(batch.rows[index], self._drawn) for index in indices]
            reason = self._refusal(plan, batch, state, indices, tokens)
            if reason is None:
                outcomes[state] = Outcome(Status.COMPLETED)
                accepted.append(Accepted(state, indices, tokens))
            else:
                outcomes[state] = Outcome(Status.DECLINED, reason)
        brought: list[Mapping] = [{} for _ in batch.rows]
        if accepted:
            self._advance(plan, batch, accepted, outcomes, brought)
        self._drawn = [drawn_token(wants) for wants in brought]
        return Finished(BatchResult(outcomes, brought))

    def _plan(self, entry: str) -> Plan:
        if entry not in self._plans:
            there = ", ".join(self._plans) or "none: it was closed"
            raise RequestError(f"no entry graph is named {entry!r}", hint=f"There are {there}")
        return self._plans[entry]

    def _owns(self, state: State) -> bool:
        return isinstance(state, CpuState) and state.owner is self and state.alive

    def _refusal(
        self, plan: Plan, batch: Batch, state: CpuState, indices: range, tokens: list[int]
    ) -> str | None:
        """Why a sequence cannot be computed; None makes room for its rows, and moves nothing."""
        start = state.length(batch.entry)
        rows = batch.rows[indices.start : indices.stop]
        reason = next(refusals(plan.graph, rows, tokens, start, self._vocabulary), None)
        if reason is None:
            reason = self._out_of_context(plan, rows)
        if reason is None and not state.grow(start + len(rows), start):
            return f"no room for {len(rows)} rows after {start}"
        return reason

    def _out_of_context(self, plan: Plan, rows: Sequence[Row]) -> str | None:
        """Why there are no angles for positions that rows supply; None has them made."""
        reach, context = plan.reach(rows), self.program.context
        if reach > context:
            return f"a row supplies the position {reach - 1}, the context is of {context}"
        plan.prepare(reach)
        return None

    def _advance(
        self,
        plan: Plan,
        batch: Batch,
        accepted: list[Accepted],
        outcomes: dict[State, Outcome],
        brought: list[Mapping[Any, Any]],
    ) -> None:
        try:
            recording = self.profile is not None and self.profile.recording
            profile = self.profile if recording else None
            failed = Run(plan, batch, accepted, brought, profile).compute()
        except BaseException:
            for sequence in accepted:
                sequence.state.clear()
            raise
        for sequence in accepted:
            if sequence.state in failed:
                outcomes[sequence.state] = Outcome(Status.FAILED, FAULT)
                sequence.state.clear()
                for index in sequence.indices:
                    brought[index] = {}
            else:
                sequence.state.advance(batch.entry, sequence.tokens)


def _cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
