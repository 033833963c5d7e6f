"""A run of pieces of prompts beside decoding rows, filled up to a captured shape's size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from cortiq.backend.walk import Group, Segment
from cortiq_triton.language import ceil_div
from cortiq_triton.rowset import RowBuffer, RowSet, uploaded
from cortiq_triton.run import Run
from cortiq_triton.step_answers import LOGITS


class PaddedRows(RowSet):
    """Rows whose groups fill up to a fixed number by empty ones, and can be made anew in place."""

    def blocks(self, rows: int) -> torch.Tensor:
        """Groups of at most so many rows of one sequence: int32 [n, 2] of first row and count."""
        if rows not in self._blocks:
            self._blocks[rows] = uploaded(self._groups(rows), self.device)
        return self._blocks[rows]

    def _groups(self, rows: int) -> np.ndarray:
        found = [
            (first, min(rows, segment.stop - first))
            for segment in self.segments
            for first in range(segment.start, segment.stop, rows)
        ]
        there = np.zeros((len(self.segments) + ceil_div(self.count, rows), 2), np.int32)
        there[: len(found)] = found
        return there

    def refill(self, segments: Sequence[Segment[Any]]) -> None:
        """Have the groups of other segments, where those before were."""
        self.segments = segments
        for rows, there in self._blocks.items():
            there.copy_(uploaded(self._groups(rows), self.device), non_blocking=True)


class MixedRun(Run):
    """A run whose tail is the last row of each sequence.

    Attributes
    ----------
    places : where in the batch of the caller the tail's rows are; DUMMY for what fills up.
    """

    places: np.ndarray

    def fill(self, buffer: RowBuffer, sources: Sequence[int], pages: int = 0) -> dict[str, Any]:
        """Upload row metadata, and the places of the rows that draw."""
        parts = self.parts(sources, pages) | {"places": self.places}
        buffer.fill(parts)
        return parts

    def place(
        self, buffer: RowBuffer, sources: Sequence[int] = (), pages: int = 0, fixed: bool = True
    ) -> dict[str, Any]:
        """Upload row metadata, keep its places, and return it."""
        parts = super().place(buffer, sources, pages, fixed)
        whole, tail = self.row_sets
        self.row_sets = PaddedRows(**{n: getattr(whole, n) for n in FIELDS}), tail
        return parts

    def launch(self) -> None:
        """Every step, with nothing of the host's."""
        self.tail_rows = self.there["tail"].long()
        super().launch()

    def flag(self, faults: Any, index: Any, found: Any, concerned: Any = True) -> None:
        """Keep the tail's flags apart: not every sequence wants its last row's logits."""


FIELDS = (
    "device", "segments", "positions", "owners", "table", "pages", "fixed", "starts", "stops",
    "last",
)  # fmt: skip
"""What a set of rows is made of."""


class Tail:
    """The last rows of a mixed run, as `StepAnswers` look at a run.

    Attributes
    ----------
    drawn : int32, a row's token.
    """

    def __init__(self, run: MixedRun) -> None:
        self.shared, self._run = run.shared, run
        self.drawn = torch.full((len(run.places),), -1, dtype=torch.int32, device=run.shared.device)

    @property
    def all(self) -> Group:
        """The rows, with their logits and their own flags."""
        tail = self._run.tail
        return Group(tail.places, None, (), tail.faults, {LOGITS: tail.values[LOGITS]})

    @property
    def ids(self) -> torch.Tensor:
        """The rows' own ids."""
        return self._run.ids[self._run.tail_rows]
