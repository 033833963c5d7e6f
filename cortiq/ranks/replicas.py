"""Whole copies of a model on several groups of ranks, as one executable: data parallelism.

Sequences are divided among the replicas, and a batch's parts are computed at the same time. A
sequence can move between batches, as an exported state, so that one engine, with one scheduler and
one prefix cache, serves all replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cortiq.backend import (
    Batch,
    BatchResult,
    Drawn,
    ExportedState,
    Finished,
    OptionalCapabilities,
    Outcome,
    Row,
    Status,
)
from cortiq.backend.admission import drawn_token, token_of
from cortiq.backend.row_runs import RowRun, RowRuns
from cortiq.errors import BackendError
from cortiq.ir import Program
from cortiq.numerics.layouts import Weight
from cortiq.ranks.connections import RankLostError
from cortiq.ranks.replica_state import ReplicaState
from cortiq.ranks.stage import StageExecutable, forward_together
from cortiq.ranks.stage_state import StageState

T = TypeVar("T")
PROMPT_ROWS = 16
"""Rows of a sequence in a batch from which on they are a prompt's: no draft is as long."""
UNEVEN = 2
"""A fork moves before its first batch if its replica has so many more sequences than another."""


class ReplicasExecutable(OptionalCapabilities):
    """A program that each of several groups of ranks has whole; see `cortiq.backend.Executable`.

    A replica that has lost a rank computes nothing any more: its sequences are `Status.LOST`, new
    ones go to the others. Where none is left, every call raises `RankLostError`.

    Parameters
    ----------
    replicas : the program on each group of ranks.
    prefill : how many replicas, the first ones, compute prompts only; their sequences move to the
        others for the answer. 0: all of them compute both.

    Attributes
    ----------
    checks_weights : every rank checks its own weights.
    """

    checks_weights = True

    def __init__(self, replicas: Sequence[StageExecutable], prefill: int = 0) -> None:
        self.replicas = tuple(replicas)
        self.program = replicas[0].program
        self.placement: Mapping[str, str] = replicas[0].placement
        count = len(replicas)
        self._of_prompts = range(prefill) if prefill else range(count)
        self._of_answers = range(prefill, count)
        self._last = Counter[int]()
        self._since: set[ReplicaState] = set()
        self._drawn: Sequence[int | None] = ()

    @property
    def windows(self) -> Mapping[str, int]:
        """Windows of the slots whose rows are given up behind them."""
        return self.replicas[0].windows

    @property
    def batch_rows(self) -> int:
        """Rows of a batch that suit all replicas together."""
        return sum(one.batch_rows for one in self.replicas)

    @property
    def provenance(self) -> Mapping[str, str]:
        """Facts of the first replica, for receipts."""
        return self.replicas[0].provenance

    @property
    def takes_overlays(self) -> bool:
        """Whether every replica can `vary`."""
        return all(one.takes_overlays for one in self.replicas)

    @property
    def living(self) -> list[int]:
        """Replicas that have lost no rank."""
        return [place for place, one in enumerate(self.replicas) if not one.lost]

    def living_of(self, places: Sequence[int]) -> Sequence[int]:
        """Return those of some replicas that live, or all that do.

        Raises
        ------
        RankLostError : none does.
        """
        living = self.living
        if not living:
            raise RankLostError(self.replicas[0].lost, hint="Load the model again.")
        return [place for place in places if place in living] or living

    def asked(self, places: Sequence[int], ask: Callable[[StageExecutable], T]) -> tuple[int, T]:
        """Return the least busy replica of some, and what it answers; another one if it is lost.

        Raises
        ------
        RankLostError : all are.
        """
        while True:
            place = self.least_busy(self.living_of(places))
            try:
                return place, ask(self.replicas[place])
            except RankLostError:
                if not self.replicas[place].lost:
                    raise

    def answers(self, ask: Callable[[StageExecutable], T]) -> list[T]:
        """Return what every living replica answers.

        Raises
        ------
        RankLostError : there is none.
        """
        found = []
        for place in self.living:
            with suppress(RankLostError):
                found.append(ask(self.replicas[place]))
        self.living_of(())
        return found

    def vary(self, program: Program | None, weights: Mapping[str, Weight]) -> None:
        """Have every replica take a program with overlays in place of the one before."""
        self.answers(lambda one: one.vary(program, weights))

    def open(self, limit: int) -> ReplicaState:
        """Open a new, empty sequence on the least busy replica."""
        place, inner = self.asked(self._of_prompts, lambda one: one.open(limit))
        return self.noted(ReplicaState(self, place, inner))

    def import_(self, exported: ExportedState, limit: int) -> ReplicaState:
        """Open a sequence that continues an exported one, on the least busy replica."""
        place, inner = self.asked(self._of_answers, lambda one: one.import_(exported, limit))
        return self.noted(ReplicaState(self, place, inner))

    def noted(self, state: ReplicaState) -> ReplicaState:
        """Count a sequence that was opened, until the next batch or its end."""
        self._since.add(state)
        return state

    def least_busy(self, places: Sequence[int], busy: Mapping[int, int] | None = None) -> int:
        """Return the replica with the fewest sequences in the last batch and opened since."""
        if busy is None:
            busy = self._last + Counter(state.place for state in self._since)
        return min(places, key=lambda place: busy.get(place, 0))

    def state_bytes(self, rows: int) -> int:
        """Return the memory that a sequence of this many rows takes."""
        return self.answers(lambda one: one.state_bytes(rows))[0]

    def free_bytes(self) -> int:
        """Return the memory left for sequences on all replicas."""
        return sum(self.answers(lambda one: one.free_bytes()))

    def close(self) -> None:
        """Release weights and sequences on every rank."""
        for one in self.replicas:
            one.close()

    def forward(self, batch: Batch) -> Finished:
        """Compute a batch: each part on its sequences' replica, all at the same time."""
        counts = self._counts(batch)
        self._distribute(counts)
        parts = self._divided(batch.rows)
        todo = [(self.replicas[place], p.batch(batch.entry)) for place, p in parts.items()]
        rows: list[Mapping[Any, Any]] = [{}] * len(batch.rows)
        outcomes: dict[Any, Any] = {}
        outer: dict[Any, ReplicaState] = {state.inner: state for state in counts}
        for part, result in zip(parts.values(), forward_together(todo), strict=True):
            if result is None:
                continue
            outcomes |= {outer[inner]: outcome for inner, outcome in result.outcomes.items()}
            for index, row in zip(part.indices, result.rows, strict=True):
                rows[index] = row
        self.living_of(())
        for state in counts:
            if state not in outcomes:
                outcomes[state] = Outcome(Status.LOST, state.lost)
                state.inner.clear()
        self._drawn = [drawn_token(row) for row in rows]
        return Finished(BatchResult(outcomes, rows))

    def _counts(self, batch: Batch) -> Counter[ReplicaState]:
        """Return the number of rows of each sequence."""
        counts: Counter[ReplicaState] = Counter()
        runs = batch.rows.runs if isinstance(batch.rows, RowRuns) else batch.rows
        for run in runs:
            state: Any = run.state
            if not isinstance(state, ReplicaState) or state.owner is not self or not state.alive:
                raise BackendError("a row belongs to no living sequence of this executable")
            counts[state] += len(run.tokens) if isinstance(run, RowRun) else 1
        return counts

    def _distribute(self, counts: Mapping[ReplicaState, int]) -> None:
        """Move sequences to where their rows of this batch are computed; those whose rows are lost
        stay.
        """
        busy = Counter(state.place for state in counts)
        for state, rows in counts.items():
            if state.lost and state.has_rows:
                continue
            wanted = self._of_prompts if rows >= PROMPT_ROWS else self._of_answers
            places = self.living_of(wanted)
            best = self.least_busy(places, busy)
            uneven = not state.computed and busy[state.place] - busy[best] >= UNEVEN
            if state.place not in places or uneven:
                before = state.place
                state.move(best)
                busy[before] -= 1
                busy[state.place] += 1
            state.computed = True
        self._last = busy
        self._since.clear()

    def _divided(self, rows: Sequence[Row]) -> dict[int, _ReplicaRows]:
        """Return each replica's part of a batch, with its own sequences."""
        parts: dict[int, _ReplicaRows] = {}
        runs: Sequence[Any] = rows.runs if isinstance(rows, RowRuns) else rows
        index = 0
        for run in runs:
            state: Any = run.state
            part = parts.setdefault(state.place, _ReplicaRows(isinstance(rows, RowRuns)))
            length = len(run.tokens) if isinstance(run, RowRun) else 1
            part.indices += range(index, index + length)
            part.rows.append(_of_replica(run, state.inner, self._drawn))
            index += length
        return parts

    def forget(self, state: ReplicaState) -> None:
        """Count a sequence no more, which was released."""
        self._since.discard(state)


def _of_replica(run: Any, inner: StageState, drawn: Sequence[int | None]) -> Any:
    """Return a row, or a run of rows, as its replica has them: tokens drawn before are known."""
    if not isinstance(run, RowRun):
        token = token_of(run, drawn) if isinstance(run.token, Drawn) else run.token
        return Row(inner, run.position, token, run.wants, run.inputs)
    tokens = run.tokens
    if any(isinstance(token, Drawn) for token in tokens):
        tokens = [token_of(run.row(place), drawn) for place in range(len(tokens))]
    return run._replace(state=inner, tokens=tokens)


@dataclass
class _ReplicaRows:
    """Rows of a batch for one replica.

    Attributes
    ----------
    as_runs : whether they are runs of rows. indices : where each row is in the whole batch.
    """

    as_runs: bool
    rows: list[Any] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)

    def batch(self, entry: str) -> Batch:
        """Return the rows as a batch."""
        return Batch(RowRuns(self.rows) if self.as_runs else self.rows, entry)
