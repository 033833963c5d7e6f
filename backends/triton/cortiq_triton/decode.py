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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from cortiq.backend import (
    FAULT,
    Batch,
    BatchResult,
    Drawn,
    Outcome,
    Row,
    State,
    Status,
    Want,
)
from cortiq.backend.admission import token_of
from cortiq.backend.batch import COMPLETED
from cortiq.backend.executable import Accepted
from cortiq_triton.capture import Captured
from cortiq_triton.draw_numbers import Stored
from cortiq_triton.language import pow2
from cortiq_triton.mixed import Mixed
from cortiq_triton.plan import Plan
from cortiq_triton.rowset import RowBuffer
from cortiq_triton.run import Run
from cortiq_triton.shapes import Scratch, ShapeCache, logits_bytes, padded_sequences
from cortiq_triton.state import TritonState
from cortiq_triton.step_answers import TOKEN, Asked, Asking, StepAnswers
from cortiq_triton.step_rows import KnownFacts, StepArrays, StepRows, plain_rows
from cortiq_triton.token_log import UNKNOWN
from cortiq_triton.under_way import Owner, UnderWay

MOST_ROWS = 256
DRAWN_ROWS = 1 << 14
"""Rows of a batch whose drawn ids are kept on the device."""
MOST_ASKINGS = 16
FEWEST_PAGES = 16
"""Tiles without keys cost little; another shape costs a capture."""


@dataclass(eq=False)
class Shape:
    """State shared by all steps of one shape: memory for their rows, a run, and perhaps its graph.

    Attributes
    ----------
    arrays : of its rows. replay : computes the logits. answers : what follows, by what rows ask
        for.
    """

    run: Run
    buffer: RowBuffer
    arrays: StepArrays
    replay: Callable[[], None]
    answers: dict[Asked, StepAnswers] = field(default_factory=dict)


@dataclass(eq=False)
class Step:
    """A step under way; `result` waits for it and for those before it.

    Attributes
    ----------
    rows : whose they are. wants : of each row. answers : how to read the words of its answer.
    """

    owner: Owner
    rows: StepRows
    entry: str
    wants: Sequence[tuple[Want, ...]]
    answers: StepAnswers
    answer: torch.Tensor
    event: Any
    lost: set[TritonState] = field(default_factory=set)
    outcome: BatchResult | None = None
    drawn: Sequence[int | None] = ()

    @property
    def states(self) -> Sequence[TritonState]:
        """Sequences with rows in it."""
        return self.rows.states

    def draws(self, row: Any) -> bool:
        """Whether a row draws an id."""
        there = type(row) is int and 0 <= row < len(self.wants)
        return there and self.rows.facts[row].drawing is not None

    def result(self) -> BatchResult:
        """What the batch brought."""
        self.owner.settle(self)
        assert self.outcome is not None
        return self.outcome

    def finish(self, before: Sequence[int | None]) -> None:
        """Read the answer; `before` is what the step before drew."""
        if self.event is not None:
            self.event.synchronize()
        words = self.answer.numpy()
        brought: list[Mapping[Want, Any]] = [*self.answers.read(words, self.wants)]
        states, positions = self.rows.states, self.rows.positions
        outcomes: dict[State, Outcome] = dict.fromkeys(states, COMPLETED)
        flags, tokens = words[:, 0], words[:, TOKEN].tolist()
        drawn = zip(tokens, self.rows.facts, strict=True)
        self.drawn = [token if facts.drawing is not None else None for token, facts in drawn]
        failed = (
            [at for at, state in enumerate(states) if flags[at] or state in self.lost]
            if (flags.any() or self.lost)
            else []
        )
        for at in failed:
            if states[at] not in self.lost:
                states[at].clear()
            outcomes[states[at]], brought[at] = Outcome(Status.FAILED, FAULT), {}
            self.drawn[at] = None
        if self.entry == "trunk":
            for at, source in enumerate(self.rows.sources):
                if source >= 0 and outcomes[states[at]] is COMPLETED:
                    states[at].tokens[positions[at]] = before[source]  # type: ignore[assignment]
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
        self._facts, self._known = KnownFacts(), dict[tuple[int, ...], Asking]()
        self._filler: Scratch | None = None
        self.capture: Callable[[Callable[[], None], str], Captured] = Captured
        self.mixed = Mixed(owner, self.drawn, self._captured)

    def submit(self, plan: Plan, batch: Batch) -> Step | None:
        """Launch a batch of steps; None if it is another kind of batch, or a row is refused."""
        rows = batch.rows
        if not (0 < len(rows) <= MOST_ROWS and set(plan.graph.inputs) <= {"token", "position"}):
            return None
        facts = plain_rows(batch, self._facts)
        if facts is None or not all(self.owner.owns(row.state) for row in rows):
            return None
        states: list[Any] = [row.state for row in rows]
        looking = [state for state, known in zip(states, facts, strict=True) if known.looks]
        if any(state.log.lacks(state.tokens) for state in looking):
            self.owner.settle()
        tokens, sources = [], []
        for at, row in enumerate(rows):
            token, source = self.token(row)
            if not self.owner.lets_in(batch.entry, row, token):
                one = Accepted(states[at], range(at, at + 1), [token])
                if self.owner.refusal(plan, batch, one) is not None:
                    return None
            tokens.append(token)
            sources.append(source)
        going = StepRows(states, [row.position for row in rows], tokens, sources, facts)
        step = self._launch(plan, batch, going)
        for state, token, source in zip(states, tokens, sources, strict=True):
            state.advance(batch.entry, [UNKNOWN if source >= 0 else token])
        self.under_way.append(step)
        return step

    def token(self, row: Row) -> tuple[int, int]:
        """A row's id, and the row of the batch under way that draws it (−1: the id is known)."""
        token, before = row.token, self.under_way[-1] if self.under_way else None
        if before is None or not isinstance(token, Drawn):
            return token_of(row, self.owner.drawn), -1
        return (0, token.row) if before.draws(token.row) else (-1, -1)

    def _launch(self, plan: Plan, batch: Batch, rows: StepRows) -> Step:
        pages = max(FEWEST_PAGES, pow2(max(len(s.page_addresses) for s in rows.states)))
        shape, is_new = self._shape(plan, batch, rows, pages)
        device = self.owner.device
        held = {at: rows.states[at].log for at in rows.looking()}
        held = {at: log.extended(rows.states[at].tokens, device) for at, log in held.items()}
        wants = [row.wants for row in batch.rows]
        asking = self._asking(wants, rows.positions, held, plan)
        extra = padded_sequences(len(wants)) - len(wants)
        arrays = asking.arrays([*rows.positions, *[0] * extra], held)
        answers = shape.answers.get(asking.asked)
        if answers is None:
            answers = shape.answers[asking.asked] = StepAnswers(
                shape.run, asking.asked, arrays, pages
            )
            answers.launch()
        else:
            answers.fill(arrays)
            answers.replay()
        answer, event = self._fetch(answers.packed[: len(wants)])
        if is_new:  # names other memory for the logits, in which nothing is computed yet
            shape.replay = self._captured(shape.run.launch)
        if is_new or answers.replay == answers.launch:
            answers.replay = self._captured(answers.launch)
        return Step(self.owner, rows, batch.entry, wants, answers, answer, event)

    def _asking(
        self, wants: list[tuple[Want, ...]], positions: list[int], held: dict[int, Stored],
        plan: Plan,
    ) -> Asking:  # fmt: skip
        """What rows with these wants ask for, filled up by rows that want nothing."""
        key = id(plan), *map(id, wants)
        asking = self._known.get(key)
        if asking is None:
            if len(self._known) >= MOST_ASKINGS:
                del self._known[next(iter(self._known))]
            width = plan.graph.values["logits"].shape[-1]
            extra = padded_sequences(len(wants)) - len(wants)
            asking = Asking([*wants, *[()] * extra], [*positions, *[0] * extra], held, width)
            self._known[key] = asking
        return asking

    def _shape(self, plan: Plan, batch: Batch, rows: StepRows, pages: int) -> tuple[Shape, bool]:
        """Compute the logits of a step; return its shape, and whether that is new."""
        count = padded_sequences(len(rows.states))
        key = (batch.entry, count, pages, self.owner.shared.angles.version)
        if self.version != key[-1]:  # tables of angles were made anew: old graphs read old ones
            self.shapes.clear()
            self.version = key[-1]
        shape = self.shapes.use(key)
        if shape is not None:
            if self._filler is None:
                self._filler = self.owner.scratch()
            shape.buffer.fill(shape.arrays.update(rows, self._filler))
            shape.replay()
            return shape, False
        batch, everyone = self._filled_up(batch, rows.accepted())
        run = Run(plan, batch, everyone, self.owner.shared, self.drawn)
        buffer = RowBuffer(self.owner.device)
        parts = run.place(buffer, [*rows.sources, *[-1] * (count - len(rows.sources))], pages)
        arrays = StepArrays(parts, [sequence.state for sequence in everyone])
        shape = Shape(run, buffer, arrays, run.launch)
        self.shapes.keep(key, shape, count * logits_bytes(plan))
        run.launch()
        return shape, True

    def _filled_up(
        self, batch: Batch, accepted: Sequence[Accepted[Any]]
    ) -> tuple[Batch, Sequence[Accepted[Any]]]:
        """Add rows that nobody reads, up to the next size that is captured."""
        rows, everyone = list(batch.rows), list(accepted)
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
