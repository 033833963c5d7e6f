"""Pieces of prompts beside decoding rows, as captured graphs.

Launching some 330 kernels one by one takes the host 20 to 40 ms. A shape is how many rows and
sequences there are, filled up by ones that nobody reads, and how far they look back; one of many
rows is captured when it comes again. Each sequence's last row has logits, whether it wants any or
not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from cortiq.backend import Batch, Draw, Row, Want
from cortiq.backend.answers import drawing_want
from cortiq.backend.executable import Accepted, Brought
from cortiq.backend.requests import penalises
from cortiq_triton.asking import Askings
from cortiq_triton.draw_numbers import Stored
from cortiq_triton.language import pow2
from cortiq_triton.mixed_run import MixedRows, MixedRun, Tail, filled_up
from cortiq_triton.plan import Plan
from cortiq_triton.rowset import RowBuffer
from cortiq_triton.shapes import FEW_ROWS, Scratch, ShapeCache, logits_bytes, padded_rows
from cortiq_triton.state import TritonState
from cortiq_triton.step_answers import LOGITS, Asked, StepAnswers, answerable
from cortiq_triton.under_way import Owner

MOST_ROWS = 2048
MOST_MET = 256
"""Shapes that are remembered as met once."""
STREAMED = 16
"""Rows of a piece that attention streams over, which a batch needs one of."""
FEWEST_PAGES = 16
SILENT: Brought = MappingProxyType({})
"""What a row brings that wants nothing."""


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
        faulty = bool(flags.any())
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
            silent: list[Brought] = [SILENT] * (len(sequence.indices) - 1)
            failed = fault or (faulty and flags[start:stop].any())
            found.append(None if failed else [*silent, brought])
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
        sources: Sequence[Sequence[int]],
    ) -> MixedFetched | None:
        """Launch a batch; None if it is of another kind, or a large one of a new shape."""
        if not self._suits(plan, batch, accepted):
            return None
        last = [batch.rows[sequence.indices[-1]] for sequence in accepted]
        asking = any(row.wants for row in last)
        size = padded_rows(sum(len(sequence.tokens) for sequence in accepted), len(accepted))
        pages = max(FEWEST_PAGES, pow2(max(len(s.state.page_addresses) for s in accepted)))
        key = (batch.entry, *size, pages, asking)
        if self._is_rare(key, size[0]):
            return None
        if self._filler is None:
            self._filler = self.owner.scratch()
        rows = filled_up(batch, accepted, sources, size, self._filler, len(self.drawn) - 1)
        shape, is_new = self._shape(plan, key, rows)
        answers = self._answer(shape, accepted, last, size[1], pages) if asking else None
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

    def _is_rare(self, key: tuple[Any, ...], rows: int) -> bool:
        """Whether a shape of many rows is met for the first time: the device takes longer than its
        launches, and it may not come again.
        """
        if rows <= FEW_ROWS or key in self.shapes or key in self._met:
            return False
        if len(self._met) >= MOST_MET:
            self._met.clear()
        self._met.add(key)
        return True

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

    def _shape(self, plan: Plan, key: tuple[Any, ...], rows: MixedRows) -> tuple[MixedShape, bool]:
        """Compute the rows; return their shape, and whether that is new."""
        version = self.owner.shared.angles.version
        if self._version != version:  # tables of angles were made anew: old graphs read old ones
            self.shapes.clear()
            self._version = version
        entry, *_, pages, asking = key
        shape = self.shapes.use(key)
        if shape is not None:
            shape.run.refill(shape.buffer, rows, pages)
            shape.replay()
            return shape, False
        run = MixedRun(plan, entry, rows, asking, self.owner.shared, self.drawn)
        buffer = RowBuffer(self.owner.device)
        run.place(buffer, rows.sources, pages)
        shape = MixedShape(run, buffer, run.launch, Tail(run))
        self.shapes.keep(key, shape, asking * len(rows.tail) * logits_bytes(plan))
        run.launch()
        return shape, True

    def _answer(
        self,
        shape: MixedShape,
        accepted: Sequence[Accepted[TritonState]],
        last: Sequence[Row],
        count: int,
        pages: int,
    ) -> StepAnswers:
        """Compute what the last rows ask for, of as many as the shape has sequences."""
        held: dict[int, Stored] = {}
        for at, sequence in enumerate(accepted):
            want = drawing_want(last[at].wants)
            if isinstance(want, Draw) and penalises(want):
                known = [*sequence.state.tokens, *sequence.tokens[:-1]]
                held[at] = sequence.state.log.extended(known, self.owner.device)
        extra = count - len(last)
        wants = [*(row.wants for row in last), *[()] * extra]
        positions = [*(row.position for row in last), *[0] * extra]
        asking = self._askings.of(shape.run.plan, wants, positions, held)
        asked, arrays = asking.asked, asking.arrays(positions, held)
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
