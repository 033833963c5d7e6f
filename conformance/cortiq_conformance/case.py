"""Cases: an id that is a sentence, cheap to list, and a scenario built when it is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, Protocol

import numpy as np

from cortiq.backend import Named, Want
from cortiq.ir import Program, primitives_of
from cortiq.numerics.layouts import Weight, floats
from cortiq_conformance import outputs
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.compare import Divergence, first_difference
from cortiq_conformance.drives import (
    ChunkedDrive,
    Drive,
    ProgramUnderTest,
    SequenceInput,
    SequenceOutcome,
)
from cortiq_conformance.explain import explained
from cortiq_conformance.flush import flush_to_zero
from cortiq_conformance.oracle import OracleSequence
from cortiq_conformance.outputs import Observations
from cortiq_conformance.subject import Subject

MOST_WEIGHTS = 1 << 18
"""Elements of weights that a replay file holds at most; those of models are in their files."""


class NotRunError(Exception):
    """A case cannot be run here; the message says why."""


class Check(Protocol):
    """The part of a case that is built to run it."""

    def expected(self) -> Observations:
        """Return the result by definition."""
        ...

    def observe(self, subject: Subject) -> Observations:
        """Return the backend's result."""
        ...

    def inputs(self) -> Observations:
        """Return the backend's inputs by name, for replay files."""
        ...

    def localise(self, subject: Subject, found: Divergence) -> Divergence:
        """Return the first divergence inside, given the one that was seen."""
        ...


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes
    ----------
    id : `levelN/FAMILY[what is run]`.
    family : the property a difference breaks. op : the operator it is blamed on.
    stage : within a level; later stages depend on earlier ones.
    model : name of a model whose file it needs, if any.
    """

    id: str
    level: int
    family: str
    op: str
    build: Callable[[CaseData], Check] = field(repr=False, compare=False)
    stage: int = 1
    model: str | None = None


def _weight(name: str, weight: Weight) -> Observations:
    """Return a weight as floats, or as the parts of its codes."""
    if weight.layout.kind == "float":
        return {f"weight {name}": floats(weight, name)}
    return {f"weight {name}, {part}": array for part, array in weight.parts.items()}


@dataclass(frozen=True)
class Scenario:
    """A program, its inputs, the wants of every row, and the drive that runs it."""

    program: Program
    weights: Mapping[str, Weight]
    feeds: Sequence[SequenceInput]
    wants: Sequence[Want] = (Named("y"),)
    drive: Drive = field(default_factory=ChunkedDrive)
    decomposed: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    flush: bool = False

    def expected(self) -> Observations:
        """Evaluate the definitions of `cortiq.numerics`; the result is kept."""
        return dict(self._definition)

    @cached_property
    def _definition(self) -> Observations:
        return self._labelled([self._expected(feed) for feed in self.feeds])

    def _expected(self, feed: SequenceInput) -> tuple[int, Observations]:
        oracle = OracleSequence(self.program, self.weights)
        evaluation = oracle.feed(feed.tokens, feed.inputs, feed.entry)
        if evaluation.faults.any():
            return 2, {}
        ids = [int(token) for token in feed.tokens]
        return 0, outputs.expected(feed.wants or self.wants, evaluation, ids)

    def observe(self, subject: Subject) -> Observations:
        """Run the backend with the scenario's drive."""
        bench = ProgramUnderTest(subject, self.program, self.weights, self.decomposed, self.options)
        with flush_to_zero() if self.flush else nullcontext():
            answers = self.drive.run(bench, self.feeds, self.wants)
        pairs = zip(self.feeds, answers, strict=True)
        return self._labelled([self._observed(feed, answer) for feed, answer in pairs])

    def inputs(self) -> Observations:
        """Return tokens and extra inputs of each sequence; weights too if they are small."""
        found: Observations = {}
        for index, feed in enumerate(self.feeds):
            prefix = f"sequence {index}: " if len(self.feeds) > 1 else ""
            arrays = {"tokens": feed.tokens, **feed.inputs}
            found |= {f"{prefix}{name}": np.asarray(array) for name, array in arrays.items()}
        if sum(prod(weight.shape) for weight in self.weights.values()) <= MOST_WEIGHTS:
            for name, weight in self.weights.items():
                found |= _weight(name, weight)
        return found

    def _observed(self, feed: SequenceInput, answer: SequenceOutcome) -> tuple[int, Observations]:
        found = {} if answer.status else outputs.observed(feed.wants or self.wants, answer.rows)
        return answer.status, found

    def _labelled(self, answers: Sequence[tuple[int, Observations]]) -> Observations:
        found: Observations = {}
        for index, (status, arrays) in enumerate(answers):
            prefix = f"sequence {index}: " if len(answers) > 1 else ""
            found[f"{prefix}outcome"] = np.array([status], np.int32)
            found |= {f"{prefix}{name}": array for name, array in arrays.items()}
        return found

    def localise(self, subject: Subject, found: Divergence) -> Divergence:
        """Compare every value of the primitives, in order, with the same drive.

        At level 0 there is one operator: say what the difference looks like.
        """
        if found.level == 0:
            return explained(self, subject, found)
        graphs = {feed.entry for feed in self.feeds}
        names = [
            (output, node.op.kind)
            for entry in graphs
            for node in primitives_of(self.program).graphs[entry].nodes
            for output in node.outputs
            if primitives_of(self.program).graphs[entry].values[output].dtype == "f32"
        ]
        inner = replace(self, wants=[Named(name) for name, _ in names], decomposed=True)
        expected, got = inner.expected(), inner.observe(subject)
        for name, kind in names:
            for label in (key for key in expected if key.split(": ")[-1] == name):
                one = {label: expected[label]}
                difference = first_difference(one, got, found.level, kind)
                if difference is not None:
                    return difference
        layers = any(not n.op.primitive for g in self.program.graphs.values() for n in g.nodes)
        if self.decomposed or not layers:
            return found
        remark = "its decomposition gives the right bits: the layer as a whole is wrong"
        return found.remarked(remark)
