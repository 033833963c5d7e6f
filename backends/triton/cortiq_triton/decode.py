"""Decoding without waiting for the host: one row a sequence, one captured graph a shape.

A shape is how many rows there are and how far they may look back (a power of two of pages). What
rows want of their logits is a second graph of the shape, by the features that some row uses: each
row's own options are data. The first step of a shape runs launch by launch, which compiles its
kernels, and is captured at the end; later steps copy what changed (ids, positions, page tables,
options of draws) into the memory that the graphs read, and replay them. A row whose id the step
before draws reads it on the device, and so do penalties, from the sequence's `TokenLog`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from cortiq.backend import (
    FAULT,
    Batch,
    BatchResult,
    Draw,
    Drawn,
    Outcome,
    Row,
    State,
    Status,
    Want,
)
from cortiq.backend.admission import drawn_token, token_of
from cortiq.backend.answers import drawing_want
from cortiq.backend.executable import Accepted
from cortiq.backend.requests import penalises
from cortiq_triton.capture import Captured
from cortiq_triton.language import pow2
from cortiq_triton.mixed import Mixed
from cortiq_triton.plan import Plan
from cortiq_triton.rowset import RowBuffer
from cortiq_triton.run import Run
from cortiq_triton.shapes import ShapeCache, logits_bytes, padded_sequences
from cortiq_triton.state import TritonState
from cortiq_triton.step_answers import Asked, StepAnswers, answerable, ask
from cortiq_triton.token_log import UNKNOWN
from cortiq_triton.under_way import Owner, UnderWay

MOST_ROWS = 256
DRAWN_ROWS = 1 << 14
"""Rows of a batch whose drawn ids are kept on the device."""
FEWEST_PAGES = 16
"""Tiles without keys cost little; another shape costs a capture."""


@dataclass(frozen=True, eq=False)
class Going(Accepted[TritonState]):
    """A sequence that goes on by one row, at a position."""

    position: int = 0


@dataclass(eq=False)
class Shape:
    """State shared by all steps of one shape: memory for their rows, a run, and perhaps its graph.

    Attributes
    ----------
    replay : computes the logits. answers : what follows, by what rows ask for.
    """

    run: Run
    buffer: RowBuffer
    replay: Callable[[], None]
    answers: dict[Asked, StepAnswers] = field(default_factory=dict)


@dataclass(eq=False)
class Step:
    """A step under way; `result` waits for it and for those before it.

    Attributes
    ----------
    wants : of each row. answers : how to read the words of its answer.
    """

    owner: Owner
    accepted: Sequence[Going]
    entry: str
    wants: Sequence[tuple[Want, ...]]
    sources: Sequence[int]
    answers: StepAnswers
    answer: torch.Tensor
    event: Any
    lost: set[TritonState] = field(default_factory=set)
    outcome: BatchResult | None = None
    drawn: list[int | None] = field(default_factory=list)

    def draws(self, row: Any) -> bool:
        """Whether a row draws an id."""
        there = type(row) is int and 0 <= row < len(self.accepted)
        return there and drawing_want(self.wants[row]) is not None

    def result(self) -> BatchResult:
        """What the batch brought."""
        self.owner.settle(self)
        assert self.outcome is not None
        return self.outcome

    def finish(self, before: Sequence[int | None]) -> None:
        """Read the answer; `before` is what the step before drew."""
        if self.event is not None:
            self.event.synchronize()
        outcomes: dict[State, Outcome] = {}
        words = self.answer.numpy()
        brought = self.answers.read(words, self.wants)
        flags = words[:, 0].tolist()
        for row, (source, sequence) in enumerate(zip(self.sources, self.accepted, strict=True)):
            state = sequence.state
            failed = bool(flags[row]) or state in self.lost
            if failed and state not in self.lost:
                state.clear()
            elif not failed and source >= 0 and self.entry == "trunk":
                state.tokens[sequence.position] = before[source]  # type: ignore[assignment]
            status = Outcome(Status.FAILED, FAULT) if failed else Outcome(Status.COMPLETED)
            outcomes[state] = status
            if failed:
                brought[row] = {}
        self.drawn = [drawn_token(row) for row in brought]
        self.outcome = BatchResult(outcomes, brought)


class Decoder:
    """The shapes of an executable, and the steps under way.

    Attributes
    ----------
    refused : why no graph is captured any more; empty while they are.
    drawn : int32 [DRAWN_ROWS] on the device, what the rows of the last step drew.
    capture : makes a graph of launches. mixed : pieces of prompts beside steps.
    """

    def __init__(self, owner: Owner) -> None:
        self.owner, self.refused = owner, ""
        self.shapes = ShapeCache[Shape](owner.device)
        self.drawn = torch.full((DRAWN_ROWS,), -1, dtype=torch.int32, device=owner.device)
        self.under_way: list[UnderWay] = []
        self.version = 0
        self.capture: Callable[[Callable[[], None], str], Captured] = Captured
        self.mixed = Mixed(owner, self.drawn, self._captured)

    def submit(self, plan: Plan, batch: Batch) -> Step | None:
        """Launch a batch of steps; None if it is another kind of batch, or a row is refused."""
        if not self._is_step(plan, batch):
            return None
        if any(state.log.lacks(state.tokens) for state in self._penalised(batch).values()):
            self.owner.settle()
        accepted: list[Going] = []
        sources: list[int] = []
        for index, row in enumerate(batch.rows):
            state: Any = row.state
            token, source = self.token(row)
            going = Going(state, range(index, index + 1), [token], state.length(batch.entry))
            if self.owner.refusal(plan, batch, going) is not None:
                return None
            accepted.append(going)
            sources.append(source)
        step = self._launch(plan, batch, accepted, sources)
        for sequence, source in zip(accepted, sources, strict=True):
            ids = [UNKNOWN] if source >= 0 else sequence.tokens
            sequence.state.advance(batch.entry, ids)
        self.under_way.append(step)
        return step

    def _is_step(self, plan: Plan, batch: Batch) -> bool:
        """Whether each row is another sequence's, and wants only what a step can answer."""
        rows = batch.rows
        states = {id(row.state) for row in rows}
        plain = set(plan.graph.inputs) <= {"token", "position"}
        if not (0 < len(rows) <= MOST_ROWS and len(states) == len(rows) and plain):
            return False
        answered = all(not row.inputs and answerable(row) for row in rows)
        return answered and all(self.owner.owns(row.state) for row in rows)

    def _penalised(self, batch: Batch) -> dict[int, TritonState]:
        """The states of rows that draw by what their sequences were fed, by row."""
        drawing = enumerate(map(drawing_want, (row.wants for row in batch.rows)))
        looking = [at for at, want in drawing if isinstance(want, Draw) and penalises(want)]
        return {at: batch.rows[at].state for at in looking}  # type: ignore[misc]

    def token(self, row: Row) -> tuple[int, int]:
        """A row's id, and the row of the batch under way that draws it (−1: the id is known)."""
        before = self.under_way[-1] if self.under_way else None
        if before is None or not isinstance(row.token, Drawn):
            return token_of(row, self.owner.drawn), -1
        return (0, row.token.row) if before.draws(row.token.row) else (-1, -1)

    def _launch(
        self, plan: Plan, batch: Batch, accepted: Sequence[Going], sources: Sequence[int]
    ) -> Step:
        pages = max(FEWEST_PAGES, pow2(max(len(s.state.page_addresses) for s in accepted)))
        shape, is_new = self._shape(plan, batch, accepted, sources, pages)
        device = self.owner.device
        held = {at: s.log.extended(s.tokens, device) for at, s in self._penalised(batch).items()}
        width = plan.graph.values["logits"].shape[-1]
        extra = padded_sequences(len(accepted)) - len(accepted)
        scratch = [Row(self.owner.scratch(), 0, 0)] * extra  # type: ignore[arg-type]
        asked, arrays = ask([*batch.rows, *scratch], held, width)
        answers = shape.answers.get(asked)
        if answers is None:
            answers = shape.answers[asked] = StepAnswers(shape.run, asked, arrays, pages)
            answers.launch()
        else:
            answers.fill(arrays)
            answers.replay()
        answer, event = self._fetch(answers.packed[: len(accepted)])
        if is_new:  # names other memory for the logits, in which nothing is computed yet
            shape.replay = self._captured(shape.run.launch)
        if is_new or answers.replay == answers.launch:
            answers.replay = self._captured(answers.launch)
        wants = [row.wants for row in batch.rows]
        return Step(self.owner, accepted, batch.entry, wants, sources, answers, answer, event)

    def _shape(
        self, plan: Plan, batch: Batch, accepted: Sequence[Going], sources: Sequence[int],
        pages: int,
    ) -> tuple[Shape, bool]:  # fmt: skip
        """Compute the logits of a step; return its shape, and whether that is new."""
        batch, everyone = self._filled_up(batch, accepted)
        sources = [*sources, *[-1] * (len(everyone) - len(sources))]
        run = Run(plan, batch, everyone, self.owner.shared, self.drawn)
        key = (batch.entry, len(everyone), pages, self.owner.shared.angles.version)
        if self.version != key[-1]:  # tables of angles were made anew: old graphs read old ones
            self.shapes.clear()
            self.version = key[-1]
        shape = self.shapes.use(key)
        if shape is not None:
            run.fill(shape.buffer, sources, pages)
            shape.replay()
            return shape, False
        shape = Shape(run, RowBuffer(self.owner.device), run.launch)
        self.shapes.keep(key, shape, len(everyone) * logits_bytes(plan))
        run.place(shape.buffer, sources, pages)
        run.launch()
        return shape, True

    def _filled_up(
        self, batch: Batch, accepted: Sequence[Going]
    ) -> tuple[Batch, Sequence[Accepted[Any]]]:
        """Add rows that nobody reads, up to the next size that is captured."""
        rows, everyone = list(batch.rows), list[Accepted[Any]](accepted)
        for at in range(len(rows), padded_sequences(len(rows))):
            state: Any = self.owner.scratch()
            rows.append(Row(state, 0, 0, rows[0].wants))
            everyone.append(Accepted(state, range(at, at + 1), [0]))
        return Batch(rows, batch.entry), everyone

    def _captured(self, launch: Callable[[], None]) -> Callable[[], None]:
        """Capture launches, unless that failed before: then they stay launches."""
        if self.refused:
            return launch
        try:
            return self.capture(launch, self.owner.device).replay
        except (RuntimeError, torch.OutOfMemoryError) as error:
            self.refused = str(error).splitlines()[0]
            what = f"CUDA graphs are off, steps are launched one by one: {self.refused}"
            warnings.warn(what, RuntimeWarning, stacklevel=2)
            return launch

    def _fetch(self, packed: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Start bringing an answer to the host."""
        if self.owner.device == "cpu":
            return packed.clone(), None
        host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
        host.copy_(packed, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return host, event

    def forget(self) -> None:
        """Drop all shapes, once nothing is under way."""
        if self.owner.device != "cpu":
            torch.cuda.synchronize(self.owner.device)
        self.shapes.clear()
        self.mixed.shapes.clear()

    def settle(self, last: UnderWay | None = None) -> None:
        """Finish the batches under way, up to one if it is given."""
        while self.under_way and (last is None or last.outcome is None):
            step = self.under_way[0]
            step.finish(self.owner.drawn)
            self.under_way.pop(0)
            self.owner.drawn = step.drawn
            outcomes = step.outcome.outcomes if step.outcome is not None else {}
            gone = {s for s, outcome in outcomes.items() if outcome.status is Status.FAILED}
            for later in self.under_way:
                later.lost |= gone  # type: ignore[arg-type]
