"""Streams whose rows choose overlays, several in a batch: each is what it is alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from cortiq.backend import Argmax, Batch, Draw, Drawn, Row, Want
from cortiq.errors import BackendError
from cortiq.ir import Program
from cortiq.numerics import digest
from cortiq.numerics.layouts import Weight
from cortiq_conformance import models
from cortiq_conformance.case import Case, NotRunError
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.case_overlays import by_row, inputs_of, varied
from cortiq_conformance.drives import ProgramUnderTest
from cortiq_conformance.level0.tails import CHAINS
from cortiq_conformance.oracle import OracleSequence
from cortiq_conformance.outputs import Observations
from cortiq_conformance.schedules import ALONE, LOGITS, GeneratedStream
from cortiq_conformance.streams import SCHEDULES, StreamScenario, chosen_id
from cortiq_conformance.subject import Subject

STEPS = 8
MEMBERS, RANKS = 4, (3, 16, 5)
NUMBERS = (2, 0, 1, 2, 3)
"""Overlays of the streams, whose prompts repeat."""
WANTS: dict[int, Want] = {3: Argmax(), 4: Draw(CHAINS["every filter"])}
"""The want that chooses tokens, by level."""
NAMES = ("tiny-llama", "tiny-lfm2", "tiny-gemma3")


def cases(level: int, names: Sequence[str] | None) -> Iterator[Case]:
    """Yield these cases of a level: greedy streams at level 3, drawn ones at level 4."""
    for name in models.chosen(names)[0]:
        if name in NAMES:
            build = partial(_build, name, WANTS[level])
            yield Case(f"level{level}/overlays[{name}, {len(NUMBERS)} streams in one batch]",
                       level, "overlays", "ExpertMatMul", build, model=name)  # fmt: skip


def _build(name: str, choose: Want, source: CaseData) -> OverlayScenario:
    titles = tuple(models.prompts(name))
    return OverlayScenario(name, titles, SCHEDULES[ALONE], choose, models.load(name).facts)


@cache
def _varied(name: str) -> tuple[Program, dict[str, Weight]]:
    """Return a model with overlays, and all its weights."""
    model = models.load(name)
    program, banks = varied(CaseData(f"overlays of {name}"), model.program, MEMBERS, RANKS)
    return program, {**model.weights, **banks}


class OverlayScenario(StreamScenario):
    """Streams of a model's prompts, each of an overlay of its own."""

    def streams(self) -> list[tuple[str, int]]:
        """Return the prompt and the overlay of each stream."""
        return [(self.titles[i % len(self.titles)], n) for i, n in enumerate(NUMBERS)]

    def expected(self) -> Observations:
        """Return the streams by definition, token by token."""
        return self._named([_defined(self.name, *one, self.choose) for one in self.streams()])

    def golden_facts(self, expected: Observations) -> Any:
        """Return the facts of a golden entry besides the digest."""
        return self.facts

    def observe(self, subject: Subject) -> Observations:
        """Return the backend's streams: prompts in one batch, then steps of all."""
        model, (program, weights) = models.load(self.name), _varied(self.name)
        bench = ProgramUnderTest(subject, model.program, model.weights)
        streams = [GeneratedStream() for _ in NUMBERS]
        with bench.compiled() as executable:
            try:
                executable.vary(program, weights)
            except BackendError as error:
                raise NotRunError(str(error)) from None
            prompts = [models.prompt(self.name, title) for title, _ in self.streams()]
            states = [executable.open(len(prompt) + STEPS) for prompt in prompts]
            tokens: list[list[Any]] = [[int(t) for t in prompt] for prompt in prompts]
            starts = [0] * len(prompts)
            for _ in range(STEPS):
                rows, last = self._rows(states, tokens, starts)
                brought = executable.forward(Batch(rows)).result().rows
                for index, place in enumerate(last):
                    streams[index].take(brought[place], self.choose)
                    starts[index] += len(tokens[index])
                    tokens[index] = [Drawn(place)]
            for state in states:
                state.release()
        return self._named(streams)

    def _rows(
        self, states: Sequence[Any], tokens: Sequence[Sequence[Any]], starts: Sequence[int]
    ) -> tuple[list[Row], list[int]]:
        """Return the next rows of all streams, and which of them are the streams' last."""
        rows: list[Row] = []
        last = []
        for state, ids, start, number in zip(states, tokens, starts, NUMBERS, strict=True):
            given = by_row(inputs_of(_varied(self.name)[0], np.array([number]), np.array([0])), 0)
            for at, token in enumerate(ids):
                wants = (self.choose, LOGITS) if at + 1 == len(ids) else ()
                rows.append(Row(state, start + at, token, wants, given))
            last.append(len(rows) - 1)
        return rows, last

    def _named(self, streams: Sequence[GeneratedStream]) -> Observations:
        found: Observations = {}
        for place, stream in enumerate(streams):
            found[f"stream {place}: digests"] = np.array(stream.digests, np.uint32)
            found[f"stream {place}: tokens"] = np.array(stream.tokens, np.int32)
        return found

    def localise(self, subject: Subject, found: Any) -> Any:
        """Return the difference as it is: level 0 has the products of overlays."""
        return found


@cache
def _defined(name: str, title: str, number: int, choose: Want) -> GeneratedStream:
    """Generate a stream of an overlay by the definitions of `cortiq.numerics`."""
    program, weights = _varied(name)
    oracle, stream = OracleSequence(program, weights), GeneratedStream()
    rows: np.ndarray = models.prompt(name, title)
    while len(stream.tokens) < STEPS:
        given = inputs_of(program, np.full(len(rows), number), rows)
        logits = oracle.feed(rows, given).values["logits"][-1]
        stream.digests.append(digest.digest(logits))
        stream.tokens.append(chosen_id(logits, choose, oracle.tokens))
        rows = np.array(stream.tokens[-1:], np.int32)
    return stream
