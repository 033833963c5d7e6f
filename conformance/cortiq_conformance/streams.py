"""Levels 3 and 4: greedy and sampled streams, byte-identical however they are scheduled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np

from cortiq.backend import Argmax, Draw, Named, Want
from cortiq.numerics import digest, sampling
from cortiq_conformance import models
from cortiq_conformance.case import Case
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.compare import Divergence
from cortiq_conformance.drives import ChunkedDrive, ProgramUnderTest, SequenceInput
from cortiq_conformance.engines import ENGINED
from cortiq_conformance.graphs import GraphScenario, reference
from cortiq_conformance.level0.tails import CHAINS
from cortiq_conformance.oracle import OracleSequence
from cortiq_conformance.outputs import Observations
from cortiq_conformance.schedules import ALONE, GeneratedStream, Schedule
from cortiq_conformance.schedules import SCHEDULES as DRIVEN
from cortiq_conformance.subject import Subject

STEPS = 24
"""Tokens of a stream."""
SCHEDULES: Mapping[str, Schedule] = {**DRIVEN, **ENGINED}
"""Ways to generate, by description: driven row by row, or by the engine."""
EVERY_SCHEDULE = ("tiny-llama", "tiny-lfm2")
"""Tiny models that the quick profile runs under every schedule: one of rows, one with rings."""
SOME_SCHEDULES = (ALONE, "in one batch", "drawn on the device", "drafts right until the second")
SAMPLED_MODEL = "tiny-llama"
SAMPLED_SCHEDULES = (ALONE, "drawn on the device", "in one batch")
HISTORY_CHAINS = ("penalties",)
"""Chains that every schedule runs: every row has another history."""


def greedy_cases(profile: str, names: Sequence[str] | None) -> Iterator[Case]:
    """Yield all cases of level 3."""
    tiny, real = models.chosen(names)
    for name in tiny:
        every = profile == "full" or names is not None or name in EVERY_SCHEDULE
        for schedule in SCHEDULES if every else SOME_SCHEDULES:
            yield _greedy(name, models.prompts(name), schedule)
    for name in real:
        titles = models.prompts(name)
        yield _greedy(name, titles[:1], ALONE)
        for schedule in SCHEDULES if profile == "full" else ():
            yield _greedy(name, titles, schedule)


def sampled_cases(profile: str, names: Sequence[str] | None) -> Iterator[Case]:
    """Yield all cases of level 4."""
    tiny, real = models.chosen(names)
    for name in tiny if profile == "full" else [n for n in tiny if n == SAMPLED_MODEL]:
        driven = DRIVEN if name in EVERY_SCHEDULE else SAMPLED_SCHEDULES
        for chain in CHAINS:
            more = (*driven, *ENGINED) if chain in HISTORY_CHAINS else SAMPLED_SCHEDULES
            for schedule in more:
                yield _sampled(name, models.prompts(name), schedule, chain)
    for name in real if profile == "full" else ():
        yield _sampled(name, models.prompts(name), "drawn on the device", "every filter")


def _greedy(name: str, titles: Sequence[str], schedule: str) -> Case:
    family = SCHEDULES[schedule].family
    case_id = f"level3/{family}[{name}, {_listed(titles)}, {schedule}]"
    build = partial(_build, name, tuple(titles), schedule, Argmax())
    return Case(case_id, 3, family, "Argmax", build, model=name)


def _sampled(name: str, titles: Sequence[str], schedule: str, chain: str) -> Case:
    family = f"sampled {SCHEDULES[schedule].family}"
    case_id = f"level4/{family}[{name}, {_listed(titles)}, {chain}, {schedule}]"
    build = partial(_build, name, tuple(titles), schedule, Draw(CHAINS[chain]))
    return Case(case_id, 4, family, "Draw", build, model=name)


def _listed(titles: Sequence[str]) -> str:
    return f"{len(titles)} prompts" if len(titles) > 1 else titles[0]


@dataclass(frozen=True)
class StreamScenario:
    """Streams of a model's prompts under a schedule: tokens, and the digest of every logits row."""

    name: str
    titles: tuple[str, ...]
    schedule: Schedule
    choose: Want
    facts: Mapping[str, Any] = field(default_factory=dict)

    def prompts(self) -> list[np.ndarray]:
        """Return the ids of the prompts."""
        return [models.prompt(self.name, title) for title in self.titles]

    def expected(self) -> Observations:
        """Return the stream by definition, token by token; the reference's for a real model."""
        define = defined_stream if self.name in models.FORMULA else _referred
        return self._labelled([define(self.name, title, self.choose) for title in self.titles])

    def golden_facts(self, expected: Observations) -> Mapping[str, Any]:
        """Return the facts of a golden entry besides the digest; the tokens once a model."""
        if self.schedule is not SCHEDULES[ALONE]:
            return self.facts
        tokens = {title: expected[f"{title}: tokens"].tolist() for title in self.titles}
        return {**self.facts, "tokens": tokens}

    def observe(self, subject: Subject) -> Observations:
        """Return the backend's stream."""
        model = models.load(self.name)
        threads = {"threads": 1 if self.name in models.FORMULA else 0}
        bench = ProgramUnderTest(subject, model.program, model.weights, options=threads)
        return self._labelled(self.schedule.run(bench, self.prompts(), STEPS, self.choose))

    def inputs(self) -> Observations:
        """Return the ids of the prompts."""
        return dict(zip(self.titles, self.prompts(), strict=True))

    def _labelled(self, streams: Sequence[GeneratedStream]) -> Observations:
        found: Observations = {}
        for title, stream in zip(self.titles, streams, strict=True):
            found[f"{title}: digests"] = np.array(stream.digests, np.uint32)
            found[f"{title}: tokens"] = np.array(stream.tokens, np.int32)
        return found

    def localise(self, subject: Subject, found: Divergence) -> Divergence:
        """Feed the expected tokens in one chunk and compare every primitive's values."""
        title = found.value.rpartition(":")[0]
        expected = self.expected()
        ids = np.concatenate(
            [models.prompt(self.name, title), expected[f"{title}: tokens"][: found.row]]
        )
        model = models.load(self.name)
        forced = GraphScenario(
            model.program, model.weights, [SequenceInput(ids)], (Named("logits"),), ChunkedDrive(),
            real=self.name not in models.FORMULA,
        )  # fmt: skip
        inner = forced.localise(subject, found)
        if inner.op != found.op:
            return replace(inner, remark=f"step {found.row} of {title}")
        remark = "teacher-forced in one chunk every value is right: the schedule is at fault"
        return replace(found, remark=f"{remark} ({self.schedule.family})")


def _build(
    name: str, titles: tuple[str, ...], schedule: str, choose: Want, source: CaseData
) -> StreamScenario:
    facts = models.load(name).facts
    return StreamScenario(name, titles, SCHEDULES[schedule], choose, facts)


@cache
def defined_stream(name: str, title: str, choose: Want) -> GeneratedStream:
    """Generate a stream by the definitions of `cortiq.numerics`."""
    model = models.load(name)
    oracle, stream = OracleSequence(model.program, model.weights), GeneratedStream()
    rows: np.ndarray = models.prompt(name, title)
    while len(stream.tokens) < STEPS:
        logits = oracle.feed(rows).values["logits"][-1]
        stream.digests.append(digest.digest(logits))
        stream.tokens.append(chosen_id(logits, choose, oracle.tokens))
        rows = np.array(stream.tokens[-1:], np.int32)
    return stream


@cache
def _referred(name: str, title: str, choose: Want) -> GeneratedStream:
    """Generate a stream on the reference."""
    model = models.load(name)
    bench = ProgramUnderTest(reference(), model.program, model.weights)
    (stream,) = SCHEDULES[ALONE].run(bench, [models.prompt(name, title)], STEPS, choose)
    return stream


def chosen_id(logits: np.ndarray, choose: Want, history: Sequence[int]) -> int:
    """Return the id that a want chooses from logits, by definition."""
    if isinstance(choose, Draw):
        position, choice = len(history), choose.choice
        return sampling.draw(logits, choose.sampling, history, position, choice, mask=choose.mask)
    return int(sampling.argmax(logits))
