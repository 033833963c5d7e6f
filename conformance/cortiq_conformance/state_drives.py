"""Drives that rewind, fork or move a sequence, and must end like a straight run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cortiq.backend import Executable, State, Want
from cortiq_conformance.drives import ProgramUnderTest, SequenceInput, SequenceOutcome, advance

Brought = list[Mapping[Want, Any]]


@dataclass(frozen=True)
class _Sequence:
    """A sequence under test: program, executable, input, wants of its rows, rows at a time."""

    bench: ProgramUnderTest
    executable: Executable
    feed: SequenceInput
    wants: Sequence[Want]
    chunk: int = 0

    def advance(self, state: State, start: int, stop: int) -> Brought:
        """Feed a state the input's rows from `start` to before `stop`, `chunk` at a time."""
        size = self.chunk or max(1, stop - start)
        cuts = ((first, min(first + size, stop)) for first in range(start, stop, size))
        fed = (advance(self.executable, state, self.feed, cut, self.wants) for cut in cuts)
        return [row for rows in fed for row in rows]

    def digress(self, state: State, start: int, stop: int) -> None:
        """Feed a state other rows in their place."""
        advance(self.executable, state, self.feed.detour(), (start, stop), self.wants)


@dataclass(frozen=True)
class _Cut:
    """Runs each input to `at`, does the subclass's detour, and continues.

    Attributes
    ----------
    ahead : rows of the detour. chunk : rows at a time, before and after; 0: all at once.
    """

    at: int
    ahead: int = 16
    chunk: int = 0

    def run(
        self, bench: ProgramUnderTest, feeds: Sequence[SequenceInput], wants: Sequence[Want]
    ) -> list[SequenceOutcome]:
        """Run each sequence alone."""
        answers = []
        with bench.compiled() as executable:
            for feed in feeds:
                sequence = _Sequence(bench, executable, feed, wants, self.chunk)
                state = executable.open(len(feed) + self.ahead)
                rows = sequence.advance(state, 0, self.at)
                end, detour = len(feed), min(self.at + self.ahead, len(feed))
                answers.append(SequenceOutcome(rows + self._rest(sequence, state, detour, end)))
        return answers

    def _rest(self, sequence: _Sequence, state: State, detour: int, end: int) -> Brought:
        """Return the rows from `at` to before `end`, after a detour to before `detour`."""
        raise NotImplementedError


class RewindDrive(_Cut):
    """Advances with other rows, rewinds, and takes the right ones."""

    def _rest(self, sequence: _Sequence, state: State, detour: int, end: int) -> Brought:
        sequence.digress(state, self.at, detour)
        reached = state.rewind(self.at, sequence.feed.entry)
        if reached < self.at:
            sequence.advance(state, reached, self.at)
        return sequence.advance(state, self.at, end)


class SnapshotDrive(_Cut):
    """Takes a snapshot, advances with other rows, restores."""

    def _rest(self, sequence: _Sequence, state: State, detour: int, end: int) -> Brought:
        snapshot = state.snapshot()
        sequence.digress(state, self.at, detour)
        state.restore(snapshot)
        return sequence.advance(state, self.at, end)


class ForkDrive(_Cut):
    """Forks; the parent advances with other rows, then the fork with the right ones.

    The parent then continues too: a fork that shares its parent's tail spoils one of them.
    """

    def _rest(self, sequence: _Sequence, state: State, detour: int, end: int) -> Brought:
        child, other = state.fork(), state.fork()
        sequence.digress(state, self.at, detour)
        first = sequence.advance(child, self.at, detour)
        sequence.digress(other, self.at, detour)
        return first + sequence.advance(child, detour, end)


class ExportDrive(_Cut):
    """Moves the sequence in the canonical layout to an executable with another page size."""

    def _rest(self, sequence: _Sequence, state: State, detour: int, end: int) -> Brought:
        exported = state.export()
        with sequence.bench.compiled(page_rows=16) as elsewhere:
            moved = elsewhere.import_(exported, end)
            return advance(elsewhere, moved, sequence.feed, (self.at, end), sequence.wants)
