"""Streams that draw together, each by other options, from tokens drawn on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from cortiq.backend import Argmax, Batch, Draw, Drawn, Row, Want
from cortiq_conformance import models
from cortiq_conformance.case import Case
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.drives import ProgramUnderTest
from cortiq_conformance.level0.tails import CHAINS
from cortiq_conformance.outputs import Observations
from cortiq_conformance.schedules import LOGITS, GeneratedStream, RunningSequence
from cortiq_conformance.streams import STEPS, StreamScenario, defined_stream
from cortiq_conformance.subject import Subject

AHEAD = 2
"""Steps under way at once."""
SETS: dict[str, tuple[Want, ...]] = {
    "greedy, filtered, penalised": (
        Argmax(), Draw(CHAINS["every filter"]), Draw(CHAINS["penalties"]),
    ),
    "penalised, biased, cold": (
        Draw(CHAINS["penalties"]), Draw(CHAINS["bias"]), Draw(CHAINS["temperature 0"]),
    ),
    "other filters": (
        Draw(CHAINS["top-p 0.8"]), Draw(CHAINS["top-k 5"]), Draw(CHAINS["min-p 0.05"]),
    ),
}  # fmt: skip
"""Options of three streams, by description."""


def cases(level: int, names: Sequence[str] | None) -> Iterator[Case]:
    """Yield these cases of a level: streams with a greedy one at level 3, others at level 4."""
    for name in models.chosen(names)[0]:
        if name in ("tiny-llama", "tiny-lfm2"):
            for what, wants in SETS.items():
                if (level == 3) == (Argmax() in wants):
                    titles = tuple(models.prompts(name)[:3])
                    yield Case(
                        f"level{level}/together[{name}, {what}]", level, "together", "Draw",
                        partial(_build, name, titles, wants), model=name,
                    )  # fmt: skip


def _build(
    name: str, titles: tuple[str, ...], wants: tuple[Want, ...], source: CaseData
) -> TogetherScenario:
    return TogetherScenario(name, titles, wants)


@dataclass(frozen=True)
class TogetherSchedule:
    """Prompts in one batch, then steps ahead with all of them."""

    wants: Sequence[Want]
    family: str = "together"

    def run(
        self, bench: ProgramUnderTest, prompts: Sequence[np.ndarray], steps: int, choose: Want
    ) -> list[GeneratedStream]:
        """Generate all streams; `choose` is none of theirs."""
        streams = [GeneratedStream() for _ in prompts]
        with bench.compiled() as executable:
            states = [executable.open(len(prompt) + steps) for prompt in prompts]
            rows: list[Row] = []
            sources = []
            for state, prompt, want in zip(states, prompts, self.wants, strict=True):
                rows += RunningSequence(executable, state).rows(prompt, (want, LOGITS))
                sources.append(len(rows) - 1)
            tickets = [(executable.forward(Batch(rows)), sources)]
            for step in range(1, steps):
                rows = [
                    Row(state, len(prompt) + step - 1, Drawn(source), (want, LOGITS))
                    for state, prompt, want, source in zip(
                        states, prompts, self.wants, tickets[-1][1], strict=True
                    )
                ]
                tickets.append((executable.forward(Batch(rows)), list(range(len(rows)))))
                if len(tickets) > AHEAD:
                    self._take(*tickets.pop(0), streams)
            for ticket, places in tickets:
                self._take(ticket, places, streams)
            for state in states:
                state.release()
        return streams

    def _take(self, ticket: object, places: Sequence[int], streams: list[GeneratedStream]) -> None:
        brought = ticket.result().rows  # type: ignore[attr-defined]
        for stream, place, want in zip(streams, places, self.wants, strict=True):
            stream.take(brought[place], want)


class TogetherScenario(StreamScenario):
    """Streams of a model's prompts, each with a want of its own."""

    def __init__(self, name: str, titles: tuple[str, ...], wants: tuple[Want, ...]) -> None:
        facts = models.load(name).facts
        super().__init__(name, titles, TogetherSchedule(wants), wants[0], facts)

    def expected(self) -> Observations:
        """Return the streams by definition, token by token."""
        assert isinstance(self.schedule, TogetherSchedule)
        pairs = zip(self.titles, self.schedule.wants, strict=True)
        return self._labelled([defined_stream(self.name, title, want) for title, want in pairs])

    def observe(self, subject: Subject) -> Observations:
        """Return the backend's streams."""
        model = models.load(self.name)
        bench = ProgramUnderTest(subject, model.program, model.weights, options={"threads": 1})
        return self._labelled(self.schedule.run(bench, self.prompts(), STEPS, self.choose))
