"""A program on the ranks of a stage, as one executable; see `cortiq.backend.Executable`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from cortiq.backend import (
    Backend,
    Batch,
    BatchResult,
    CompileOptions,
    Device,
    ExportedState,
    Finished,
    OptionalCapabilities,
    Support,
    Versions,
)
from cortiq.backend.row_runs import RowRuns
from cortiq.backend.state import check_exported
from cortiq.errors import BackendError, RequestError
from cortiq.ir import Graph, Node, Program, primitives_of
from cortiq.numerics.layouts import Weight
from cortiq.ranks.connections import RankLostError
from cortiq.ranks.cuts import splits_of
from cortiq.ranks.driver import Command, Driver
from cortiq.ranks.families import Key
from cortiq.ranks.local_program import LocalProgram, local_program
from cortiq.ranks.local_weights import LocalWeights
from cortiq.ranks.member import StagePlan
from cortiq.ranks.shared_state import share_of
from cortiq.ranks.shares import Split
from cortiq.ranks.stage_state import StageState


@dataclass
class StageBackend:
    """A backend whose programs the ranks of a stage compute together.

    Attributes
    ----------
    inner : the backend of each of them. members : the ranks, in the order of their shares.
    source : how each rank opens the weights itself; None: rank 0 sends them.
    by_expert : whether experts are divided, rather than each one's columns.
    note : what there is to say of their exchange, once a program was compiled.
    """

    driver: Driver
    inner: Backend
    members: tuple[int, ...]
    source: Any = None
    by_expert: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        self.name, self.priority = self.inner.name, self.inner.priority
        self.versions: Versions = self.inner.versions

    def devices(self) -> Sequence[Device]:
        """Return the devices of a rank."""
        return self.inner.devices()

    def supports(self, node: Node, graph: Graph, program: Program) -> Support:
        """Say whether the ranks execute a node."""
        return self.inner.supports(node, graph, program)

    def compile(
        self, program: Program, weights: Mapping[str, Weight], options: CompileOptions
    ) -> StageExecutable:
        """Compile each rank's share on that rank."""
        made = ("group", next(self.driver.numbers), self.members, self.name, options.device)
        self.note = self.driver.ask(self.members, made)[0]
        options = replace(options, kept=None)
        plan = StagePlan(program, self.members, self.name, options, self.source, self.by_expert)
        if self.source is None:
            self.send(plan, weights)
        number = next(self.driver.numbers)
        try:
            facts = self.driver.ask(self.members, ("compile", number, plan))
        except BaseException:
            if not self.driver.world.why(self.members):
                self.driver.ask(self.members, ("close", number))
            raise
        return StageExecutable(self, plan, number, facts[0])

    def send(
        self, plan: StagePlan, weights: Mapping[str, Weight], but: Collection[str] = ()
    ) -> None:
        """Send each rank its parts of the weights, but for some."""
        for place, rank in enumerate(self.members):
            local = LocalProgram(plan.program, {}, {})
            if len(self.members) > 1:
                local = local_program(plan.program, place, len(self.members), plan.by_expert)
            names = dict.fromkeys((*local.program.weights, *local.tables))
            names = {n: None for n in names if local.whole_name(n) not in but}
            for name, weight in LocalWeights(weights, tuple(names), local.cuts).items():
                sent = weight.layout.name, weight.shape, dict(weight.parts)
                self.driver.ask((rank,), ("weight", name, sent))


class StageExecutable(OptionalCapabilities):
    """A program that the ranks of a stage hold in shares.

    Attributes
    ----------
    checks_weights : every rank checks its own weights.
    """

    checks_weights = True

    def __init__(
        self, backend: StageBackend, plan: StagePlan, number: int, facts: tuple[Any, ...]
    ) -> None:
        self.program, self.number, self._plan = plan.program, number, plan
        program = plan.program
        self._backend, self.driver, self.members = backend, backend.driver, backend.members
        self._windows, self._batch_rows, self._provenance, self._takes_overlays = facts
        nodes = [node for graph in program.graphs.values() for node in graph.nodes]
        self.placement: Mapping[str, str] = {node.name: backend.name for node in nodes}
        size = len(self.members)
        self.splits: Mapping[Key, Split] = (
            splits_of(primitives_of(program), size, backend.by_expert) if size > 1 else {}
        )
        self._open = True

    @property
    def lost(self) -> str:
        """Why one of its ranks cannot compute any more; empty if all can."""
        return self.driver.world.why(self.members)

    @property
    def windows(self) -> Mapping[str, int]:
        """Windows of the slots whose rows are given up behind them."""
        return self._windows

    @property
    def batch_rows(self) -> int:
        """Rows of a batch that suit the ranks."""
        return self._batch_rows

    @property
    def provenance(self) -> Mapping[str, str]:
        """Facts of the first rank, for receipts."""
        return self._provenance

    @property
    def takes_overlays(self) -> bool:
        """Whether the ranks can `vary`."""
        return self._takes_overlays

    def vary(self, program: Program | None, weights: Mapping[str, Weight]) -> None:
        """Take a program with overlays in place of the one before; None has none any more."""
        plan = None
        if program is not None:
            plan = replace(self._plan, program=program)
            known = () if plan.source is None else self.program.weights
            self._backend.send(plan, weights, known)
        self.ask(("vary", self.number, plan))

    def ask(self, command: Any) -> list[Any]:
        """Have all ranks of the stage execute a command."""
        self.driver.drop()
        return self.driver.ask(self.members, command)

    def open(self, limit: int) -> StageState:
        """Open a new, empty sequence."""
        number = next(self.driver.numbers)
        self.ask(("open", self.number, number, limit))
        return StageState(self, number, limit, dict.fromkeys(self.program.graphs, 0))

    def import_(self, exported: ExportedState, limit: int) -> StageState:
        """Open a sequence that continues an exported one; every rank takes its heads."""
        check_exported(exported, self.program, limit)
        number = next(self.driver.numbers)

        def command(place: int) -> Command:
            share = share_of(exported, self.splits, place)
            return "import", self.number, number, share, limit

        return StageState(self, number, limit, self.ask(command)[0])

    def state_bytes(self, rows: int) -> int:
        """Return the memory that a sequence of this many rows takes on all ranks together."""
        return sum(self.ask(("state_bytes", self.number, rows)))

    def free_bytes(self) -> int:
        """Return the memory left for sequences: what fits before the first rank is full."""
        rows = self.program.context
        needs = self.ask(("state_bytes", self.number, rows))
        free = self.ask(("free_bytes", self.number))
        allowed = [f * sum(needs) // need for need, f in zip(needs, free, strict=True) if need]
        return min(allowed, default=min(free))

    def close(self) -> None:
        """Release weights and sequences on every rank."""
        if self._open:
            self.tell_living(("close", self.number))
        self._open = False

    def tell_living(self, command: Command) -> None:
        """Have ranks execute a command that gives memory back; lost ones hold none."""
        living = [rank for rank in self.members if rank in self.driver.world.living]
        with suppress(RankLostError):
            self.driver.ask(living, command)

    def forward(self, batch: Batch) -> Finished:
        """Compute a batch on all ranks of the stage."""
        (result,) = forward_together([(self, batch)])
        if result is None:
            self.driver.world.check(self.members)
        assert result is not None
        return Finished(result)

    def states_of(self, batch: Batch) -> dict[int, StageState]:
        """Return a batch's sequences by number.

        Raises
        ------
        BackendError : one is of another executable, or was released.
        RequestError : there is no such entry graph.
        """
        states: dict[int, StageState] = {}
        for row in batch.rows.runs if isinstance(batch.rows, RowRuns) else batch.rows:
            state: Any = row.state
            if not isinstance(state, StageState) or state.owner is not self or not state.alive:
                raise BackendError("a row belongs to no living sequence of this executable")
            states[state.number] = state
        if batch.entry not in self.program.graphs:
            there = ", ".join(self.program.graphs)
            raise RequestError(
                f"no entry graph is named {batch.entry!r}", hint=f"There are {there}"
            )
        return states


def forward_together(
    parts: Sequence[tuple[StageExecutable, Batch]],
) -> list[BatchResult | None]:
    """Compute a batch on each of some executables without common ranks, all at the same time.

    None stands for the result of one that is lost, or that has lost a rank in this batch.

    Raises
    ------
    CortiqError : what the first that refused its batch said, once the others are done.
    """
    if parts:
        parts[0][0].driver.drop()
    living = [part for part in parts if not part[0].lost]
    found = iter(_forward_living(living))
    return [next(found) if part in living else None for part in parts]


def _forward_living(
    parts: Sequence[tuple[StageExecutable, Batch]],
) -> list[BatchResult | None]:
    known = [executable.states_of(batch) for executable, batch in parts]
    ranks = [rank for executable, _ in parts for rank in executable.members]
    commands: list[Command] = [
        ("forward", executable.number, *_sent(batch))
        for executable, batch in parts
        for _ in executable.members
    ]
    if not parts:
        return []
    answers, refusal = parts[0][0].driver.answers(ranks, lambda place: commands[place])
    results: list[BatchResult | None] = []
    for (executable, _), states in zip(parts, known, strict=True):
        if executable.lost:
            results.append(None)
            continue
        if executable.members[0] not in answers:
            assert refusal is not None
            raise refusal
        outcomes, lengths, rows = answers[executable.members[0]]
        for number, found in lengths.items():
            states[number].lengths = found
        by_state: dict[Any, Any] = {states[number]: outcome for number, outcome in outcomes.items()}
        results.append(BatchResult(by_state, [dict(row) for row in rows]))
    if refusal is not None and not isinstance(refusal, RankLostError):
        raise refusal
    return results


def _sent(batch: Batch) -> tuple[str, Any, Any]:
    """Return a batch as ranks take it, with numbers for sequences."""
    if isinstance(batch.rows, RowRuns):
        runs: list[Any] = [
            (run.state.number, *run[1:-1], dict(run.inputs))  # type: ignore[attr-defined]
            for run in batch.rows.runs
        ]
        return batch.entry, runs, []
    rows: list[Any] = [
        (row.state.number, row.position, row.token, row.wants, dict(row.inputs))  # type: ignore[attr-defined]
        for row in batch.rows
    ]
    return batch.entry, None, rows
