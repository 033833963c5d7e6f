"""Generate streams with the engine: batches, drafts, kept prefixes, lost places, cancels.

It runs on the backend under test through the seam, and must give the streams of the definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cortiq.backend import Draw, Executable, Want
from cortiq.engine.cache_roles import CachePoint, CacheRole
from cortiq.engine.drafting import Draft, FixedDepth, Speculation, Task
from cortiq.engine.engine import Engine
from cortiq.engine.prefixes import PrefixCache
from cortiq.engine.request import Request
from cortiq.engine.scheduler import EngineOptions
from cortiq.engine.sequence import Sequence as Running
from cortiq.errors import NoTokenizerError
from cortiq.numerics.sampling import Sampling
from cortiq.tokenizer.missing import MissingTokenizer
from cortiq_conformance.drives import ProgramUnderTest, StoppedError
from cortiq_conformance.schedules import GeneratedStream

IDS_ONLY = MissingTokenizer(NoTokenizerError("streams of ids have no text"))
CHUNK = 16
ROWS = 48
"""Rows of a batch: prompts and drafts have to share them."""
Answer = Callable[[Sequence[int], int], Sequence[int]]
"""From the ids so far and a number, so many drafted ids."""


def request_of(prompt: Iterable[int], steps: int, choose: Want) -> Request:
    """Return the request that generates a stream; a row about each token is kept."""
    greedy = not isinstance(choose, Draw)
    sampling = choose.sampling if isinstance(choose, Draw) else Sampling(temperature=0.0)
    return Request(
        prompt=tuple(int(token) for token in prompt), sampling=sampling, greedy=greedy,
        max_tokens=steps, end_ids=frozenset(), stop=(), chunk_rows=CHUNK, trace=True,
    )  # fmt: skip


def stream_of(sequence: Running) -> GeneratedStream:
    """Return the tokens and digests of a sequence that has ended."""
    if sequence.error is not None:
        raise StoppedError(str(sequence.error)) from sequence.error
    trace = sequence.output.trace
    return GeneratedStream([row.token_id for row in trace], [row.digest for row in trace])


@dataclass
class EngineRun:
    """An engine with its prefix cache, and the requests that a case is about."""

    executable: Executable
    engine: Engine
    cache: PrefixCache
    requests: list[Request]

    def alone(self) -> list[GeneratedStream]:
        """Generate the streams one after the other, without prefixes or drafts."""
        with Engine(self.executable, IDS_ONLY) as plain:
            made = []
            for request in self.requests:
                made.append(plain.submit(request))
                plain.run()
        return [stream_of(one) for one in made]


@dataclass(frozen=True)
class EngineSchedule:
    """Runs the prompts through an engine; `play` says how."""

    family: str
    play: Callable[[EngineRun], list[GeneratedStream]]

    def run(
        self, bench: ProgramUnderTest, prompts: Sequence[np.ndarray], steps: int, choose: Want
    ) -> list[GeneratedStream]:
        """Generate a stream for each prompt."""
        requests = [request_of(prompt, steps, choose) for prompt in prompts]
        with self._work(bench, requests) as work:
            return self.play(work)

    @contextmanager
    def _work(self, bench: ProgramUnderTest, requests: list[Request]) -> Iterator[EngineRun]:
        with bench.compiled() as executable:
            cache = PrefixCache(executable, 6)
            options = EngineOptions(batch_rows=ROWS)
            with Engine(executable, IDS_ONLY, options=options, prefixes=cache) as engine:
                yield EngineRun(executable, engine, cache, requests)
            cache.clear()


def mixed(work: EngineRun) -> list[GeneratedStream]:
    """Run sixteen requests at once, joined at different steps, the case's spread among them."""
    made = []
    for number in range(16):
        request = work.requests[number % len(work.requests)]
        if number >= len(work.requests):
            request = replace(request, choice=number, max_tokens=6)
        made.append(work.engine.submit(request, priority=number % 3))
        if number % 2:
            work.engine.step()
    work.engine.run()
    for one in made[len(work.requests) :]:
        stream_of(one)
    return [stream_of(one) for one in made[: len(work.requests)]]


class OracleDrafter:
    """A drafter that knows the next tokens; a script says how honest it is."""

    name = "scripted"

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def open(self, task: Task) -> OracleDrafting:
        """Open a session on a sequence."""
        return OracleDrafting(self.answer)


@dataclass
class OracleDrafting:
    """A session of `OracleDrafter`."""

    answer: Answer
    wants: tuple[Want, ...] = ()

    def propose(self, ids: Sequence[int], count: int) -> Draft:
        """Propose the script's tokens."""
        return Draft(tuple(int(token) for token in self.answer(ids, count)))

    def observe(self, position: int, rows: Sequence[Any], ids: Sequence[int]) -> None:
        """Ignore the accepted tokens."""

    def close(self) -> None:
        """Do nothing: the session holds no resources."""


@dataclass(frozen=True)
class DraftedSchedule:
    """All prompts at once, each with drafts that are right until the n-th of a round.

    Parameters
    ----------
    right : number of right ids in a draft. depth : ids of a draft.
    ends : the text ends at a token inside a round, and another request continues from there.
    """

    right: int
    depth: int
    ends: bool = False

    def __call__(self, work: EngineRun) -> list[GeneratedStream]:
        """Run; see the class."""
        known = work.alone()
        made = [self._begin(work, *pair) for pair in zip(work.requests, known, strict=True)]
        work.engine.run()
        return [stream_of(one) if not self.ends else self._go_on(work, one) for one in made]

    def _begin(self, work: EngineRun, request: Request, known: GeneratedStream) -> Running:
        truth = [*request.prompt, *known.tokens]

        def answer(ids: Sequence[int], count: int) -> list[int]:
            right = truth[len(ids) : len(ids) + count]
            return [t if i < self.right else t ^ 1 for i, t in enumerate(right)]

        if self.ends:
            request = replace(request, end_ids=frozenset(known.tokens[3:9:2]))
        drafted = Speculation(OracleDrafter(answer), lambda prompt_tokens: FixedDepth(self.depth))
        return work.engine.submit(request, speculation=drafted)

    @staticmethod
    def _go_on(work: EngineRun, ended: Running) -> GeneratedStream:
        begun, more = stream_of(ended), ended.room
        request = replace(ended.request, prompt=tuple(ended.ids), max_tokens=more)
        after = work.engine.submit(replace(request, end_ids=frozenset()))
        work.engine.run()
        rest = stream_of(after)
        return GeneratedStream(begun.tokens + rest.tokens, begun.digests + rest.digests)


@dataclass(frozen=True)
class FuzzDrafts:
    """Drafts of any length and any ids, most of them right.

    Parameters
    ----------
    truth : prompt and answer. vocabulary : of the ids.
    """

    truth: list[int]
    vocabulary: int

    def __call__(self, ids: Sequence[int], count: int) -> list[int]:
        """Return the draft after `ids`."""
        right = self.truth[len(ids) : len(ids) + count]
        words = [_word(len(ids), place) for place in range(len(right) + 1)]
        drafted = [t if w % 4 else w % self.vocabulary for t, w in zip(right, words, strict=False)]
        return drafted[: words[-1] % (count + 1)]


def _word(position: int, place: int) -> int:
    """Return an arbitrary number: a step of a multiplicative generator."""
    return (position * 2654435761 + place * 40503 + 12345) % 2147483647 >> 4


def fuzzed(work: EngineRun) -> list[GeneratedStream]:
    """Run all prompts at once, with drafts of any kind."""
    vocabulary = work.executable.program.trunk.values["logits"].shape[0]
    made = []
    for request, known in zip(work.requests, work.alone(), strict=True):
        fuzz = FuzzDrafts([*request.prompt, *known.tokens], vocabulary)
        drafted = Speculation(OracleDrafter(fuzz), lambda prompt_tokens: FixedDepth(6))
        made.append(work.engine.submit(request, speculation=drafted))
    work.engine.run()
    return [stream_of(one) for one in made]


def kept(work: EngineRun) -> list[GeneratedStream]:
    """Run every prompt after others that share its beginning, continue it, or equal it."""
    made = []
    for request in work.requests:
        half = len(request.prompt) // 2
        marked = replace(request, cache_points=(CachePoint(half, CacheRole.SYSTEM),))
        other = (*request.prompt[:half], *(t ^ 1 for t in request.prompt[half:]))
        longer = (*request.prompt, *request.prompt[:3])
        for prompt in (request.prompt, other, longer):
            work.engine.submit(replace(marked, prompt=prompt, max_tokens=3))
            work.engine.run()
        made.append(work.engine.submit(marked))
        work.engine.run()
    return [stream_of(one) for one in made]


def cancelled(work: EngineRun) -> list[GeneratedStream]:
    """Cancel every stream twice, and restart it from the prefix cache."""
    made = []
    for request in work.requests:
        for steps in (2, 9):
            given_up = work.engine.submit(request)
            for _ in range(steps):
                work.engine.step()
            given_up.cancel()
        made.append(work.engine.submit(request))
        work.engine.run()
    return [stream_of(one) for one in made]


def preempted(work: EngineRun) -> list[GeneratedStream]:
    """Preempt sequences repeatedly: some of their rows, or all of them."""
    made = [work.engine.submit(request) for request in work.requests]
    for number in range(8):
        for _ in range(3):
            work.engine.step()
        one = made[number % len(made)]
        work.engine.preempt(one, 0 if number % 3 == 1 else one.fed // 2)
        work.cache.evict()
    work.engine.run()
    return [stream_of(one) for one in made]


ENGINED = {
    "sixteen in an engine": EngineSchedule("engine batch", mixed),
    "drafts that are right": EngineSchedule("drafts", DraftedSchedule(8, 5)),
    "drafts that are wrong": EngineSchedule("drafts", DraftedSchedule(0, 3)),
    "drafts right until the second": EngineSchedule("drafts", DraftedSchedule(2, 4)),
    "drafts of any kind": EngineSchedule("drafts", fuzzed),
    "ended inside a round and continued": EngineSchedule(
        "drafts", DraftedSchedule(8, 5, ends=True)
    ),
    "from kept prefixes": EngineSchedule("reuse", kept),
    "cancelled and begun again": EngineSchedule("cancel", cancelled),
    "that lose their places": EngineSchedule("preemption", preempted),
}
"""By description, as `schedules.SCHEDULES`."""
