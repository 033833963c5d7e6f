"""Pieces of prompts beside decoding rows, as captured graphs.

Launching some 330 kernels one by one takes the host longer than the device needs for a few hundred
rows. A shape is how many rows and sequences there are, filled up by ones that nobody reads, and how
far they look back. Each sequence's last row has logits, whether it wants any or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from cortiq.backend import Argmax, Batch, Draw, Row, Want
from cortiq.backend.answers import drawing_want
from cortiq.backend.executable import Accepted, Brought
from cortiq.backend.requests import penalises
from cortiq_triton.draw_numbers import Stored
from cortiq_triton.language import pow2
from cortiq_triton.mixed_run import MixedRun, PaddedRows, Tail
from cortiq_triton.plan import Plan
from cortiq_triton.rowset import RowBuffer
from cortiq_triton.shapes import ShapeCache, logits_bytes, padded_rows
from cortiq_triton.state import TritonState
from cortiq_triton.step_answers import LOGITS, Asked, StepAnswers, answerable, ask
from cortiq_triton.under_way import Owner

MOST_ROWS = 512
"""Rows from which on the device takes longer than the host's launches."""
STREAMED = 16
"""Rows of a piece that attention streams over, which a batch needs one of."""
FEWEST_PAGES = 16


@dataclass(eq=False)
class MixedShape:
    """What batches of one shape share.

    Attributes
    ----------
    replay : computes the rows. answers : what follows, by what rows ask for.
    """

    run: MixedRun
    buffer: RowBuffer
    replay: Callable[[], None]
    tail: Tail
    answers: dict[Asked, StepAnswers] = field(default_factory=dict)


class MixedFetched:
    """What the rows of a mixed batch ask for, on its way to the host; as `answers.Fetched`."""

    def __init__(
        self,
        accepted: Sequence[Accepted[TritonState]],
        wants: Sequence[tuple[Want, ...]],
        flags: torch.Tensor,
        packed: torch.Tensor | None,
        answers: StepAnswers | None,
        drawing: frozenset[int],
    ) -> None:
        self.drawing = drawing
        self._accepted, self._wants, self._answers = accepted, wants, answers
        self._flags = _to_host(flags)
        self._packed = None if packed is None else _to_host(packed)
        self._event = None
        if self._flags.is_pinned():
            self._event = torch.cuda.Event()
            self._event.record()

    def read(self) -> list[Sequence[Brought] | None]:
        """Wait; return what each sequence brings, None for one with a fault."""
        if self._event is not None:
            self._event.synchronize()
        flags, start = self._flags.numpy() != 0, 0
        late: list[bool] = [False] * len(self._accepted)
        last: Sequence[Brought] = [{} for _ in self._accepted]
        if self._packed is not None and self._answers is not None:
            words = self._packed[: len(late)].numpy()
            last = self._answers.read(words, self._wants)
            late = [
                bool(wants and flag) for wants, flag in zip(self._wants, words[:, 0], strict=True)
            ]
        found: list[Sequence[Brought] | None] = []
        for sequence, fault, brought in zip(self._accepted, late, last, strict=True):
            stop = start + len(sequence.indices)
            silent: list[Brought] = [{} for _ in sequence.indices[1:]]
            found.append(None if fault or flags[start:stop].any() else [*silent, brought])
            start = stop
        return found


def _to_host(there: torch.Tensor) -> torch.Tensor:
    if there.device.type == "cpu":
        return there.clone()
    host = torch.empty(there.shape, dtype=there.dtype, pin_memory=True)
    return host.copy_(there, non_blocking=True)


class Mixed:
    """Captured mixed batches of an executable.

    Parameters
    ----------
    drawn : int32 on the device, what rows of the last batch drew; its last place is nobody's.
    captured : makes a graph of launches, or gives them back where that fails.
    """

    def __init__(
        self,
        owner: Owner,
        drawn: torch.Tensor,
        captured: Callable[[Callable[[], None]], Callable[[], None]],
    ) -> None:
        self.owner, self.drawn, self._captured = owner, drawn, captured
        self.shapes = ShapeCache[MixedShape](owner.device)
        self._version = 0

    def launch(
        self,
        plan: Plan,
        batch: Batch,
        accepted: Sequence[Accepted[TritonState]],
        sources: Sequence[Sequence[int]],
    ) -> MixedFetched | None:
        """Launch a batch; None if it is of another kind."""
        if not self._suits(plan, batch, accepted):
            return None
        last = [batch.rows[sequence.indices[-1]] for sequence in accepted]
        asking = any(row.wants for row in last)
        run, asked_rows = self._filled_up(plan, batch, accepted, last, asking)
        pages = max(FEWEST_PAGES, pow2(max(len(s.state.page_addresses) for s in accepted)))
        flat = [source for each in sources for source in each]
        flat += [-1] * (len(run.rows) - len(flat))
        shape, is_new = self._shape(run, batch.entry, flat, pages, asking)
        answers = self._answer(shape, accepted, asked_rows, pages) if asking else None
        drawing = frozenset(
            sequence.indices[-1]
            for sequence, row in zip(accepted, last, strict=True)
            if drawing_want(row.wants) is not None
        )
        packed = None if answers is None else answers.packed
        wants = [row.wants for row in last]
        fetched = MixedFetched(accepted, wants, shape.run.all.faults, packed, answers, drawing)
        if is_new:  # names other memory, in which nothing is computed yet
            shape.replay = self._captured(shape.run.launch)
        if answers is not None and (is_new or answers.replay == answers.launch):
            answers.replay = self._captured(answers.launch)
        return fetched

    def _suits(self, plan: Plan, batch: Batch, accepted: Sequence[Accepted[TritonState]]) -> bool:
        """Whether only last rows want something, of their logits, and there are not too many."""
        if len(batch.rows) > MOST_ROWS or not set(plan.graph.inputs) <= {"token", "position"}:
            return False
        if max(len(sequence.indices) for sequence in accepted) < STREAMED:
            return False
        for sequence in accepted:
            *others, last = (batch.rows[index] for index in sequence.indices)
            if any(row.wants or row.inputs for row in others) or last.inputs:
                return False
            if last.wants and not (answerable(last) and LOGITS in plan.graph.values):
                return False
        return True

    def _filled_up(
        self,
        plan: Plan,
        batch: Batch,
        accepted: Sequence[Accepted[TritonState]],
        last: Sequence[Row],
        asking: bool,
    ) -> tuple[MixedRun, list[Row]]:
        """A run of the rows and of what fills them up; the last rows with what they want."""
        wants: tuple[Want, ...] = (Argmax(),) if asking else ()
        rows: list[Row] = []
        everyone: list[Accepted[Any]] = []
        for sequence in accepted:
            first = len(rows)
            rows += [Row(r.state, r.position, 0) for r in self._rows_of(batch, sequence)]
            rows[-1] = Row(rows[-1].state, rows[-1].position, 0, wants)
            everyone.append(Accepted(sequence.state, range(first, len(rows)), sequence.tokens))
        places = [s.indices[-1] if row.wants else -1 for s, row in zip(accepted, last, strict=True)]
        total, most = padded_rows(len(rows), len(accepted))
        for number in range(len(accepted), most):
            first, state = len(rows), self.owner.scratch()
            count = 1 if number < most - 1 else total - first
            rows += [Row(state, i, 0) for i in range(count)]  # type: ignore[arg-type]
            rows[-1] = Row(state, count - 1, 0, wants)  # type: ignore[arg-type]
            everyone.append(Accepted(state, range(first, len(rows)), [0] * count))
        run = MixedRun(plan, Batch(rows, batch.entry), everyone, self.owner.shared, self.drawn)
        dummy = len(self.drawn) - 1
        places += [-1] * (most - len(accepted))
        run.places = np.array([dummy if place < 0 else place for place in places], np.int64)
        tail = [rows[sequence.indices[-1]] for sequence in everyone]
        wanted = [*(row.wants for row in last), *[()] * (most - len(last))]
        pairs = zip(tail, wanted, strict=True)
        asked = [Row(row.state, row.position, 0, wants) for row, wants in pairs]
        return run, asked

    def _rows_of(self, batch: Batch, sequence: Accepted[Any]) -> Sequence[Row]:
        return batch.rows[sequence.indices.start : sequence.indices.stop]

    def _shape(
        self, run: MixedRun, entry: str, sources: Sequence[int], pages: int, asking: bool
    ) -> tuple[MixedShape, bool]:
        """Compute the rows; return their shape, and whether that is new."""
        version = self.owner.shared.angles.version
        if self._version != version:  # tables of angles were made anew: old graphs read old ones
            self.shapes.clear()
            self._version = version
        key = (entry, len(run.rows), len(run.places), pages, asking)
        shape = self.shapes.use(key)
        if shape is not None:
            run.fill(shape.buffer, sources, pages)
            rows = shape.run.row_sets[0]
            assert isinstance(rows, PaddedRows)
            rows.refill(run.segments)
            shape.replay()
            return shape, False
        buffer = RowBuffer(self.owner.device)
        run.place(buffer, sources, pages)
        shape = MixedShape(run, buffer, run.launch, Tail(run))
        self.shapes.keep(key, shape, asking * len(run.places) * logits_bytes(run.plan))
        run.launch()
        return shape, True

    def _answer(
        self,
        shape: MixedShape,
        accepted: Sequence[Accepted[TritonState]],
        rows: Sequence[Row],
        pages: int,
    ) -> StepAnswers:
        """Compute what the last rows ask for."""
        held: dict[int, Stored] = {}
        for at, sequence in enumerate(accepted):
            want = drawing_want(rows[at].wants)
            if isinstance(want, Draw) and penalises(want):
                known = [*sequence.state.tokens, *sequence.tokens[:-1]]
                held[at] = sequence.state.log.extended(known, self.owner.device)
        width = shape.run.plan.graph.values[LOGITS].shape[-1]
        asked, arrays = ask(rows, held, width)
        answers = shape.answers.get(asked)
        if answers is None:
            answers = shape.answers[asked] = KeptAnswers(shape.tail, asked, arrays, pages)
            answers.keep(shape.run.there["places"], self.drawn)
            answers.launch()
        else:
            answers.fill(arrays)
            answers.replay()
        return answers


class KeptAnswers(StepAnswers):
    """Answers of last rows, which are kept for the next batch where the batch has these rows."""

    def keep(self, places: torch.Tensor, drawn: torch.Tensor) -> None:
        """Let tokens be kept at these places."""
        self._places, self._kept = places, drawn

    def launch(self) -> None:
        """Compute all answers, and keep the tokens."""
        super().launch()
        self._kept[self._places] = self.run.drawn
