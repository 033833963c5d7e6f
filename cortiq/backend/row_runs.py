"""Rows of batches as runs: neighbouring positions of a sequence, so that a prompt's thousands of
rows are few objects to make, to check and to read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain, groupby
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from cortiq.backend.batch import NO_INPUTS, Drawn, Row, Want
from cortiq.backend.held_rows import joined
from cortiq.backend.state import State


class RowRun(NamedTuple):
    """Neighbouring rows of one sequence.

    Attributes
    ----------
    position : of the first row.
    tokens : ids of the rows, or tokens drawn in the previous batch.
    wants : of each of the last rows; the rows before those want nothing.
    inputs : what the rows supply, by name: an array [rows, ...] each, or values that the
        executable holds; no quantised rows.
    """

    state: State
    position: int
    tokens: Sequence[int | Drawn]
    wants: Sequence[tuple[Want, ...]] = ()
    inputs: Mapping[str, npt.NDArray[Any]] = NO_INPUTS

    @property
    def silent(self) -> int:
        """Number of the first rows, which want nothing."""
        return len(self.tokens) - len(self.wants)

    def row(self, place: int) -> Row:
        """Return one of its rows, from 0 on."""
        wants = self.wants[place - self.silent] if place >= self.silent else ()
        given = self.inputs
        if given:
            given = {name: array[place] for name, array in given.items()}
        return Row(self.state, self.position + place, self.tokens[place], wants, given)

    def cut(self, start: int, stop: int) -> RowRun:
        """Return some of its rows."""
        if start == 0 and stop >= len(self.tokens):
            return self
        first, last = (max(0, at - self.silent) for at in (start, stop))
        given = self.inputs
        if given:
            given = {name: array[start:stop] for name, array in given.items()}
        return RowRun(
            self.state,
            self.position + start,
            self.tokens[start:stop],
            self.wants[first:last],
            given,
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
    return any(row.inputs for row in runs_or_rows(rows))


def supplied_names(rows: Sequence[Row]) -> frozenset[str]:
    """Return the names of all values that rows supply."""
    return frozenset(n for row in runs_or_rows(rows) if row.inputs for n in row.inputs)


def supplied_numbers(rows: Sequence[Row], name: str) -> npt.NDArray[np.int64]:
    """Return the whole numbers that every row supplies for a value, [rows, ...]."""
    given = [row.inputs[name] for row in runs_or_rows(rows)]
    return np.asarray(joined(given) if isinstance(rows, RowRuns) else given, np.int64)


def positions_of(rows: Sequence[Row]) -> npt.NDArray[np.int64]:
    """Return the position of each row."""
    if not isinstance(rows, RowRuns):
        return np.array([row.position for row in rows], np.int64)
    number, counts = np.arange(len(rows)), [len(run.tokens) for run in rows.runs]
    ahead = [run.position - at for at, run in zip(rows.starts, rows.runs, strict=True)]
    return number + np.repeat(np.array(ahead, np.int64), counts)


def runs_or_rows(rows: Sequence[Row]) -> Sequence[RowRun | Row]:
    """Return the runs of a batch's rows; the rows where they are none."""
    return rows.runs if isinstance(rows, RowRuns) else rows


def selected_rows(rows: Sequence[Row], parts: Sequence[range]) -> Sequence[Row]:
    """Return the rows of some ranges, in the order of these."""
    if not isinstance(rows, RowRuns):
        return [rows[at] for part in parts for at in part]
    if [at for part in parts for at in (part.start, part.stop)] == [0, len(rows)]:
        return rows
    cuts: list[Any] = [rows[part.start : part.stop] for part in parts]
    return RowRuns([run for cut in cuts for run in cut.runs])


def stretches_of(rows: Sequence[Row]) -> list[tuple[range, State, tuple[Want, ...]]]:
    """List stretches of neighbouring rows of a sequence that have the same wants, with both."""
    if not isinstance(rows, RowRuns):
        return [(range(at, at + 1), row.state, row.wants) for at, row in enumerate(rows)]
    found: list[tuple[range, State, tuple[Want, ...]]] = []
    for start, run in zip(rows.starts, rows.runs, strict=True):
        at = start + run.silent
        if at > start:
            found.append((range(start, at), run.state, ()))
        count = len(run.wants)
        if count and (count == 1 or run.wants.count(run.wants[0]) == count):
            found.append((range(at, at + count), run.state, run.wants[0]))
            continue  # a tower's thousands of rows
        for _, group in groupby(run.wants, id):
            alike = [*group]
            found.append((range(at, at + len(alike)), run.state, alike[0]))
            at += len(alike)
    return found
