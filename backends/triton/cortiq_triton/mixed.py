"""Pieces of prompts beside decoding rows, and rounds that verify drafts, as captured graphs.

Launching some 330 kernels one by one takes the host 20 to 40 ms. A shape is how many rows and
sequences there are, filled up by ones that nobody reads, and how far they look back; one of many
rows is captured when it comes again, as is one of rounds. Each sequence's last row has logits, and
of rounds every row, whether it wants any or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from cortiq.backend import Argmax, Batch, Draw, Named, Row, Want
from cortiq.backend.answers import drawing_want
from cortiq.backend.columns import NOTHING, Brought
from cortiq.backend.executable import Accepted
from cortiq.backend.requests import penalises
from cortiq.backend.row_runs import RowRuns, asking_rows, supplies
from cortiq_triton.asking import Askings
from cortiq_triton.draw_numbers import Stored
from cortiq_triton.fetched import copied_to_host
from cortiq_triton.given_rows import accepted_inputs, given_arrays, given_names
from cortiq_triton.mixed_run import MixedRows, MixedRun, Tail, filled_up
from cortiq_triton.plan import Plan
from cortiq_triton.rowset import RowBuffer
from cortiq_triton.shapes import (
    FEW_ROWS,
    MixedSize,
    Scratch,
    ShapeCache,
    logits_bytes,
    mixed_size,
    table_width,
)
from cortiq_triton.state import TritonState
from cortiq_triton.step_answers import LOGITS, Asked, StepAnswers, answerable, names_of
from cortiq_triton.under_way import Owner

MOST_ROWS, MOST_EACH = 2048, 256
"""Rows of a batch of which last ones, or all, want something."""
MOST_MET = 256
"""Shapes that are remembered as met once."""
STREAMED = 16
"""Rows of a piece that attention streams over, which a batch needs one of."""
"""Answers of a row that wants nothing."""


@dataclass(eq=False)
class MixedShape:
    """Run, buffers and graphs that batches of one shape share.

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
    """Answers of a mixed batch's rows on their way to the host, as `answers.Fetched`.

    Parameters
    ----------
    wants : of the rows that have logits: all, if `each`, or the last of each sequence.
    """

    def __init__(
        self,
        accepted: Sequence[Accepted[TritonState]],
        wants: Sequence[tuple[Want, ...]],
        each: bool,
        run: MixedRun,
        answers: StepAnswers | None,
    ) -> None:
        self._accepted, self._wants, self._answers, self._each = accepted, wants, answers, each
        self._shared, self._flags = run.shared, copied_to_host(run.agreed)
        self._packed = None if answers is None else copied_to_host(answers.packed)
        self._event = None
        if self._flags.is_pinned():
            self._event = torch.cuda.Event()
            self._event.record()
        pairs = zip(_asking(accepted, each), wants, strict=True)
        self.drawing = frozenset(at for at, mine in pairs if drawing_want(mine) is not None)

    def read(self) -> list[Sequence[Brought] | None]:
        """Wait; return what each sequence brings, None for one with a fault."""
        self._shared.wait(self._event)
        flags, count = self._flags.numpy() != 0, len(self._wants)
        faulty = bool(flags.any())
        answers: Sequence[Brought] = [NOTHING] * count
        late = [False] * count
        if self._packed is not None and self._answers is not None:
            words = self._packed[:count].numpy()
            answers = self._answers.read(words, self._wants)
            flagged = zip(self._wants, words[:, 0].tolist(), strict=True)
            late = [bool(mine and flag) for mine, flag in flagged]
        found: list[Sequence[Brought] | None] = []
        start = first = 0
        for sequence in self._accepted:
            stop = start + len(sequence.indices)
            end = stop if self._each else first + 1
            silent: list[Brought] = [NOTHING] * (stop - start - (end - first))
            failed = any(late[first:end]) or (faulty and flags[start:stop].any())
            found.append(None if failed else [*silent, *answers[first:end]])
            start, first = stop, end
        return found


def _asking(accepted: Sequence[Accepted[Any]], each: bool) -> list[int]:
    """Places in the batch of the rows that have logits."""
    if each:
        return [index for sequence in accepted for index in sequence.indices]
    return [sequence.indices[-1] for sequence in accepted]


class Mixed:
    """Captured mixed batches of an executable.

    Parameters
    ----------
    drawn : int32 on the device, what rows of the last batch drew; its last place is nobody's.
    captured : makes a graph of launches, or gives them back where that fails.
    askings : what rows ask for, as steps know it.
    """

    def __init__(
        self,
        owner: Owner,
        drawn: torch.Tensor,
        captured: Callable[[Callable[[], None]], Callable[[], None]],
        askings: Askings,
    ) -> None:
        self.owner, self.drawn, self._captured = owner, drawn, captured
        self.shapes = ShapeCache[MixedShape](owner.device)
        self._askings = askings
        self._version = 0
        self._met: set[tuple[Any, ...]] = set()
        self._filler: Scratch | None = None

    def launch(
        self,
        plan: Plan,
        batch: Batch,
        accepted: Sequence[Accepted[TritonState]],
        sources: Sequence[np.ndarray],
    ) -> MixedFetched | None:
        """Launch a batch; None if it is of another kind, or of a shape that has to come again."""
        each = max(len(sequence.indices) for sequence in accepted) < STREAMED
        if not self._suits(plan, batch, accepted, each):
            return None
        inputs = accepted_inputs(batch, accepted)
        supplied = given_names(inputs, plan)
        if supplied is None:
            return None
        asking = [batch.rows[index] for index in _asking(accepted, each)]
        size = mixed_size([len(sequence.tokens) for sequence in accepted], each)
        pages = table_width(sequence.state for sequence in accepted)
        names = next((names_of(row.wants) for row in asking if row.wants), ())
        given = given_arrays(inputs, plan, supplied, size.rows)
        lengths = tuple((name, len(there)) for name, there in given.items())
        key = (batch.entry, size, lengths, names, pages, any(row.wants for row in asking))
        if self._is_rare(key, size):
            return None
        if self._filler is None:
            self._filler = self.owner.scratch()
        dummy = len(self.drawn) - 1
        rows = filled_up(batch, accepted, sources, size, self._filler, dummy, given, supplied)
        shape, is_new = self._shape(plan, key, rows)
        answers = None
        if key[-1]:
            held = self._histories(accepted, asking, each)
            answers = self._answer(shape, asking, held, len(rows.tail), pages)
        wants = [row.wants for row in asking]
        fetched = MixedFetched(accepted, wants, each, shape.run, answers)
        if is_new:  # names other memory, in which nothing is computed yet
            shape.replay = self._captured(shape.run.launch)
        if answers is not None and (is_new or answers.replay == answers.launch):
            answers.replay = self._captured(answers.launch)
        return fetched

    def _is_rare(self, key: tuple[Any, ...], size: MixedSize) -> bool:
        """Whether a shape of many rows, or of rows that all have logits, is met for the first time:
        it may not come again, and a graph takes as long as several launches. Peers find the same,
        whatever shapes each of them has room for.
        """
        if not (size.each or size.rows > FEW_ROWS) or key in self._met:
            return False
        if len(self._met) >= MOST_MET:
            self._met.clear()
        self._met.add(key)
        return True

    def _suits(
        self, plan: Plan, batch: Batch, accepted: Sequence[Accepted[TritonState]], each: bool
    ) -> bool:
        """Whether rows want something of their logits, and the same values by name, last rows
        unless `each` may, and there are not too many.
        """
        most = MOST_EACH if each else MOST_ROWS
        if len(batch.rows) > most or (isinstance(batch.rows, RowRuns) and supplies(batch.rows)):
            return False
        wanting = set(asking_rows(batch.rows))
        if sum(len(sequence.indices) for sequence in accepted) < len(batch.rows):
            wanting &= {index for sequence in accepted for index in sequence.indices}
        if not wanting <= set(_asking(accepted, each)):
            return False
        there = LOGITS in plan.graph.values
        rows = [batch.rows[at] for at in wanting]
        if not all(there and answerable(row) for row in rows):
            return False
        named, values = {names_of(row.wants) for row in rows}, plan.graph.values
        floats = all(n in values and values[n].dtype == "f32" for names in named for n in names)
        return len(named) < 2 and floats

    def _histories(
        self, accepted: Sequence[Accepted[TritonState]], asking: Sequence[Row], each: bool
    ) -> dict[int, Stored]:
        """Ids on the device for the rows whose draws look at them."""
        held: dict[int, Stored] = {}
        first = 0
        for sequence in accepted:
            count = len(sequence.tokens) if each else 1
            for at in range(first, first + count):
                want = drawing_want(asking[at].wants)
                if isinstance(want, Draw) and penalises(want):
                    known = [*sequence.state.tokens, *sequence.tokens[:-1]]
                    address, length = sequence.state.log.extended(known, self.owner.device)
                    held[at] = Stored(address, length - (first + count - 1 - at))
            first += count
        return held

    def _shape(self, plan: Plan, key: tuple[Any, ...], rows: MixedRows) -> tuple[MixedShape, bool]:
        """Compute the rows; return their shape, and whether that is new."""
        version = self.owner.shared.angles.version
        if self._version != version:  # tables of angles were made anew: old graphs read old ones
            self.shapes.clear()
            self._version = version
        entry, _, _, names, pages, asking = key
        shape = self.shapes.use(key)
        if shape is not None:
            shape.run.refill(shape.buffer, rows, pages)
            shape.replay()
            return shape, False
        wants: tuple[Want, ...] = (Argmax(), *map(Named, names)) if asking else ()
        run = MixedRun(plan, entry, rows, wants, self.owner.shared, self.drawn)
        buffer = RowBuffer(self.owner.device)
        run.place(buffer, rows.sources, pages)
        shape = MixedShape(run, buffer, run.launch, Tail(run, names))
        self.shapes.keep(key, shape, asking * len(rows.tail) * logits_bytes(plan))
        run.launch()
        return shape, True

    def _answer(
        self,
        shape: MixedShape,
        asking: Sequence[Row],
        held: dict[int, Stored],
        count: int,
        pages: int,
    ) -> StepAnswers:
        """Compute what rows ask for, filled up to as many as the shape answers."""
        extra = count - len(asking)
        wants = [*(row.wants for row in asking), *[()] * extra]
        positions = [*(row.position for row in asking), *[0] * extra]
        known = self._askings.of(shape.run.plan, wants, positions, held)
        asked, arrays = known.asked, known.arrays(positions, held)
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
