"""Batches of any kind under way: prompts, verify rounds, and decoding rows beside them.

Their launches are queued one by one, and nothing waits: what rows ask for is copied to the host
behind them, and read when somebody wants the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from cortiq.backend import FAULT, Batch, BatchResult, Draw, Outcome, State, Status
from cortiq.backend.admission import drawn_token, groups_of
from cortiq.backend.batch import COMPLETED
from cortiq.backend.columns import Brought, answered
from cortiq.backend.executable import NO_ROOM_THERE, Accepted
from cortiq.backend.requests import penalises
from cortiq.backend.row_runs import stretches_of
from cortiq_triton.decode import DRAWN_ROWS, StepDecoder
from cortiq_triton.fetched import Fetched, FetchedColumns
from cortiq_triton.mixed import MixedFetched
from cortiq_triton.plan import Plan
from cortiq_triton.rowset import RowBuffer
from cortiq_triton.run import Run
from cortiq_triton.shapes import table_width
from cortiq_triton.state import TritonState
from cortiq_triton.token_log import UNKNOWN


@dataclass(eq=False)
class Flight:
    """A batch under way; `result` waits for it and for those before it.

    Attributes
    ----------
    sources : of each accepted row, the row of the batch before that draws its id, or −1.
    fetched : what its rows ask for, on its way to the host; None if no row was accepted.
    declined : outcomes of the sequences that were not.
    lost : sequences that a batch before this one failed.
    """

    decoder: StepDecoder
    batch: Batch
    accepted: Sequence[Accepted[TritonState]]
    sources: Sequence[np.ndarray]
    fetched: Fetched | FetchedColumns | MixedFetched | None
    declined: Mapping[State, Outcome]
    lost: set[TritonState] = field(default_factory=set)
    outcome: BatchResult | None = None
    drawn: Sequence[int | None] = ()

    def __post_init__(self) -> None:
        self._drawing = self.fetched.drawing if self.fetched is not None else frozenset()

    @property
    def states(self) -> Sequence[TritonState]:
        """Sequences with rows in it."""
        return [sequence.state for sequence in self.accepted]

    def draws(self, row: Any) -> bool:
        """Whether a row of the batch draws an id."""
        return type(row) is int and row in self._drawing

    def result(self) -> BatchResult:
        """Return the outcomes and answers of the batch."""
        self.decoder.owner.settle(self)
        assert self.outcome is not None
        return self.outcome

    def finish(self, before: Sequence[int | None]) -> None:
        """Read the answers; `before` is what the batch before drew."""
        outcomes: dict[State, Outcome] = dict(self.declined)
        brought: list[tuple[range, Sequence[Brought]]] = []
        found = self.fetched.read() if self.fetched is not None else []
        for sequence, sources, rows in zip(self.accepted, self.sources, found, strict=True):
            state = sequence.state
            if state in self.lost or rows is None:
                outcomes[state] = Outcome(Status.FAILED, FAULT)
                if state not in self.lost:
                    state.clear()
                continue
            self._name(sequence, sources, before)
            outcomes[state] = COMPLETED
            brought.append((sequence.indices, rows))
        answers = answered(len(self.batch.rows), brought)
        tokens: list[int | None] = [None] * len(answers)
        for row in self._drawing:
            tokens[row] = drawn_token(answers[row])
        self.drawn = tokens
        self.outcome = BatchResult(outcomes, answers)

    def _name(
        self,
        sequence: Accepted[TritonState],
        sources: np.ndarray,
        before: Sequence[int | None],
    ) -> None:
        """Let the sequence know the ids that the batch before drew for it."""
        if self.batch.entry != "trunk" or sources.max() < 0:
            return
        for index, source in zip(sequence.indices, sources.tolist(), strict=True):
            if source >= 0:
                position = self.batch.rows[index].position
                sequence.state.tokens[position] = before[source]  # type: ignore[assignment]


def submit(decoder: StepDecoder, plan: Plan, batch: Batch) -> Flight | None:
    """Launch a batch; None if it has too many rows to run ahead.

    Raises
    ------
    BackendError : a row's sequence is not the executable's, or its rows are no neighbours.
    """
    owner = decoder.owner
    if len(batch.rows) >= DRAWN_ROWS:  # the last place is nobody's
        return None
    if decoder.under_way and _needs_history(batch):
        owner.settle()
    asking: list[tuple[Accepted[TritonState], np.ndarray]] = []
    reasons: list[str | None] = []
    for state, indices in groups_of(batch, owner.owns).items():
        tokens, drawn = decoder.tokens(batch, indices)
        asking.append((Accepted(state, indices, tokens), drawn))
        reasons.append(owner.refusal(plan, batch, asking[-1][0]))
    refused = owner.shared.peers.any_of([reason is not None for reason in reasons])
    accepted: list[Accepted[TritonState]] = []
    sources: list[np.ndarray] = []
    declined: dict[State, Outcome] = {}
    for (sequence, drawn), reason, no in zip(asking, reasons, refused, strict=True):
        if no:
            declined[sequence.state] = Outcome(Status.DECLINED, reason or NO_ROOM_THERE)
            continue
        accepted.append(sequence)
        sources.append(drawn)
    fetched = _launched(decoder, plan, batch, accepted, sources) if accepted else None
    for sequence, drawn in zip(accepted, sources, strict=True):
        ids = sequence.tokens
        if drawn.max() >= 0:
            pairs = zip(ids, drawn.tolist(), strict=True)
            ids = [UNKNOWN if source >= 0 else token for token, source in pairs]
        sequence.state.advance(batch.entry, ids)
    flight = Flight(decoder, batch, accepted, sources, fetched, declined)
    decoder.under_way.append(flight)
    return flight


def _needs_history(batch: Batch) -> bool:
    """Whether a draw depends on ids so far, which only the host knows."""
    return any(
        isinstance(want, Draw) and want.history is None and penalises(want)
        for wants in {id(wants): wants for _, _, wants in stretches_of(batch.rows)}.values()
        for want in wants
    )


def _launched(
    decoder: StepDecoder,
    plan: Plan,
    batch: Batch,
    accepted: Sequence[Accepted[TritonState]],
    sources: Sequence[np.ndarray],
) -> Fetched | FetchedColumns | MixedFetched:
    """Queue the launches; where that raises, nothing is under way and the sequences are empty."""
    owner = decoder.owner
    try:
        captured = decoder.mixed.launch(plan, batch, accepted, sources)
        if captured is not None:
            return captured
        run = Run(plan, batch, accepted, owner.shared, decoder.drawn)
        flat = np.concatenate(sources)
        pages = table_width(sequence.state for sequence in accepted)
        again = decoder.passes.launch(run, batch, accepted, flat, pages)
        if again is not None:
            return again
        run.place(RowBuffer(owner.device, turns=1), flat, pages, fixed=False)
        places = [index for sequence in accepted for index in sequence.indices]
        return run.fetch(places)
    except BaseException:
        owner.settle()
        if owner.device != "cpu":
            torch.cuda.synchronize(owner.device)
        for sequence in accepted:
            sequence.state.clear()
        raise
