"""Drives that rewind, fork or move a sequence, and must end like a straight run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cortiq.backend import Executable, State, Want
from cortiq_conformance.drives import ProgramUnderTest, SequenceInput, SequenceOutcome, advance

Brought = list[Mapping[Want, Any]]


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
                state = executable.open(len(feed) + self.ahead)
                rows = self._advanced(executable, state, feed, (0, self.at), wants)
                answers.append(
                    SequenceOutcome(rows + self._rest(bench, executable, state, feed, wants))
                )
        return answers

    def _rest(
        self,
        bench: ProgramUnderTest,
        executable: Executable,
        state: State,
        feed: SequenceInput,
        wants: Sequence[Want],
    ) -> Brought:
        raise NotImplementedError

    def _advanced(
        self,
        executable: Executable,
        state: State,
        feed: SequenceInput,
        span: tuple[int, int],
        wants: Sequence[Want],
    ) -> Brought:
        """Feed rows in chunks."""
        (start, stop), size = span, self.chunk or max(1, span[1] - span[0])
        cuts = ((first, min(first + size, stop)) for first in range(start, stop, size))
        return [row for cut in cuts for row in advance(executable, state, feed, cut, wants)]

    def _end(self, feed: SequenceInput) -> int:
        return min(self.at + self.ahead, len(feed))


class RewindDrive(_Cut):
    """Advances with other rows, rewinds, and takes the right ones."""

    def _rest(
        self,
        bench: ProgramUnderTest,
        executable: Executable,
        state: State,
        feed: SequenceInput,
        wants: Sequence[Want],
    ) -> Brought:
        advance(executable, state, feed.detour(), (self.at, self._end(feed)), wants)
        reached = state.rewind(self.at, feed.entry)
        if reached < self.at:
            advance(executable, state, feed, (reached, self.at), wants)
        return self._advanced(executable, state, feed, (self.at, len(feed)), wants)


class SnapshotDrive(_Cut):
    """Takes a snapshot, advances with other rows, restores."""

    def _rest(
        self,
        bench: ProgramUnderTest,
        executable: Executable,
        state: State,
        feed: SequenceInput,
        wants: Sequence[Want],
    ) -> Brought:
        snapshot = state.snapshot()
        advance(executable, state, feed.detour(), (self.at, self._end(feed)), wants)
        state.restore(snapshot)
        return self._advanced(executable, state, feed, (self.at, len(feed)), wants)


class ForkDrive(_Cut):
    """Forks; the parent advances with other rows, then the fork with the right ones.

    The parent then continues too: a fork that shares its parent's tail spoils one of them.
    """

    def _rest(
        self,
        bench: ProgramUnderTest,
        executable: Executable,
        state: State,
        feed: SequenceInput,
        wants: Sequence[Want],
    ) -> Brought:
        child, other = state.fork(), state.fork()
        end = self._end(feed)
        advance(executable, state, feed.detour(), (self.at, end), wants)
        first = self._advanced(executable, child, feed, (self.at, end), wants)
        advance(executable, other, feed.detour(), (self.at, end), wants)
        return first + self._advanced(executable, child, feed, (end, len(feed)), wants)


class ExportDrive(_Cut):
    """Moves the sequence in the canonical layout to an executable with another page size."""

    def _rest(
        self,
        bench: ProgramUnderTest,
        executable: Executable,
        state: State,
        feed: SequenceInput,
        wants: Sequence[Want],
    ) -> Brought:
        exported = state.export()
        with bench.compiled(page_rows=16) as elsewhere:
            moved = elsewhere.import_(exported, len(feed))
            return self._advanced(elsewhere, moved, feed, (self.at, len(feed)), wants)
