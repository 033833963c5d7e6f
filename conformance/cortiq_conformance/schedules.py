"""Ways to generate the same streams: chunked prompts, batches, detours, device-side chains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from cortiq.backend import Batch, Digest, Drawn, Executable, Row, State, Status, Ticket, Want
from cortiq_conformance.drives import ProgramUnderTest, StoppedError

Ids = Sequence[int] | np.ndarray

LOGITS = Digest("logits")
DETOUR_EVERY = 5
"""Steps between two detours."""
DETOUR = (1, 2, 3)
"""Ids of the rows that are fed and forgotten."""
CHAIN = 3
"""Steps under way at once when they are chained."""


@dataclass
class GeneratedStream:
    """Tokens, and the digest of the logits that each came from."""

    tokens: list[int] = field(default_factory=list)
    digests: list[tuple[int, ...]] = field(default_factory=list)

    def take(self, brought: Mapping[Want, Any], choose: Want) -> None:
        """Note a row's token."""
        self.tokens.append(int(brought[choose]))
        self.digests.append(tuple(int(word) for word in brought[LOGITS]))


class Schedule(Protocol):
    """A way to generate streams; `family` is the property that it tests."""

    @property
    def family(self) -> str:
        """The property that its cases test."""
        ...

    def run(
        self, bench: ProgramUnderTest, prompts: Sequence[np.ndarray], steps: int, choose: Want
    ) -> list[GeneratedStream]:
        """Generate a stream for each prompt."""
        ...


@dataclass
class RunningSequence:
    """A running sequence on an executable."""

    executable: Executable
    state: State
    ids: list[int] = field(default_factory=list)

    def feed(self, ids: Ids, wants: tuple[Want, ...] = ()) -> Mapping[Want, Any]:
        """Feed ids; return the last row's outputs."""
        result = self.executable.forward(Batch(self.rows(ids, wants))).result()
        outcome = result.outcomes[self.state]
        if outcome.status is not Status.COMPLETED:
            raise StoppedError(f"the sequence was {outcome.status.value}: {outcome.reason}")
        self.ids += [int(token) for token in ids]
        return result.rows[-1]

    def rows(self, ids: Ids, wants: tuple[Want, ...]) -> list[Row]:
        """Return rows for these ids; only the last one has wants."""
        start, last = len(self.ids), len(ids) - 1
        return [
            Row(self.state, start + i, int(token), wants if i == last else ())
            for i, token in enumerate(ids)
        ]


Move = Callable[[RunningSequence, ProgramUnderTest, ExitStack], None]
"""A detour after which the sequence must go on as if nothing had been."""


def rewound(running: RunningSequence, bench: ProgramUnderTest, stack: ExitStack) -> None:
    """Advance with other rows and rewind."""
    length, kept = len(running.ids), list(running.ids)
    running.feed(DETOUR)
    reached = running.state.rewind(length)
    running.ids = kept[:reached]
    if reached < length:
        running.feed(kept[reached:])


def restored(running: RunningSequence, bench: ProgramUnderTest, stack: ExitStack) -> None:
    """Take a snapshot, advance with other rows, restore."""
    kept, snapshot = list(running.ids), running.state.snapshot()
    running.feed(DETOUR)
    running.state.restore(snapshot)
    running.ids = kept


def forked(running: RunningSequence, bench: ProgramUnderTest, stack: ExitStack) -> None:
    """Fork, advance the parent with other rows, continue with the fork."""
    kept, child = list(running.ids), running.state.fork()
    running.feed(DETOUR)
    running.state, running.ids = child, kept


def exported(running: RunningSequence, bench: ProgramUnderTest, stack: ExitStack) -> None:
    """Move to an executable with another page size."""
    elsewhere = stack.enter_context(bench.compiled(page_rows=16))
    running.state = elsewhere.import_(running.state.export(), running.state.limit)
    running.executable = elsewhere


@dataclass(frozen=True)
class SequentialSchedule:
    """Runs one prompt after the other, its rows in chunks (0: all at once), with or without
    detours.
    """

    family: str
    chunk: int = 0
    move: Move | None = None
    every: int = DETOUR_EVERY

    def run(
        self, bench: ProgramUnderTest, prompts: Sequence[np.ndarray], steps: int, choose: Want
    ) -> list[GeneratedStream]:
        """Generate step by step, driven from the host."""
        with ExitStack() as stack:
            executable = stack.enter_context(bench.compiled())
            return [self._one(executable, p, steps, choose, bench, stack) for p in prompts]

    def _one(
        self,
        executable: Executable,
        prompt: np.ndarray,
        steps: int,
        choose: Want,
        bench: ProgramUnderTest,
        stack: ExitStack,
    ) -> GeneratedStream:
        limit = len(prompt) + steps + len(DETOUR)
        running, stream = RunningSequence(executable, executable.open(limit)), GeneratedStream()
        size, wants = self.chunk or len(prompt), (choose, LOGITS)
        for start in range(0, len(prompt), size):
            brought = running.feed(prompt[start : start + size], wants)
        stream.take(brought, choose)
        while len(stream.tokens) < steps:
            if self.move and len(stream.tokens) % self.every == 1:
                self.move(running, bench, stack)
            stream.take(running.feed(stream.tokens[-1:], wants), choose)
        running.state.release()
        return stream


@dataclass(frozen=True)
class StaggeredSchedule:
    """Runs all prompts in the same batches; each starts a step after the one before it."""

    family: str = "batch"
    chunk: int = 16

    def run(
        self, bench: ProgramUnderTest, prompts: Sequence[np.ndarray], steps: int, choose: Want
    ) -> list[GeneratedStream]:
        """Batch prompt chunks of some sequences with decode steps of others."""
        streams = [GeneratedStream() for _ in prompts]
        with bench.compiled() as executable:
            running = [
                RunningSequence(executable, executable.open(len(p) + steps)) for p in prompts
            ]
            step = 0
            while any(len(stream.tokens) < steps for stream in streams):
                batch: list[tuple[int, list[int]]] = []
                for index, stream in enumerate(streams):
                    if step >= index and len(stream.tokens) < steps:
                        batch.append((index, self._next(prompts[index], running[index], stream)))
                self._forward(executable, running, batch, streams, prompts, choose)
                step += 1
        return streams

    def _next(
        self, prompt: np.ndarray, running: RunningSequence, stream: GeneratedStream
    ) -> list[int]:
        done = len(running.ids)
        return list(prompt[done : done + self.chunk]) if done < len(prompt) else stream.tokens[-1:]

    def _forward(
        self,
        executable: Executable,
        running: Sequence[RunningSequence],
        batch: Sequence[tuple[int, list[int]]],
        streams: Sequence[GeneratedStream],
        prompts: Sequence[np.ndarray],
        choose: Want,
    ) -> None:
        rows = [row for i, ids in batch for row in running[i].rows(ids, (choose, LOGITS))]
        result, at = executable.forward(Batch(rows)).result(), -1
        for index, ids in batch:
            at += len(ids)
            running[index].ids += ids
            if len(running[index].ids) >= len(prompts[index]):
                streams[index].take(result.rows[at], choose)


@dataclass(frozen=True)
class ChainedSchedule:
    """Runs decode steps on tokens drawn on the device, several of them in flight."""

    family: str = "drawn"

    def run(
        self, bench: ProgramUnderTest, prompts: Sequence[np.ndarray], steps: int, choose: Want
    ) -> list[GeneratedStream]:
        """Generate one prompt's stream after the other."""
        with bench.compiled() as executable:
            return [self._one(executable, prompt, steps, choose) for prompt in prompts]

    def _one(
        self, executable: Executable, prompt: np.ndarray, steps: int, choose: Want
    ) -> GeneratedStream:
        wants, stream = (choose, LOGITS), GeneratedStream()
        state = executable.open(len(prompt) + steps)
        rows = RunningSequence(executable, state).rows(prompt, wants)
        tickets = [executable.forward(Batch(rows))]
        drawn = len(rows) - 1
        for step in range(1, steps):
            if len(tickets) >= CHAIN:
                _collect(tickets.pop(0), stream, choose)
            row = Row(state, len(prompt) + step - 1, Drawn(drawn), wants)
            tickets.append(executable.forward(Batch([row])))
            drawn = 0
        for ticket in tickets:
            _collect(ticket, stream, choose)
        state.release()
        return stream


def _collect(ticket: Ticket, stream: GeneratedStream, choose: Want) -> None:
    stream.take(ticket.result().rows[-1], choose)


ALONE = "one prompt after the other"
SCHEDULES: Mapping[str, Schedule] = {
    ALONE: SequentialSchedule("stream"),
    "chunks of 1": SequentialSchedule("chunks", 1),
    "chunks of 7": SequentialSchedule("chunks", 7),
    "chunks of 64": SequentialSchedule("chunks", 64),
    "in one batch": StaggeredSchedule(),
    "with rewinds": SequentialSchedule("rewind", move=rewound),
    "with snapshots": SequentialSchedule("snapshot", move=restored),
    "on forks": SequentialSchedule("fork", move=forked),
    "moved between executables": SequentialSchedule("export", move=exported, every=9),
    "drawn on the device": ChainedSchedule(),
}
"""By description."""
