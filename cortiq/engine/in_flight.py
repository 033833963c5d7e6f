"""One batch: which rows each sequence has in it, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cortiq.backend import Drawn, Row, State, Ticket, Want
from cortiq.backend.windows import ROLLBACK_ROWS
from cortiq.engine.drafting import NOTHING, Draft
from cortiq.engine.row_budget import RowDemand, RowGrant, divide_rows, urgency
from cortiq.engine.sequence import Sequence

RowResult = Mapping[Want, Any]


@dataclass(eq=False)
class ScheduledRows:
    """Rows of one sequence in a batch.

    Attributes
    ----------
    start : position of the first.
    tokens : their ids, drafted ones last; or what the batch before draws.
    draws : how many rows at the end draw a token: none of a chunk inside a prompt, else one and one
        more for every drafted id.
    first : index of the first row in the batch.
    draft, asked, draft_seconds : what was drafted, how much was wanted, and how long it took.
    checkpoint : the state before a round that it may be unable to go back into.
    drawing_wants : what brings the token of each row that draws; empty for what the request wants.
    """

    sequence: Sequence
    state: State
    start: int
    tokens: list[int | Drawn]
    draws: int
    first: int = 0
    draft: Draft = NOTHING
    asked: int = 0
    draft_seconds: float = 0.0
    checkpoint: Any = None
    drawing_wants: list[Want] = field(default_factory=list)

    @property
    def stop(self) -> int:
        """Position after the last of its rows."""
        return self.start + len(self.tokens)

    @property
    def drafter(self) -> str:
        """Who drafted, or would have; empty where nobody does."""
        speculation = self.sequence.speculation
        return self.draft.drafter or (speculation.drafter.name if speculation else "")

    @property
    def drawing(self) -> range:
        """Indices of the rows that draw."""
        end = self.first + len(self.tokens)
        return range(end - self.draws, end)

    def wants(self) -> list[tuple[Want, ...]]:
        """What each row is to bring."""
        sequence, request = self.sequence, self.sequence.request
        more = sequence.drafting.wants if sequence.drafting else ()
        silent: list[tuple[Want, ...]] = [more] * (len(self.tokens) - self.draws)
        drawing = self.drawing_wants or [request.want] * self.draws
        return [*silent, *((want, *request.facts, *more) for want in drawing)]

    def rows(self) -> list[Row]:
        """The rows."""
        return [
            Row(self.state, self.start + i, token, wants, self._inputs(self.start + i))
            for i, (token, wants) in enumerate(zip(self.tokens, self.wants(), strict=True))
        ]

    def _inputs(self, position: int) -> dict[str, np.ndarray]:
        embeddings = self.sequence.request.embeddings
        if embeddings is None or position >= len(embeddings):
            return {}
        return {"embed": embeddings[position]}


@dataclass(eq=False)
class InFlightBatch:
    """A batch under way."""

    parts: list[ScheduledRows]
    started: float
    rows: list[Row] = field(default_factory=list)
    ticket: Ticket | None = None

    def __post_init__(self) -> None:
        for part in self.parts:
            part.first = len(self.rows)
            self.rows += part.rows()

    def part_of(self, sequence: Sequence) -> ScheduledRows | None:
        """The sequence's rows in it."""
        return next((part for part in self.parts if part.sequence is sequence), None)


def demand_of(sequence: Sequence, before: ScheduledRows | None) -> RowDemand | None:
    """What a sequence could use in the batch after the one under way, where it has rows `before`.

    None where it can use nothing: its last token is being drawn.
    """
    start = before.stop if before else sequence.fed
    rows = len(sequence.ids) - start
    decodes = sequence.ready if before is None else rows <= 1
    if before is not None and before.draws:
        if sequence.room <= 1:
            return None
        rows, decodes = 1, True
    most = sequence.request.chunk_rows
    if before is not None and any(mark.position == start for mark in sequence.request.marks):
        return None  # its state is copied first
    mark = sequence.next_mark(start)
    if mark is not None:
        most = min(most, mark - start)
        decodes = decodes and mark - start >= rows
    depth = 0
    # Not on top of a replay: a copy of the state from before both would have it done again.
    if sequence.drafting and sequence.policy and decodes and before is None and rows == 1:
        depth = sequence.policy.choose(sequence.generated, sequence.room)
        depth = max(0, min(depth, sequence.room - 1, ROLLBACK_ROWS))
    order = urgency(sequence.served, sequence.priority, sequence.number)
    return RowDemand(rows, most, decodes, depth, order)


def schedule_batch(
    sequences: Iterable[Sequence],
    budget: int,
    under_way: InFlightBatch | None,
    propose: Callable[[Mapping[Sequence, int]], Mapping[Sequence, tuple[Draft, float]]],
) -> list[ScheduledRows]:
    """The parts of the next batch.

    Parameters
    ----------
    under_way : a batch that is not read yet: its sequences go on from what it draws.
    propose : drafts of so many ids for some of them, and the seconds each took.
    """
    befores = {s: under_way.part_of(s) if under_way else None for s in sequences}
    found = {s: need for s, before in befores.items() if (need := demand_of(s, before))}
    divided = dict(zip(found, divide_rows(list(found.values()), budget), strict=True))
    drafts = propose({s: share.depth for s, share in divided.items() if share.rows and share.depth})
    parts = [
        _scheduled_rows(sequence, befores[sequence], share, *drafts.get(sequence, (NOTHING, 0.0)))
        for sequence, share in divided.items()
        if share.rows
    ]
    return [part for part in parts if part is not None]


def _scheduled_rows(
    sequence: Sequence,
    before: ScheduledRows | None,
    share: RowGrant,
    draft: Draft,
    seconds: float,
) -> ScheduledRows | None:
    """A sequence's rows; None where its masks raised, which ends it before the next step.

    Where a draft head's fault cleared it, its rows come first again.
    """
    assert sequence.state is not None
    start = before.stop if before else sequence.fed
    if before is not None and before.draws:
        row = before.drawing[-1]
        return ScheduledRows(sequence, sequence.state, start, [Drawn(row)], 1)
    tokens: list[int | Drawn] = list(sequence.ids[start : start + share.rows])
    if start + share.rows < len(sequence.ids):
        return ScheduledRows(sequence, sequence.state, start, tokens, 0)
    try:
        draft = _permitted(sequence, draft)
        return ScheduledRows(
            sequence, sequence.state, start, [*tokens, *draft.ids], 1 + len(draft.ids),
            draft=draft, asked=share.depth, draft_seconds=seconds,
            drawing_wants=_drawing_wants(sequence, draft),
        )  # fmt: skip
    except Exception as error:
        sequence.error = error
        sequence.cancel()
        return None


def _drawing_wants(sequence: Sequence, draft: Draft) -> list[Want]:
    """What brings the token after the ids, and after each drafted one; masks are asked here."""
    ids, drafted = sequence.ids, draft.ids
    return [
        sequence.request.want_at([*ids, *drafted[:i]] if i else ids)
        for i in range(1 + len(drafted))
    ]


def _permitted(sequence: Sequence, draft: Draft) -> Draft:
    """The draft up to the first id that a mask excludes: no row after that could hold."""
    request, ids = sequence.request, draft.ids
    if request.masks is None:
        return draft
    sound = 0
    while sound < len(ids) and request.allows([*sequence.ids, *ids[:sound]], ids[sound]):
        sound += 1
    return draft.cut(sound)
