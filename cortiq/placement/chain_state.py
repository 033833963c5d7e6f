"""A sequence spread over the parts of a chain: one state a part, all at the same length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from cortiq.backend import ExportedState, Snapshot, State
from cortiq.errors import BackendError, RequestError
from cortiq.ir import Program
from cortiq.placement.partition import GraphSegment


class Chain(Protocol):
    """The executable that a chain's states belong to."""

    @property
    def program(self) -> Program:
        """The program before it was cut."""
        ...

    def segments_of(self, entry: str) -> Sequence[GraphSegment]:
        """Return the segments of an entry graph, in order."""
        ...


def open_all(makers: Sequence[Callable[[], State]]) -> list[State]:
    """Open one state a part; all or none."""
    states: list[State] = []
    try:
        for make in makers:
            states.append(make())
    except BaseException:
        for state in states:
            state.release()
        raise
    return states


class ChainState:
    """One sequence of a chain; see `cortiq.backend.State`.

    A slot lives in the state of the part that writes it. Each call goes to every part and, within
    a part, to every segment of the entry graph.
    """

    def __init__(self, chain: Chain, states: Sequence[State], limit: int) -> None:
        self.chain, self.parts, self._limit = chain, list(states), limit
        self.alive = True

    @property
    def limit(self) -> int:
        """Most positions it may hold."""
        return self._limit

    def _segments(self, entry: str) -> Iterator[tuple[State, str]]:
        for segment in self.chain.segments_of(entry):
            yield self.parts[segment.part], segment.graph.name

    def lengths(self, entry: str) -> list[int]:
        """Return the rows that each segment of the entry graph has seen; equal between batches."""
        return [state.length(name) for state, name in self._segments(entry)]

    def length(self, entry: str = "trunk") -> int:
        """Return the number of rows that the entry graph has seen."""
        return min(self.lengths(entry))

    def reserve(self, rows: int) -> bool:
        """Make room for `rows` more rows in every part.

        Room that some parts found before another refused stays theirs; it is used when the
        sequence grows.
        """
        return all(state.reserve(rows) for state in self.parts)

    def rewind(self, length: int, entry: str = "trunk") -> int:
        """Drop the rows from `length` on in every part; return the length that all reached."""
        longest = self.length(entry)
        if not 0 <= length <= longest:
            raise RequestError(f"cannot rewind from {longest} rows to {length}")
        reached = length
        while True:
            lengths = [self._back(s, n, reached) for s, n in self._segments(entry)]
            if min(lengths) == reached:
                return reached
            reached = min(lengths)

    @staticmethod
    def _back(state: State, name: str, length: int) -> int:
        return state.rewind(length, name) if state.length(name) > length else length

    def clear(self) -> None:
        """Empty the sequence in every part."""
        for entry in self.chain.program.graphs:
            for state, name in self._segments(entry):
                if state.length(name) and state.rewind(0, name):
                    raise BackendError("a backend cannot rewind a sequence to its start")

    def undo(self, length: int, entry: str) -> bool:
        """Rewind to before an abandoned batch, or clear it; return whether it rewound."""
        if min(self.lengths(entry)) >= length and self.rewind(length, entry) == length:
            return True
        self.clear()
        return False

    def snapshot(self) -> Snapshot:
        """Copy the state of every part."""
        return [state.snapshot() for state in self.parts]

    def restore(self, snapshot: Snapshot) -> None:
        """Restore every part from a snapshot."""
        for state, copy in zip(self.parts, snapshot, strict=True):
            state.restore(copy)

    def fork(self, length: int | None = None) -> ChainState:
        """Fork the sequence, cut to `length` rows if given."""
        other = ChainState(self.chain, open_all([s.fork for s in self.parts]), self._limit)
        if length is not None:
            try:
                reached = other.rewind(length)
            except RequestError:
                other.release()
                raise
            if reached != length:
                other.release()
                raise RequestError(f"this sequence can be forked at its end, not at {length}")
        return other

    def export(self) -> ExportedState:
        """Export the sequence in the canonical layout: that of the program before it was cut."""
        exported = [state.export() for state in self.parts]
        return ExportedState(
            lengths={entry: self.length(entry) for entry in self.chain.program.graphs},
            tokens=np.array(exported[0].tokens, np.int32),
            slots={name: rows for e in exported for name, rows in e.slots.items()},
        )

    def release(self) -> None:
        """Release the states of all parts."""
        for state in self.parts:
            state.release()
        self.alive = False


def split_exported(
    exported: ExportedState, entries: Sequence[Mapping[str, str]], slots: Sequence[set[str]]
) -> list[ExportedState]:
    """Split an exported sequence into the share of each part of a chain.

    Parameters
    ----------
    entries : per part, the graph of the program that each of the part's entry graphs is cut from.
    slots : per part, the names of its slots.
    """
    known = set().union(*slots)
    graphs = {graph for mine in entries for graph in mine.values()}
    if set(exported.slots) != known or set(exported.lengths) != graphs:
        raise RequestError("the exported state is of another model: it has other slots")
    return [
        ExportedState(
            {name: exported.lengths[graph] for name, graph in mine.items()},
            exported.tokens,
            {name: exported.slots[name] for name in names},
        )
        for mine, names in zip(entries, slots, strict=True)
    ]
