"""A run of pieces of prompts beside decoding rows, filled up to a captured shape's size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from cortiq.backend import Batch, Row, Want
from cortiq.backend.executable import Accepted
from cortiq.backend.walk import Group, Segment
from cortiq_triton.call import Shared
from cortiq_triton.language import ceil_div
from cortiq_triton.plan import Plan
from cortiq_triton.rowset import Ids, RowBuffer, RowSet, arrays, uploaded
from cortiq_triton.run import Run
from cortiq_triton.shapes import MixedSize, Scratch
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


class MixedRows(NamedTuple):
    """The rows of a mixed batch on the host, filled up to a shape's size.

    Attributes
    ----------
    segments : of all sequences, those that fill up last; they may have no rows.
    tail : the rows that have logits: all, or the last of each sequence; row 0 for one without rows.
    places : where in the caller's batch the tail's rows are; DUMMY for those that want nothing.
    given : what rows supply; see `given_rows`. names : of that.
    """

    segments: Sequence[Segment[Any]]
    tokens: np.ndarray
    sources: np.ndarray
    tail: Sequence[int]
    places: np.ndarray
    given: Mapping[str, np.ndarray]
    names: Sequence[str]

    def arrays(self, pages: int, groups: int) -> dict[str, np.ndarray]:
        """Return them as kernels read them, with the tables of so many groups of slots."""
        made = arrays(self.segments, self.tokens, self.sources, self.tail, pages, groups)
        return {**made, "places": self.places, **self.given}


def filled_up(
    batch: Batch,
    accepted: Sequence[Accepted[Any]],
    sources: Sequence[np.ndarray],
    size: MixedSize,
    scratch: Scratch,
    dummy: int,
    given: Mapping[str, np.ndarray],
    names: Sequence[str],
) -> MixedRows:
    """Fill a batch up with rows of sequences that nobody reads.

    Parameters
    ----------
    dummy : the place of a row that wants nothing. given, names : what rows supply.
    """
    segments: list[Segment[Any]] = []
    tokens, flat = np.zeros(size.rows, np.int32), np.full(size.rows, -1, np.int32)
    stop = 0
    for sequence, mine in zip(accepted, sources, strict=True):
        first, start, stop = batch.rows[sequence.indices.start].position, stop, stop + len(mine)
        tokens[start:stop], flat[start:stop] = sequence.tokens, mine
        positions = range(first, first + len(mine))
        segments.append(Segment(sequence.state, start, stop, positions))
    while len(segments) < size.sequences:
        start, stop = stop, min(stop + size.filling, size.rows)
        segments.append(Segment(scratch, start, stop, range(stop - start)))
    tail: Sequence[int] = range(size.rows)
    if size.each:
        asking = [index for sequence in accepted for index in sequence.indices]
    else:
        tail = [max(segment.start, segment.stop - 1) % size.rows for segment in segments]
        asking = [sequence.indices[-1] for sequence in accepted]
    places = np.full(len(tail), dummy, np.int64)
    places[: len(asking)] = [at if batch.rows[at].wants else dummy for at in asking]
    return MixedRows(segments, tokens, flat, tail, places, given, names)


class MixedRun(Run):
    """A run whose tail is every row, or the last row of each sequence, whether it wants anything or
    not.

    Attributes
    ----------
    mixed_rows : its rows. agreed : their flags, as all peers have them; once launched.
    """

    agreed: torch.Tensor

    def __init__(
        self, plan: Plan, entry: str, rows: MixedRows, wants: tuple[Want, ...], shared: Shared,
        drawn: torch.Tensor,
    ) -> None:  # fmt: skip
        batch, everyone = [], []
        for segment in rows.segments:
            if segment.positions:
                places = range(segment.start, segment.stop)
                ids = rows.tokens[segment.cut].tolist()
                everyone.append(Accepted(segment.state, places, ids))
                batch += [Row(segment.state, position, 0, ()) for position in segment.positions]
                batch[-1] = Row(segment.state, segment.positions[-1], 0, wants)
        super().__init__(plan, Batch(batch, entry), everyone, shared, drawn)
        self.mixed_rows, self.segments = rows, list(rows.segments)
        self.supplied = frozenset(rows.names)
        if wants:
            self.late = [self.late[0]] * len(rows.tail)
            self.tail_places = list(rows.tail)

    def parts(self, sources: Ids, pages: int) -> dict[str, np.ndarray]:
        """Row metadata as arrays, and the places of the rows that draw."""
        return self.mixed_rows.arrays(pages, self.shared.table_groups)

    def place(
        self, buffer: RowBuffer, sources: Ids = (), pages: int = 0, fixed: bool = True
    ) -> dict[str, Any]:
        """Upload row metadata, keep its places, and return it."""
        parts = super().place(buffer, sources, pages, fixed)
        whole, tail = self.row_sets
        padded = PaddedRows(**{n: getattr(whole, n) for n in FIELDS})
        every = isinstance(self.mixed_rows.tail, range)
        self.row_sets = padded, padded if every else tail
        return parts

    def refill(self, buffer: RowBuffer, rows: MixedRows, pages: int) -> None:
        """Upload other rows, to where those before were."""
        buffer.fill(rows.arrays(pages, self.shared.table_groups))
        whole = self.row_sets[0]
        assert isinstance(whole, PaddedRows)
        whole.refill(rows.segments)

    def launch(self) -> None:
        """Every step, with nothing of the host's."""
        self.tail_rows = self.there["tail"].long()
        super().launch()
        self.agreed = self.shared.peers.worst(self.all.faults)

    def start(self) -> None:
        """Make the groups of rows; the tail is one even where it has as many rows."""
        super().start()
        if self.tail is self.all and self.tail_places:
            self.tail = Group(self.tail_places, self.tail_rows, (), self.flags(len(self.tail_rows)))
            self.tail.values["position"] = self.row_sets[1].positions

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
    drawn : int32, a row's token. plan : of the run.
    """

    def __init__(self, run: MixedRun, names: Sequence[str] = ()) -> None:
        self.shared, self.plan, self._run, self._names = run.shared, run.plan, run, names
        self.drawn = torch.full(
            (len(run.tail_places),), -1, dtype=torch.int32, device=run.shared.device
        )

    @property
    def all(self) -> Group:
        """The rows, with their logits, the values that they name, and their own flags."""
        tail, everything = self._run.tail, self._run.all.values
        values = {LOGITS: tail.values[LOGITS]}
        for name in self._names:
            known = name in tail.values
            values[name] = tail.values[name] if known else everything[name][self._run.tail_rows]
        return Group(tail.places, None, (), tail.faults, values)

    @property
    def ids(self) -> torch.Tensor:
        """The rows' own ids."""
        return self._run.ids[self._run.tail_rows]
