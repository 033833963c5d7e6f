"""A batch on its way through a compiled plan: its rows one after another, chunk by chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from cortiq.backend.answers import drawing_want
from cortiq.backend.batch import Batch, Draw, DrawnLogit, Row, Want
from cortiq.backend.columns import Brought, named_alike
from cortiq.backend.executable import Accepted
from cortiq.backend.requests import RequestPlan, penalises
from cortiq.backend.row_runs import selected_rows, stretches_of, supplied_numbers
from cortiq.backend.wants import drawable, value_of
from cortiq.numerics import sampling
from cortiq.numerics.contract import OutOfDomainError

Stretch = tuple[Any, int, int, int]
"""A sequence, its rows start…stop−1, and the first one's position."""
Integers = npt.NDArray[np.int64]


class FlatRows:
    """The rows of all accepted sequences, one after another.

    Attributes
    ----------
    tokens, positions : int32 [rows]. indices : of the rows in the batch.
    states : the sequences. owner : which of them each row belongs to.
    starts : first row of each sequence, and the number of rows.
    """

    def __init__(self, accepted: Sequence[Accepted[Any]], entry: str) -> None:
        self.states, self.entry = [sequence.state for sequence in accepted], entry
        self.indices = [index for sequence in accepted for index in sequence.indices]
        self.tokens = np.array([t for sequence in accepted for t in sequence.tokens], np.int32)
        counts = [len(sequence.indices) for sequence in accepted]
        lengths = [state.length(entry) for state in self.states]
        self.positions = np.concatenate(
            [
                np.arange(at, at + count, dtype=np.int32)
                for at, count in zip(lengths, counts, strict=True)
            ]
        )
        self.owner = np.repeat(np.arange(len(accepted)), counts)
        self.starts = np.cumsum([0, *counts])

    def stretches(self, rows: Integers) -> list[Stretch]:
        """Group ascending `rows` by neighbours of one sequence; places count from the first."""
        if len(rows) == 1:
            row = int(rows[0])
            return [(self.states[self.owner[row]], 0, 1, int(self.positions[row]))]
        owner = self.owner[rows]
        breaks = np.flatnonzero((np.diff(rows) != 1) | (np.diff(owner) != 0)) + 1
        edges = [0, *breaks.tolist(), len(rows)]
        return [
            (self.states[owner[start]], start, stop, int(self.positions[rows[start]]))
            for start, stop in pairwise(edges)
        ]

    def history(self, row: int) -> npt.NDArray[np.int32]:
        """Return every id the row's sequence was fed, up to and including the row."""
        number = int(self.owner[row])
        state, start = self.states[number], int(self.starts[number])
        before = state.tokens[: state.length(self.entry)]
        return np.concatenate([np.array(before, np.int32), self.tokens[start : row + 1]])


P = TypeVar("P", bound=RequestPlan[Any])


class FlatBatch(Generic[P]):
    """One batch; row numbers count in `flat`.

    Attributes
    ----------
    given : rows of the batch, or runs of them. request : what they ask for. compiled : what
        computes that.
    alike : what every row wants, where these are arrays of numbers by name and nothing else.
    failed : numbers of sequences with a fault. brought : by row.
    """

    def __init__(self, plan: P, batch: Batch, accepted: Sequence[Accepted[Any]]) -> None:
        self.plan, self.flat = plan, FlatRows(accepted, batch.entry)
        self.given = selected_rows(batch.rows, [s.indices for s in accepted])
        self.request = plan.request_of(self.given)
        self.compiled: Any = plan.compiled(self.request)
        wants = {wants for _, _, wants in stretches_of(self.given)}
        self.alike = named_alike(wants, plan.graph.values)
        self.failed: set[int] = set()
        self.brought: list[dict[Want, Any]] = [{} for _ in range(len(self.given))]

    @cached_property
    def rows(self) -> Sequence[Row]:
        """Every row as one of its own, made when somebody looks at one."""
        return [*self.given]

    def late_rows(self, rows: Integers) -> list[int]:
        """Return those of some rows for which the tail has to compute something."""
        late = self.compiled.late
        if not late:
            return []
        if self.alike:
            return rows.tolist() if any(value_of(want) in late for want in self.alike) else []
        asking = ((row, self.rows[row].wants) for row in rows.tolist())
        return [row for row, wants in asking if any(value_of(want) in late for want in wants)]

    def supplied_positions(self, rows: Integers) -> dict[str, Integers]:
        """Stack positions of other axes that ascending rows supply, by input: [rows, axes]."""
        first = int(rows[0])
        among = self.given[first : int(rows[-1]) + 1]
        names = self.plan.angles.supplied
        return {name: supplied_numbers(among, name)[rows - first] for name in names}

    def history(self, want: Draw, row: int) -> npt.NDArray[np.int32] | None:
        """Return the ids that a draw's penalties look at; None where there are no penalties."""
        if not penalises(want):
            return None
        if want.history is not None:
            return np.array(want.history, np.int32)
        return drawable(self.flat.history(row), self.plan.graph)

    def note_faults(
        self, flags: npt.NDArray[Any], rows: Integers, nodes: frozenset[str] | None = None
    ) -> None:
        """Let rows whose flag is set fail their sequence.

        Parameters
        ----------
        nodes : those that set the flags: rows that depend on none of them are not concerned; None
            for all.
        """
        for row in rows[flags[: len(rows)] != 0].tolist():
            if nodes is None or nodes & self.plan.needs(self.rows[row].wants):
                self.failed.add(int(self.flat.owner[row]))

    def by_row(self, name: str, row: int) -> np.int32:
        """Return a row's token or position."""
        return (self.flat.tokens if name == "token" else self.flat.positions)[row]

    def outcome(self) -> list[Sequence[Brought] | None]:
        """Return what the rows of each sequence bring, None for one with a fault.

        For a `DrawnLogit` a row has brought the logits.
        """
        for row, found in enumerate(self.brought):
            for want in found:
                if isinstance(want, DrawnLogit) and int(self.flat.owner[row]) not in self.failed:
                    self._finish_logit(want, row)
        spans = enumerate(pairwise(self.flat.starts.tolist()))
        brought: list[Mapping[Want, Any]] = [*self.brought]
        return [None if n in self.failed else brought[start:stop] for n, (start, stop) in spans]

    def _finish_logit(self, want: DrawnLogit, row: int) -> None:
        """Replace a row's logits by that of the token it drew, and their logsumexp."""
        found = self.brought[row]
        token = found[drawing_want(self.rows[row].wants)]  # type: ignore[index]
        try:
            found[want] = sampling.drawn_logit(found[want], token, want.scale)
        except OutOfDomainError:
            self.failed.add(int(self.flat.owner[row]))
