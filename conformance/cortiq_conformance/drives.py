"""Ways to run the same rows, none of which may change a bit: chunks and batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from cortiq.backend import Batch, Executable, Row, State, Status, Want
from cortiq.ir import Program
from cortiq.numerics.layouts import Weight
from cortiq_conformance.subject import Subject

STATUS_CODES = {Status.COMPLETED: 0, Status.DECLINED: 1, Status.FAILED: 2, Status.LOST: 3}


@dataclass(frozen=True)
class SequenceInput:
    """Input of one sequence: ids, and extra inputs with a row for each of them.

    Attributes
    ----------
    start : position of the first row.
    wants : what its rows want, where that is not what the other sequences' rows do.
    """

    tokens: np.ndarray
    inputs: Mapping[str, np.ndarray] = field(default_factory=dict)
    entry: str = "trunk"
    start: int = 0
    wants: tuple[Want, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, start: int, stop: int) -> SequenceInput:
        """Return rows start…stop−1."""
        inputs = {name: array[start:stop] for name, array in self.inputs.items()}
        return replace(
            self, tokens=self.tokens[start:stop], inputs=inputs, start=self.start + start
        )

    def detour(self) -> SequenceInput:
        """Return other rows of the same kind: these in reverse."""
        inputs = {name: array[::-1] for name, array in self.inputs.items()}
        return replace(self, tokens=self.tokens[::-1], inputs=inputs)


@dataclass
class SequenceOutcome:
    """Outcome of one sequence: its rows, or why there are none."""

    rows: list[Mapping[Want, Any]] = field(default_factory=list)
    status: int = 0
    extra: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass
class ProgramUnderTest:
    """A subject with a program to compile on it."""

    subject: Subject
    program: Program
    weights: Mapping[str, Weight]
    decomposed: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def compiled(self, **options: Any) -> Any:
        """Compile an executable, as a context manager."""
        chosen = {"threads": 1, **self.options, **options}
        return self.subject.compiled(
            self.program, self.weights, decomposed=self.decomposed, **chosen
        )


def rows_of(
    state: State, feed: SequenceInput, start: int, stop: int, wants: Sequence[Want]
) -> list[Row]:
    """Return rows start…stop−1 of an input."""
    return [
        Row(
            state, feed.start + i, int(feed.tokens[i]), feed.wants or tuple(wants),
            {name: array[i] for name, array in feed.inputs.items()},
        )
        for i in range(start, stop)
    ]  # fmt: skip


class StoppedError(Exception):
    """A sequence was declined or failed where it should have continued."""


def advance(
    executable: Executable,
    state: State,
    feed: SequenceInput,
    span: tuple[int, int],
    wants: Sequence[Want],
) -> list[Mapping[Want, Any]]:
    """Feed rows to a sequence alone and return what they brought."""
    batch = Batch(rows_of(state, feed, *span, wants), feed.entry)
    result = executable.forward(batch).result()
    outcome = result.outcomes[state]
    if outcome.status is not Status.COMPLETED:
        raise StoppedError(f"the sequence was {outcome.status.value}: {outcome.reason}")
    return list(result.rows)


class Drive(Protocol):
    """A way to run feeds."""

    def run(
        self, bench: ProgramUnderTest, feeds: Sequence[SequenceInput], wants: Sequence[Want]
    ) -> list[SequenceOutcome]:
        """Return an outcome for each input."""
        ...


@dataclass(frozen=True)
class ChunkedDrive:
    """Each sequence alone, so many rows at a time; 0: all at once."""

    rows: int = 0

    def run(
        self, bench: ProgramUnderTest, feeds: Sequence[SequenceInput], wants: Sequence[Want]
    ) -> list[SequenceOutcome]:
        """Run one sequence after the other."""
        with bench.compiled() as executable:
            return [self._one(executable, feed, wants) for feed in feeds]

    def _one(
        self, executable: Executable, feed: SequenceInput, wants: Sequence[Want]
    ) -> SequenceOutcome:
        state, answer = executable.open(len(feed)), SequenceOutcome()
        step = self.rows or len(feed)
        for start in range(0, len(feed), step):
            stop = min(start + step, len(feed))
            batch = Batch(rows_of(state, feed, start, stop, wants), feed.entry)
            result = executable.forward(batch).result()
            answer.status = STATUS_CODES[result.outcomes[state].status]
            if answer.status:
                break
            answer.rows += result.rows
        state.release()
        return answer


@dataclass(frozen=True)
class BatchedDrive:
    """All sequences in the same batches, `rows` rows of each at a time; 0: all of them."""

    rows: int = 0

    def run(
        self, bench: ProgramUnderTest, feeds: Sequence[SequenceInput], wants: Sequence[Want]
    ) -> list[SequenceOutcome]:
        """Run batches until the longest sequence has ended."""
        with bench.compiled() as executable:
            states = [executable.open(len(feed)) for feed in feeds]
            answers = [SequenceOutcome() for _ in feeds]
            self.advance_all(executable, states, feeds, wants, answers)
        return answers

    def advance_all(
        self,
        executable: Executable,
        states: Sequence[State],
        feeds: Sequence[SequenceInput],
        wants: Sequence[Want],
        answers: Sequence[SequenceOutcome],
    ) -> None:
        """Feed open sequences, and add what their rows bring to the answers."""
        longest = max(len(feed) for feed in feeds)
        step = self.rows or longest
        for start in range(0, longest, step):
            self._batch(executable, states, feeds, (start, start + step), answers, wants)

    def _batch(
        self,
        executable: Executable,
        states: Sequence[State],
        feeds: Sequence[SequenceInput],
        span: tuple[int, int],
        answers: Sequence[SequenceOutcome],
        wants: Sequence[Want],
    ) -> None:
        rows, owners = [], []
        for index, (state, feed) in enumerate(zip(states, feeds, strict=True)):
            stop = min(span[1], len(feed))
            if span[0] < stop and not answers[index].status:
                rows += rows_of(state, feed, span[0], stop, wants)
                owners += [index] * (stop - span[0])
        result = executable.forward(Batch(rows, feeds[0].entry)).result()
        for index in set(owners):
            answers[index].status = STATUS_CODES[result.outcomes[states[index]].status]
        for index, brought in zip(owners, result.rows, strict=True):
            if not answers[index].status:
                answers[index].rows.append(brought)
