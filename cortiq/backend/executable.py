"""The part of an executable that no device changes: sequences, admission, outcomes."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from cortiq.backend.admission import (
    groups_of,
    missing_row,
    recalled_values,
    refusals,
    token_of,
    vocabulary_of,
)
from cortiq.backend.batch import FAULT, Batch, BatchResult, Finished, Outcome, Status, Ticket
from cortiq.backend.columns import Brought, answered, drawn_tokens
from cortiq.backend.known_wants import KnownWants
from cortiq.backend.last_keys import SeenKeys, chunks_of, last_keys
from cortiq.backend.overlays import VariedPlans
from cortiq.backend.protocol import BATCH_ROWS, CompileOptions, OptionalCapabilities
from cortiq.backend.row_runs import known_ids
from cortiq.backend.state import ExportedState, State, check_exported
from cortiq.backend.windows import PIECE_ROWS, Extent, windows_of
from cortiq.ir import Graph, Program
from cortiq.ir.encoded import most_rows

NO_ROOM_THERE = "another device has no room for its rows"


class EntryPlan(Protocol):
    """An entry graph, compiled by an executable."""

    @property
    def graph(self) -> Graph:
        """The graph, whose values and inputs rows may name."""


class HeldState(State, Protocol):
    """A sequence as `BaseExecutable` needs it, beyond `State`.

    Attributes
    ----------
    owner : the executable it belongs to.
    alive : whether it can be used; not any more once it was released.
    tokens : the ids fed.
    """

    owner: Any
    alive: bool
    tokens: list[int]

    def grow(self, rows: int) -> bool:
        """Make room for this many rows in every slot: in all of them, or in none."""

    def load(self, exported: ExportedState) -> None:
        """Load an exported sequence, which `check_exported` has let pass."""

    def clear(self) -> None:
        """Empty the sequence."""

    def advance(self, entry: str, tokens: list[int]) -> None:
        """Count rows that the slots now hold."""


S = TypeVar("S", bound=HeldState)
P = TypeVar("P", bound=EntryPlan)


@dataclass(frozen=True, eq=False)
class Accepted(Generic[S]):
    """A sequence to compute: its state, its rows in the batch, and their ids."""

    state: S
    indices: range
    tokens: list[int]

    def cut(self, start: int, stop: int) -> Accepted[S]:
        """Return some of its rows."""
        return Accepted(self.state, self.indices[start:stop], self.tokens[start:stop])


class BaseExecutable(VariedPlans[P], OptionalCapabilities, ABC, Generic[S, P]):
    """Sequences are opened and dropped, batches admitted, computed and settled.

    A backend's executable says how a sequence is made (`new_state`), what memory is held
    (`held_bytes`, `state_bytes`, and `device_bytes` where it is not the host's), and how rows that
    were let in are computed (`compute`). Nothing obliges it to be built on this class.

    Attributes
    ----------
    trims : whether the backend's sequences give up rows behind `windows`; then `compute` gets at
        most `piece_rows` rows of a sequence at a time.
    plans : what was made of each entry graph, by name; none once it is closed.
    known_wants : wants that an entry graph answers, by its name. states : living sequences.
    drawn : ids that the rows of the last batch drew, for `Drawn` rows of the next.
    """

    trims: ClassVar[bool] = False
    piece_rows: ClassVar[int] = PIECE_ROWS
    asynchronous: ClassVar[bool] = False
    windows: Mapping[str, int] = MappingProxyType({})
    batch_rows: int = BATCH_ROWS
    profile: Any = None

    def __init__(self, program: Program, options: CompileOptions, plans: Mapping[str, P]) -> None:
        super().__init__()
        self.program, self.options, self.plans = program, options, plans
        self.vocabulary = vocabulary_of(program)
        self.written = {name: graph.written_slots() for name, graph in program.graphs.items()}
        self.recalled, self.last_keys = recalled_values(program), last_keys(program)
        self._seen, self._most_rows = SeenKeys(program), most_rows(program)
        self._views = windows_of(program)
        keeps = options.full_windows or not self.trims
        self.windows = {} if keeps else self._views
        self._piece = self.piece_rows if self.windows else sys.maxsize
        self.known_wants = {entry: KnownWants() for entry in program.graphs}
        self.states: list[S] = []
        self.drawn: Sequence[int | None] = []

    @abstractmethod
    def new_state(self, limit: int) -> S:
        """Return an empty sequence of at most `limit` positions."""

    @abstractmethod
    def held_bytes(self) -> int:
        """Memory that all living sequences hold."""

    @abstractmethod
    def state_bytes(self, rows: int) -> int:
        """Memory one sequence of this many rows takes."""

    @abstractmethod
    def compute(
        self, plan: P, batch: Batch, accepted: Sequence[Accepted[S]]
    ) -> Sequence[Sequence[Brought] | None]:
        """Compute the outputs of each accepted sequence's rows, None where a value left the domain.

        Nothing may be left under way when this raises; all these sequences are cleared then.
        """

    def extent(self, slot: str) -> Extent:
        """Return the extent of an empty slot of key and value rows."""
        return Extent(self._views.get(slot), slot in self.windows)

    def device_bytes(self) -> int:
        """Return the memory that the device has free."""
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def make_room(self, state: S, start: int, stop: int) -> bool:
        """Allocate memory for rows `start` to before `stop`; return whether there is enough."""
        return state.grow(stop)

    def refusal(self, plan: P, batch: Batch, sequence: Accepted[S]) -> str | None:
        """Return why a sequence's rows cannot be computed; if they can, make room for them."""
        start, indices = sequence.state.length(batch.entry), sequence.indices
        rows, context = batch.rows[indices.start : indices.stop], self._most_rows
        known = self.wants_of(plan, batch.entry)
        found = refusals(plan.graph, rows, sequence.tokens, start, self.vocabulary, context, known)
        reason = next(found, None)
        if reason is None and self.recalled[batch.entry]:
            reason = missing_row(self.recalled[batch.entry], rows, sequence.state.length)
        if reason is None:
            reason = self._seen.refusal(batch.entry, rows, start, sequence.state.length)
        if reason is None and not self.make_room(sequence.state, start, start + len(rows)):
            return f"no room for {len(rows)} rows after {start}"
        return reason

    def open(self, limit: int) -> S:
        """Open an empty sequence of at most `limit` positions."""
        state = self.new_state(limit)
        self.states.append(state)
        return state

    def import_(self, exported: ExportedState, limit: int) -> S:
        """Open a sequence that continues an exported one."""
        check_exported(exported, self.program, limit)
        state = self.open(limit)
        try:
            state.load(exported)
        except BaseException:
            state.release()
            raise
        return state

    def settle(self) -> None:
        """Wait for what is under way: nothing, where `forward` returns when all is computed."""
        return

    def settle_state(self, state: S) -> None:
        """Wait for what is under way of one sequence, before it is changed or read."""
        self.settle()

    def forget(self, state: S) -> None:
        """Drop a released sequence."""
        self.states = [known for known in self.states if known is not state]

    def free_bytes(self) -> int:
        """Return the memory left for sequences: the limit's rest, or what the device has free."""
        limit = self.options.memory_limit
        return self.device_bytes() if limit is None else limit - self.held_bytes()

    def close(self) -> None:
        """Release weights and sequences."""
        for state in list(self.states):
            state.release()
        self.plans, self.varied = {}, {}

    def forward(self, batch: Batch) -> Ticket:
        """Compute a batch: let in what has an answer, run it, settle each sequence's outcome."""
        plan = self.plan_of(batch)
        batch = self.prepared(plan, batch)
        outcomes: dict[State, Outcome] = {}
        asking: list[Accepted[S]] = []
        reasons: list[str | None] = []
        for state, indices in groups_of(batch, self.owns).items():
            rows = batch.rows[indices.start : indices.stop]
            tokens = known_ids(rows) or [token_of(row, self.drawn) for row in rows]
            asking.append(Accepted(state, indices, tokens))
            reasons.append(self.refusal(plan, batch, asking[-1]))
        refused = self.options.peers.any_of([reason is not None for reason in reasons])
        for sequence, reason, no in zip(asking, reasons, refused, strict=True):
            if no:
                outcomes[sequence.state] = Outcome(Status.DECLINED, reason or NO_ROOM_THERE)
        accepted = [sequence for sequence, no in zip(asking, refused, strict=True) if not no]
        found = self._settle(plan, batch, accepted, outcomes) if accepted else []
        brought = answered(len(batch.rows), found)
        self.drawn = drawn_tokens(brought)
        return Finished(BatchResult(outcomes, brought))

    def _settle(
        self,
        plan: P,
        batch: Batch,
        accepted: Sequence[Accepted[S]],
        outcomes: dict[State, Outcome],
    ) -> list[tuple[range, Sequence[Brought]]]:
        """Compute sequences piece by piece; return what rows of those that completed brought."""
        waiting, brought = list(accepted), []
        try:
            while waiting:
                pieces = [self._first_piece(batch, sequence) for sequence in waiting]
                computed = self.compute(plan, batch, pieces)
                failed = self.options.peers.any_of([answers is None for answers in computed])
                for piece, answers, no in zip(pieces, computed, failed, strict=True):
                    found = None if no else answers
                    outcomes[piece.state] = _settled(batch.entry, piece, found)
                    if found is not None:
                        brought.append((piece, found))
                waiting = [
                    sequence.cut(len(piece.tokens), len(sequence.tokens))
                    for sequence, piece in zip(waiting, pieces, strict=True)
                    if len(sequence.tokens) > len(piece.tokens)
                    and outcomes[sequence.state].status is Status.COMPLETED
                ]
        except BaseException:
            for sequence in accepted:
                sequence.state.clear()
            raise
        return [
            (piece.indices, found)
            for piece, found in brought
            if outcomes[piece.state].status is not Status.FAILED
        ]

    def _first_piece(self, batch: Batch, sequence: Accepted[S]) -> Accepted[S]:
        """Yield the rows that are computed next; those that see one another are together."""
        names, stop = self.last_keys[batch.entry], self._piece
        if names and len(sequence.tokens) > stop:
            rows = batch.rows[sequence.indices.start : sequence.indices.stop]
            stop = next(chunks_of(rows, names, stop))[1]
        return sequence.cut(0, stop)

    def owns(self, state: Any) -> bool:
        """Check whether a state is a living sequence of this executable."""
        return getattr(state, "owner", None) is self and state.alive


def _settled(entry: str, piece: Accepted[Any], answers: Sequence[Brought] | None) -> Outcome:
    """Settle a sequence's rows: they count now, or the sequence is empty."""
    if answers is None:
        piece.state.clear()
        return Outcome(Status.FAILED, FAULT)
    piece.state.advance(entry, piece.tokens)
    return Outcome(Status.COMPLETED)
