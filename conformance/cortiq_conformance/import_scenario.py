"""Sequences imported instead of fed, and then continued: long contexts, cheaply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from cortiq.backend import ExportedState, KVPlanes, Named, Want
from cortiq.backend.windows import kept_from, windows_of
from cortiq.ir import KVRows
from cortiq.numerics.quantise import Quantised, no_values, planes, quantise_rows
from cortiq_conformance import outputs
from cortiq_conformance.case import Scenario
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.compare import Divergence
from cortiq_conformance.drives import ProgramUnderTest, SequenceInput, advance
from cortiq_conformance.oracle import OracleSequence
from cortiq_conformance.outputs import Observations
from cortiq_conformance.probes import ProbeProgram
from cortiq_conformance.subject import Subject

Slots = Mapping[str, Any]
"""State of a sequence by slot, in the oracle's form: key and value rows, or an array."""


def planes_of(slot: Any) -> KVPlanes | np.ndarray:
    """Return a slot of the oracle in the canonical layout."""
    if isinstance(slot, np.ndarray):
        return slot
    keys, values = slot
    exponents = [rows.e.astype(np.int8) for rows in (keys, values)]
    return KVPlanes(*planes(keys.q), exponents[0], *planes(values.q), exponents[1])


def behind_window(state: ExportedState, windows: Mapping[str, int]) -> ExportedState:
    """Return the state without rows that no window reaches, which need not exist."""
    length = state.lengths["trunk"]
    slots = {
        name: slot.last(length - kept_from(length, windows.get(name)))
        if isinstance(slot, KVPlanes)
        else slot
        for name, slot in state.slots.items()
    }
    return replace(state, slots=slots)


def rows_before(probe: ProbeProgram, source: CaseData, count: int) -> Slots:
    """Return random key and value rows for `count` positions of every slot of the program."""
    found = {}
    for name, slot in probe.program.slots.items():
        assert isinstance(slot, KVRows)
        keys = quantise_rows(source.floats(count, slot.heads, slot.key_dim))
        values = (
            quantise_rows(source.floats(count, slot.heads, slot.value_dim))
            if slot.value_dim
            else no_values(count, slot.heads)
        )
        found[name] = (keys, values)
    return found


@dataclass(frozen=True)
class ImportScenario:
    """Imports a sequence, and feeds it the rows of `feed`, which begin at `feed.start`.

    Attributes
    ----------
    before : state of the rows before, by slot.
    steps : rows fed at a time; none for all at once.
    options : of compilation.
    """

    probe: ProbeProgram
    feed: SequenceInput
    before: Slots = field(default_factory=dict)
    steps: Sequence[int] = ()
    wants: Sequence[Want] = (Named("y"),)
    options: Mapping[str, Any] = field(default_factory=dict)

    def expected(self) -> Observations:
        """Return the result by definition; it is kept."""
        return dict(self._definition)

    @cached_property
    def _definition(self) -> Observations:
        oracle = OracleSequence(self.probe.program, self.probe.weights)
        oracle.tokens, oracle.lengths = [0] * self.feed.start, {"trunk": self.feed.start}
        oracle.slots |= {name: _copied(slot) for name, slot in self.before.items()}
        evaluation = oracle.feed(self.feed.tokens, self.feed.inputs)
        return outputs.expected(self.wants, evaluation, oracle.tokens)

    def observe(self, subject: Subject) -> Observations:
        """Return the backend's result."""
        bench = ProgramUnderTest(
            subject, self.probe.program, self.probe.weights, options=self.options
        )
        start, count = self.feed.start, len(self.feed)
        ends = np.cumsum([0, *(self.steps or [count])]).tolist()
        rows = []
        with bench.compiled() as executable:
            state = executable.import_(self._exported(), start + count)
            for span in pairwise(ends):
                rows += advance(executable, state, self.feed, span, self.wants)
        return outputs.observed(self.wants, rows)

    def _exported(self) -> ExportedState:
        """Return the sequence up to the first row, without rows that no window reaches."""
        start = self.feed.start
        slots = {name: planes_of(slot) for name, slot in self.before.items()}
        state = ExportedState({"trunk": start}, np.zeros(start, np.int32), slots)
        return behind_window(state, windows_of(self.probe.program))

    def inputs(self) -> Observations:
        """Return the rows fed, and the state before them."""
        found = Scenario(self.probe.program, self.probe.weights, [self.feed]).inputs()
        for name, slot in self.before.items():
            keys, values = slot
            found |= {f"{name}: keys": keys.q, f"{name}: values": values.q}
            found |= {f"{name}: key exponents": keys.e, f"{name}: value exponents": values.e}
        return found

    def localise(self, subject: Subject, found: Divergence) -> Divergence:
        """Return the divergence: there is one operator, and its values were compared."""
        return found


def _copied(slot: Any) -> Any:
    """Copy a slot, so that the oracle may append to it."""
    return [Quantised(rows.q, rows.e) for rows in slot]
