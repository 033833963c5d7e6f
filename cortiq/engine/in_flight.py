"""Batches: schedules the rows of each sequence, and keeps them until the results are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cortiq.backend import Drawn, Row, State, Ticket, Want
from cortiq.backend.batch import NO_INPUTS
from cortiq.backend.row_runs import RowRun, RowRuns
from cortiq.backend.windows import ROLLBACK_ROWS
from cortiq.engine.drafting import NOTHING, Draft
from cortiq.engine.row_budget import RowDemand, RowGrant, divide_rows, urgency
from cortiq.engine.sequence import Sequence
from cortiq.ir.overlays import overlay_inputs

drawn_in: Callable[[int], Drawn] = lru_cache(maxsize=4096)(Drawn)
"""Return the token that a row of the batch before draws."""


@dataclass(eq=False, slots=True)
class ScheduledRows:
    """Rows of one sequence in a batch.

    Attributes
    ----------
    start : position of the first row.
    tokens : ids of the rows, drafted ones last; or what the batch before draws.
    draws : number of rows at the end that draw a token: none in a chunk inside a prompt, else one
        and one more for every drafted id.
    first : index of the first row in the batch.
    draft, asked, draft_seconds : the draft, the depth that was asked for, and its time.
    checkpoint : snapshot from before a round that the state may be unable to rewind.
    drawing_wants : what each row that draws is asked for; empty for the request's own want.
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
    drawing_wants: Several[Want] = ()

    @property
    def stop(self) -> int:
        """Position after the last row."""
        return self.start + len(self.tokens)

    @property
    def drafter(self) -> str:
        """Name of the drafter; empty for a sequence without one."""
        speculation = self.sequence.speculation
        return self.draft.drafter or (speculation.drafter.name if speculation else "")

    @property
    def is_late(self) -> bool:
        """Whether the mask of its draw is known only once the batch before was read."""
        return self.sequence.request.masks is not None and isinstance(self.tokens[0], Drawn)

    @property
    def drawing(self) -> range:
        """Indices in the batch of the rows that draw."""
        end = self.first + len(self.tokens)
        return range(end - self.draws, end)

    def wants(self) -> list[tuple[Want, ...]]:
        """Return the outputs that each of the last rows requests, those before none: the same
        object in every plain step.
        """
        sequence, request = self.sequence, self.sequence.request
        more = sequence.drafting.wants if sequence.drafting else ()
        before: list[tuple[Want, ...]] = [more] * (len(self.tokens) - self.draws) if more else []
        known = request.late_wants if self.is_late else request.wants
        want = known[0]
        return before + [
            known if mine is want and not more else (mine, *request.captures, *more)
            for mine in self.drawing_wants or [want] * self.draws
        ]

    def rows(self, given: Mapping[str, Any] = NO_INPUTS) -> list[Row]:
        """Return the rows of the batch.

        Parameters
        ----------
        given : what each of them supplies, besides embeddings.
        """
        wants = self.wants()
        request = self.sequence.request
        if len(wants) == len(self.tokens) == 1 and not request.supplies:
            return [Row(self.state, self.start, self.tokens[0], wants[0], given)]
        every = [()] * (len(self.tokens) - len(wants)) + wants
        rows = enumerate(zip(self.tokens, every, strict=True), self.start)
        return [
            Row(self.state, at, request.fed(at, token), mine, {**given, **request.inputs(at)})
            for at, (token, mine) in rows
        ]

    def run(self) -> RowRun:
        """Return the rows as one run, of a sequence whose rows supply nothing."""
        return RowRun(self.state, self.start, self.tokens, self.wants())


def _overlay_of(scheduled: ScheduledRows) -> Mapping[str, Any]:
    """Return what the rows of a sequence supply in a batch in which some choose an overlay."""
    overlay = scheduled.sequence.request.overlay
    return overlay_inputs(0 if overlay is None else overlay.number)


@dataclass(eq=False)
class InFlightBatch:
    """A batch that was submitted and is not read yet.

    Attributes
    ----------
    scheduled : the rows of each sequence. rows : all of them, in order.
    started : time at which it was scheduled.
    ticket : gives the result. late : rows whose draws wait for their masks.
    """

    scheduled: list[ScheduledRows]
    started: float
    rows: Several[Row] = ()
    ticket: Ticket | None = None

    def __post_init__(self) -> None:
        count = 0
        for scheduled in self.scheduled:
            scheduled.first = count
            count += len(scheduled.tokens)
        requests = [scheduled.sequence.request for scheduled in self.scheduled]
        if any(request.overlay is not None for request in requests):
            self.rows = [row for s in self.scheduled for row in s.rows(_overlay_of(s))]
        elif count == len(requests) or any(request.supplies for request in requests):
            self.rows = [row for scheduled in self.scheduled for row in scheduled.rows()]
        else:
            self.rows = RowRuns([scheduled.run() for scheduled in self.scheduled])
        self._by_sequence = {scheduled.sequence: scheduled for scheduled in self.scheduled}
        self.late = [scheduled for scheduled in self.scheduled if scheduled.is_late]

    def rows_of(self, sequence: Sequence) -> ScheduledRows | None:
        """Return the rows of a sequence, None if it has none here."""
        return self._by_sequence.get(sequence)


def demand_of(sequence: Sequence, before: ScheduledRows | None) -> RowDemand | None:
    """Return the rows that a sequence can use in the next batch, None while it can use none.

    Parameters
    ----------
    before : its rows in the batch in flight. While its last token is being drawn there, there is
        nothing to schedule.
    """
    start = before.stop if before else sequence.fed
    rows = len(sequence.ids) - start
    decodes = sequence.ready if before is None else rows <= 1
    if before is not None and before.draws:
        if sequence.room <= 1:
            return None
        rows, decodes = 1, True
    most = sequence.request.chunk_rows or rows
    points = sequence.request.cache_points
    if before is not None and any(point.position == start for point in points):
        return None  # its state is copied first
    point = sequence.next_cache_point(start)
    if point is not None:
        most = min(most, point - start)
        decodes = decodes and point - start >= rows
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
    in_flight: InFlightBatch | None,
    propose: Callable[[Mapping[Sequence, int]], Mapping[Sequence, tuple[Draft, float]]],
    prompt_rows: int | None = None,
) -> list[ScheduledRows]:
    """Schedule the rows of the next batch.

    Parameters
    ----------
    in_flight : a batch that is not read yet: its sequences continue from what it draws.
    propose : returns drafts of at most so many ids for each sequence, and the seconds each took.
    prompt_rows : most rows of prompts beside sequences that decode.
    """
    going = list(sequences)
    continuing = _next_rows(going, in_flight) if in_flight else None
    if continuing is not None and len(continuing) <= budget:
        return continuing
    befores = {s: in_flight.rows_of(s) if in_flight else None for s in going}
    demands = {s: demand for s, before in befores.items() if (demand := demand_of(s, before))}
    divided = divide_rows(list(demands.values()), budget, prompt_rows)
    grants = dict(zip(demands, divided, strict=True))
    drafts = propose({s: grant.depth for s, grant in grants.items() if grant.rows and grant.depth})
    scheduled = [
        _scheduled_rows(sequence, befores[sequence], grant, *drafts.get(sequence, (NOTHING, 0.0)))
        for sequence, grant in grants.items()
        if grant.rows
    ]
    return [rows for rows in scheduled if rows is not None]


def _next_rows(
    sequences: Iterable[Sequence], in_flight: InFlightBatch
) -> list[ScheduledRows] | None:
    """Return the next row of sequences that all draw in the batch in flight; None for others.

    It is what `schedule_batch` finds of them, in a fraction of the time.
    """
    found = []
    for sequence in sequences:
        before = in_flight.rows_of(sequence)
        if before is None or not before.draws or sequence.state is None:
            return None
        if sequence.room <= 1:
            continue
        stop = before.stop
        if any(point.position >= stop for point in sequence.request.cache_points):
            return None
        token = drawn_in(before.first + len(before.tokens) - 1)
        found.append(ScheduledRows(sequence, sequence.state, stop, [token], 1))
    return found


def _scheduled_rows(
    sequence: Sequence,
    before: ScheduledRows | None,
    grant: RowGrant,
    draft: Draft,
    seconds: float,
) -> ScheduledRows | None:
    """Return a sequence's rows; None where its masks raised, which ends it before the next step.

    Where the fault of a draft head cleared the sequence, its rows are fed again first.
    """
    assert sequence.state is not None
    start = before.stop if before else sequence.fed
    if before is not None and before.draws:
        row = before.drawing[-1]
        return ScheduledRows(sequence, sequence.state, start, [drawn_in(row)], 1)
    images, granted = sequence.request.images, grant.rows
    if images is not None and start + granted < len(sequence.ids):
        granted = images.whole_rows(start, granted)
    tokens: list[int | Drawn] = list(sequence.ids[start : start + granted])
    if start + granted < len(sequence.ids):
        return ScheduledRows(sequence, sequence.state, start, tokens, 0)
    if not draft.ids and sequence.request.masks is None:
        return ScheduledRows(
            sequence, sequence.state, start, tokens, 1, asked=grant.depth, draft_seconds=seconds
        )
    try:
        draft = _permitted(sequence, draft)
        return ScheduledRows(
            sequence, sequence.state, start, [*tokens, *draft.ids], 1 + len(draft.ids),
            draft=draft, asked=grant.depth, draft_seconds=seconds,
            drawing_wants=_drawing_wants(sequence, draft),
        )  # fmt: skip
    except Exception as error:
        sequence.error = error
        sequence.cancel()
        return None


def _drawing_wants(sequence: Sequence, draft: Draft) -> list[Want]:
    """Return what each drawing row is asked for, with the masks after its drafted ids."""
    ids, drafted = sequence.ids, draft.ids
    return [
        sequence.request.want_at([*ids, *drafted[:i]] if i else ids)
        for i in range(1 + len(drafted))
    ]


def _permitted(sequence: Sequence, draft: Draft) -> Draft:
    """Cut a draft before the first id that a mask excludes: no later row could be accepted."""
    request, ids = sequence.request, draft.ids
    if request.masks is None:
        return draft
    sound = 0
    while sound < len(ids) and request.allows([*sequence.ids, *ids[:sound]], ids[sound]):
        sound += 1
    return draft.cut(sound)
