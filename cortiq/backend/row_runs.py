"""Rows of batches as runs: neighbouring positions of a sequence, so that a prompt's thousands of
rows are few objects to make, to check and to read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple, overload

from cortiq.backend.batch import Drawn, Row, Want
from cortiq.backend.state import State


class RowRun(NamedTuple):
    """Neighbouring rows of one sequence, which supply no values.

    Attributes
    ----------
    position : of the first row.
    tokens : ids of the rows, or tokens drawn in the previous batch.
    wants : of each of the last rows; the rows before those want nothing.
    """

    state: State
    position: int
    tokens: Sequence[int | Drawn]
    wants: Sequence[tuple[Want, ...]] = ()

    @property
    def silent(self) -> int:
        """Number of the first rows, which want nothing."""
        return len(self.tokens) - len(self.wants)

    def row(self, place: int) -> Row:
        """Return one of its rows, from 0 on."""
        wants = self.wants[place - self.silent] if place >= self.silent else ()
        return Row(self.state, self.position + place, self.tokens[place], wants)

    def cut(self, start: int, stop: int) -> RowRun:
        """Return some of its rows."""
        first, last = (max(0, at - self.silent) for at in (start, stop))
        return RowRun(
            self.state, self.position + start, self.tokens[start:stop], self.wants[first:last]
        )


class RowRuns(Sequence[Row]):
    """A batch's rows, made when somebody looks at one.

    Attributes
    ----------
    runs : those with rows. starts : index of each one's first row.
    """

    def __init__(self, runs: Sequence[RowRun]) -> None:
        self.runs = [run for run in runs if run.tokens]
        ends = list(accumulate(len(run.tokens) for run in self.runs))
        self.starts = [0, *ends][: len(ends)]
        self._count = ends[-1] if ends else 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Row]:
        return (run.row(place) for run in self.runs for place in range(len(run.tokens)))

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        places = range(self._count)[index]
        if isinstance(places, int):
            number = bisect_right(self.starts, places) - 1
            return self.runs[number].row(places - self.starts[number])
        if places.step != 1:
            return [self[place] for place in places]
        if not places:
            return RowRuns([])
        # A batch is looked at sequence by sequence, so a slice must not walk over all runs.
        first = bisect_right(self.starts, places.start) - 1
        last = bisect_left(self.starts, places.stop)
        return RowRuns(
            [
                self.runs[number].cut(
                    max(0, places.start - self.starts[number]), places.stop - self.starts[number]
                )
                for number in range(first, last)
            ]
        )


def asking_rows(rows: Sequence[Row]) -> list[int]:
    """Return the indices of the rows that want something."""
    if not isinstance(rows, RowRuns):
        return [index for index, row in enumerate(rows) if row.wants]
    return [
        start + run.silent + place
        for start, run in zip(rows.starts, rows.runs, strict=True)
        for place, wants in enumerate(run.wants)
        if wants
    ]


def known_ids(rows: Sequence[Row]) -> list[int] | None:
    """Return the ids of rows that are runs; None if one is drawn in the batch before, or is none.

    Others are looked at one by one (`admission.token_of`).
    """
    if not isinstance(rows, RowRuns):
        return None
    ids: list[Any] = [*chain.from_iterable(run.tokens for run in rows.runs)]
    return ids if set(map(type, ids)) <= {int} else None


def supplies(rows: Sequence[Row]) -> bool:
    """Return whether a row supplies values."""
    return not isinstance(rows, RowRuns) and any(row.inputs for row in rows)


def answered_rows(rows: Sequence[Row]) -> list[tuple[int, State, tuple[Want, ...]]]:
    """Return index, state and wants of the rows that want something, and of a row of each other
    state.
    """
    if not isinstance(rows, RowRuns):
        return [(index, row.state, row.wants) for index, row in enumerate(rows)]
    return [
        (start + run.silent + place if run.wants else start, run.state, wants)
        for start, run in zip(rows.starts, rows.runs, strict=True)
        for place, wants in enumerate(run.wants or [()])
    ]
