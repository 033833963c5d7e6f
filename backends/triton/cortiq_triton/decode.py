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

import numpy as np
import torch

from cortiq.backend import Batch, Drawn, Row, Status
from cortiq.backend.admission import token_of
from cortiq.backend.executable import Accepted
from cortiq.backend.row_runs import RowRuns, known_ids
from cortiq.numerics.masks import Mask
from cortiq_triton.asking import Askings
from cortiq_triton.capture import Captured
from cortiq_triton.decoding_step import DecodingStep
from cortiq_triton.encoder_passes import EncoderPasses
from cortiq_triton.given_rows import given_arrays, given_names
from cortiq_triton.mixed import Mixed
from cortiq_triton.plan import Plan
from cortiq_triton.rowset import RowBuffer
from cortiq_triton.run import Run
from cortiq_triton.shapes import (
    Scratch,
    ShapeCache,
    logits_bytes,
    padded_sequences,
    table_width,
)
from cortiq_triton.step_answers import Asked, StepAnswers
from cortiq_triton.step_rows import (
    KnownFacts,
    StepArrays,
    StepRows,
    StepRun,
    WantFacts,
    plain_rows,
)
from cortiq_triton.token_log import UNKNOWN
from cortiq_triton.under_way import Owner, UnderWay

MOST_ROWS = 256
DRAWN_ROWS = 1 << 14
"""Rows of a batch whose drawn ids are kept on the device."""


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


class StepDecoder:
    """The shapes of an executable, and the steps under way.

    Attributes
    ----------
    refused : why no graph is captured any more; empty while they are.
    drawn : int32 [DRAWN_ROWS] on the device, what the rows of the last step drew.
    capture : makes a graph of launches. mixed : pieces of prompts beside steps. passes : of
        encoders.
    """

    def __init__(self, owner: Owner) -> None:
        self.owner, self.refused = owner, ""
        self.shapes = ShapeCache[Shape](owner.device)
        self.drawn = torch.full((DRAWN_ROWS,), -1, dtype=torch.int32, device=owner.device)
        self.under_way: list[UnderWay] = []
        self.version = 0
        self._facts, self._askings = KnownFacts(), Askings()
        self._filler: Scratch | None = None
        self._captures = 0
        self.capture: Callable[[Callable[[], None], str], Captured] = Captured
        self.mixed = Mixed(owner, self.drawn, self._captured, self._askings)
        self.passes = EncoderPasses(owner, self._captured)

    def takes(self, plan: Plan, batch: Batch) -> list[WantFacts] | None:
        """Facts of the rows' wants, if the batch is a step; None if it is another kind of batch."""
        rows = batch.rows
        if isinstance(rows, RowRuns) and len(rows.runs) < len(rows):
            return None
        if not (0 < len(rows) <= MOST_ROWS):
            return None
        if not all(self.owner.owns(row.state) for row in rows):
            return None
        return plain_rows(batch, self._facts, plan)

    def submit(self, plan: Plan, batch: Batch) -> DecodingStep | None:
        """Launch a batch of steps; None if it is another kind of batch, or a row is refused."""
        facts = self.takes(plan, batch)
        if facts is None:
            return None
        states: list[Any] = [row.state for row in batch.rows]
        looking = [state for state, known in zip(states, facts, strict=True) if known.looks]
        if any(state.log.lacks(state.tokens) for state in looking):
            self.owner.settle()
        tokens, sources, refused = [], [], False
        for row, known in zip(batch.rows, facts, strict=True):
            token, source = self.token(row)
            if known.is_late:
                row = Row(row.state, row.position, row.token, known.checked, row.inputs)
            if not self.owner.lets_in(plan, batch.entry, row, token):
                one: Accepted[Any] = Accepted(row.state, range(1), [token])  # type: ignore[type-var]
                refused |= self.owner.refusal(plan, Batch([row], batch.entry), one) is not None
            tokens.append(token)
            sources.append(source)
        if any(self.owner.shared.peers.any_of([refused])):
            return None
        positions = [row.position for row in batch.rows]
        inputs = [row.inputs for row in batch.rows]
        names = given_names(inputs[:1], plan) or ()
        given = given_arrays(inputs, plan, names, padded_sequences(len(inputs)))
        step_rows = StepRows(states, positions, tokens, sources, facts, given)
        step = self._launch(plan, batch, step_rows)
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

    def tokens(self, batch: Batch, indices: range) -> tuple[list[int], np.ndarray]:
        """Return ids of a sequence's rows, and for each the row that draws it, as `token` does."""
        ids = known_ids(batch.rows[indices.start : indices.stop])
        if ids is not None:
            return ids, np.full(len(ids), -1, np.int32)
        pairs = [self.token(batch.rows[index]) for index in indices]
        return [token for token, _ in pairs], np.array([at for _, at in pairs], np.int32)

    def _launch(self, plan: Plan, batch: Batch, rows: StepRows) -> DecodingStep:
        pages = table_width(rows.states)
        shape, is_new = self._shape(plan, batch, rows, pages)
        device = self.owner.device
        looking = [(at, rows.states[at]) for at in rows.looking()]
        held = {at: state.log.extended(state.tokens, device) for at, state in looking}
        wants = [row.wants for row in batch.rows]
        extra = padded_sequences(len(wants)) - len(wants)
        positions = [*rows.positions, *[0] * extra]
        asking = self._askings.of(plan, [*wants, *[()] * extra], positions, held)
        arrays = asking.arrays(positions, held)
        step = DecodingStep(self.owner, rows, batch.entry, wants)

        def answer(masks: Sequence[Mask | None]) -> None:
            asking.put_masks(rows.late(), masks)
            self._answer(step, shape, is_new, asking.asked, arrays, pages)

        if rows.late():
            step.waiting = answer
        else:
            answer(())
        return step

    def _answer(
        self, step: DecodingStep, shape: Shape, is_new: bool, asked: Asked,
        arrays: dict[str, np.ndarray], pages: int,
    ) -> None:  # fmt: skip
        """Compute what a step's rows ask for, and start bringing it to the host."""
        answers = shape.answers.get(asked)
        if answers is None:
            answers = shape.answers[asked] = StepAnswers(shape.run, asked, arrays, pages)
            answers.launch()
        else:
            answers.fill(arrays)
            answers.replay()
        step.answers = answers
        step.answer, step.event = self._fetch(answers.packed[: len(step.wants)])
        if is_new:  # names other memory for the logits, in which nothing is computed yet
            shape.replay = self._captured(shape.run.launch)
        if is_new or answers.replay == answers.launch:
            answers.replay = self._captured(answers.launch)

    def _shape(self, plan: Plan, batch: Batch, rows: StepRows, pages: int) -> tuple[Shape, bool]:
        """Compute the logits of a step; return its shape, and whether that is new."""
        count = padded_sequences(len(rows.states))
        sizes = tuple((name, len(there)) for name, there in rows.given.items())
        version, named = self.owner.shared.angles.version, rows.facts[0].named
        key = (batch.entry, count, pages, named, sizes, version)
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
        run = StepRun(plan, batch, everyone, self.owner.shared, self.drawn)
        run.given = rows.given
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
            rows.append(Row(state, 0, 0, rows[0].wants, rows[0].inputs))
            everyone.append(Accepted(state, range(at, at + 1), [0]))
        return Batch(rows, batch.entry), everyone

    @property
    def graphs(self) -> tuple[int, ...]:
        """Return counts of graphs made and of shapes that have some, which change with them."""
        return self._captures, *map(len, self._caches)

    @property
    def _caches(self) -> tuple[ShapeCache[Any], ...]:
        return self.shapes, self.mixed.shapes, self.passes.shapes

    def _captured(self, launch: Callable[[], None]) -> Callable[[], None]:
        """Capture launches, unless that failed before: then they stay launches."""
        if self.refused:
            return launch
        try:
            self._captures += 1
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
        for shapes in self._caches:
            shapes.clear()

    def forget_plans(self, plans: Sequence[Plan]) -> None:
        """Drop the shapes of plans that are no more, once nothing is under way."""
        for shapes in self._caches:
            gone = [key for key, shape in shapes.items() if shape.run.plan in plans]
            if gone and self.owner.device != "cpu":
                torch.cuda.synchronize(self.owner.device)
            for key in gone:
                shapes.drop(key)

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
