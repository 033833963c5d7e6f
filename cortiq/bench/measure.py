"""Measuring a model's speed: prompts and steps, warmed up, repeated, beside llama.cpp if asked.

A *runner* is what is measured: `prefill` feeds a prompt to fresh sequences and draws a token for
each, `decode` takes greedy steps from there. Nothing that ends a text counts, neither start nor end
tokens: every step is computed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from cortiq.backend import Argmax, Batch, Drawn, Executable, Row, State, Status
from cortiq.backend.batch import NO_INPUTS
from cortiq.errors import BackendError, RequestError
from cortiq.ir.images import image_rows

CHUNK_ROWS = 512
"""Prompt rows submitted at a time."""
MULTIPLIER, FIRST = 7919, 11
"""Prompt ids are (FIRST + i·MULTIPLIER) modulo the vocabulary: no two models need a tokenizer."""


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class Workload:
    """The tokens and sequences of one repetition.

    Attributes
    ----------
    prompt_tokens, new_tokens : of each sequence. batch : sequences.
    repeats : measured repetitions, after one that is not.
    """

    prompt_tokens: int = 512
    new_tokens: int = 128
    batch: int = 1
    repeats: int = 5

    @property
    def limit(self) -> int:
        """Positions a sequence takes."""
        return self.prompt_tokens + self.new_tokens + 1

    def check(self, context: int) -> None:
        """Check that a sequence of this context has room for the workload."""
        fed = self.prompt_tokens + self.new_tokens
        if fed > context:
            raise RequestError(
                f"{self.prompt_tokens} prompt and {self.new_tokens} new tokens are fed, {fed} in "
                f"all, the context is {context}",
                where="bench",
                hint="measure fewer tokens (--prompt-tokens, --new-tokens)",
            )

    def prompt(self, vocabulary: int) -> list[int]:
        """Return the ids of the prompt."""
        return [(FIRST + i * MULTIPLIER) % vocabulary for i in range(self.prompt_tokens)]


class Runner(Protocol):
    """Something to measure."""

    def prefill(self, prompt: Sequence[int]) -> None:
        """Feed the prompt to every sequence, new ones, and draw a token for each."""

    def decode(self, steps: int) -> None:
        """Take greedy steps with every sequence."""

    def close(self) -> None:
        """Give memory back."""


class ExecutableRunner:
    """Runs an executable of ours."""

    def __init__(self, executable: Executable, work: Workload) -> None:
        self._executable, self._work = executable, work
        self._states: list[State] = []
        self._text = image_rows(executable.program)

    def _given(self, position: int) -> Mapping[str, Any]:
        """Return what a row supplies where the model sees images."""
        return self._text.inputs(position) if self._text.supplies else NO_INPUTS

    def prefill(self, prompt: Sequence[int]) -> None:
        """Feed the prompt in chunks, one sequence after the other."""
        self.close()
        self._states = [self._executable.open(self._work.limit) for _ in range(self._work.batch)]
        for number, state in enumerate(self._states):
            if not state.reserve(self._work.limit):
                raise RequestError(
                    f"no memory for {self._work.batch} sequences of {self._work.limit} tokens",
                    hint="measure fewer sequences or fewer tokens",
                )
            for start in range(0, len(prompt), CHUNK_ROWS):
                chunk = prompt[start : start + CHUNK_ROWS]
                ends = start + len(chunk) == len(prompt)
                wants = (Argmax(),) if ends else ()
                last = len(chunk) - 1
                rows = [
                    Row(state, start + i, token, wants if i == last else (), self._given(start + i))
                    for i, token in enumerate(chunk)
                ]
                result = self._forward(rows)
            self._token = [*self._drawn_before(number), int(result[last][Argmax()])]

    def _drawn_before(self, number: int) -> list[int]:
        return self._token if number else []

    def _forward(self, rows: list[Row]) -> Sequence[Mapping]:
        result = self._executable.forward(Batch(rows)).result()
        for outcome in result.outcomes.values():
            if outcome.status is not Status.COMPLETED:
                raise BackendError(f"a measured batch was {outcome.status}: {outcome.reason}")
        return result.rows

    def decode(self, steps: int) -> None:
        """Take steps whose input is what the step before drew."""
        position = self._states[0].length()
        tokens: list[int | Drawn] = list(self._token)
        for step in range(steps):
            rows = [
                Row(state, position + step, token, (Argmax(),), self._given(position + step))
                for state, token in zip(self._states, tokens, strict=True)
            ]
            self._forward(rows)
            tokens = [Drawn(i) for i in range(len(rows))]

    def close(self) -> None:
        """Release the sequences."""
        for state in self._states:
            state.release()
        self._states = []


@dataclass(frozen=True)
class TokenRates:
    """Tokens per second over the repetitions."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return median(self.values)

    def as_dict(self) -> dict[str, float]:
        """Return the figures for JSON."""
        least, most = min(self.values), max(self.values)
        return {"median": round(self.median, 3), "least": round(least, 3), "most": round(most, 3)}


@dataclass(frozen=True)
class Speed:
    """Speeds of a runner."""

    prefill: TokenRates
    decode: TokenRates

    def as_dict(self) -> dict[str, dict[str, float]]:
        """Return tokens per second, for JSON."""
        return {"prefill": self.prefill.as_dict(), "decode": self.decode.as_dict()}


def measure(
    runners: Mapping[str, Runner],
    work: Workload,
    vocabulary: int,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> dict[str, Speed]:
    """Measure the runners, in turn in every repetition; return their speeds by name.

    Alternating them makes a machine that slows down or is shared slow for all of them.
    """
    prompt = work.prompt(vocabulary)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in runners}
    for repeat in range(work.repeats + 1):
        for name, runner in runners.items():
            progress(f"Measuring {name}", repeat, work.repeats + 1)
            spent = _once(runner, prompt, work.new_tokens)
            if repeat:
                seconds[name].append(spent)
    return {name: _speed(times, work) for name, times in seconds.items()}


def _once(runner: Runner, prompt: Sequence[int], steps: int) -> tuple[float, float]:
    start = time.perf_counter()
    runner.prefill(prompt)
    middle = time.perf_counter()
    runner.decode(steps)
    return middle - start, time.perf_counter() - middle


def _speed(times: list[tuple[float, float]], work: Workload) -> Speed:
    fed, drawn = work.batch * work.prompt_tokens, work.batch * work.new_tokens
    return Speed(
        TokenRates(tuple(fed / prefill for prefill, _ in times)),
        TokenRates(tuple(drawn / decode for _, decode in times)),
    )
