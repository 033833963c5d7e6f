"""The sequences that a kernel's rows belong to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple

from cortiq.backend.batch import Batch
from cortiq.backend.executable import Accepted, S


class Segment(NamedTuple, Generic[S]):
    """Rows start…stop−1 of what a kernel is given are these positions of a sequence."""

    state: S
    start: int
    stop: int
    positions: Sequence[int]

    @property
    def position(self) -> int:
        """The first position; 0 of no rows."""
        return self.positions[0] if self.positions else 0

    @property
    def cut(self) -> slice:
        """Slice of the segment's rows."""
        return slice(self.start, self.stop)


def segments_of(batch: Batch, accepted: Sequence[Accepted[S]]) -> list[Segment[S]]:
    """Return the segments of the accepted sequences, one after the other."""
    found, start = [], 0
    for sequence in accepted:
        first = batch.rows[sequence.indices.start].position
        positions = range(first, first + len(sequence.indices))
        found.append(Segment(sequence.state, start, start + len(positions), positions))
        start += len(positions)
    return found


def restricted(segments: Sequence[Segment[S]], rows: Sequence[int]) -> list[Segment[S]]:
    """Return the segments of some of the rows, numbered among these."""
    found, start = [], 0
    for segment in segments:
        kept = [at for at in rows if segment.start <= at < segment.stop]
        if kept:
            positions = [segment.positions[at - segment.start] for at in kept]
            found.append(Segment(segment.state, start, start + len(kept), positions))
            start += len(kept)
    return found
