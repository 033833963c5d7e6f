"""Sequences imported as if they had been fed, and then fed a few rows: long contexts, cheaply."""

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
from cortiq_conformance import wants as want_arrays
from cortiq_conformance.case import Scenario
from cortiq_conformance.compare import Divergence
from cortiq_conformance.drives import Bench, Feed, advance
from cortiq_conformance.oracle import Oracle
from cortiq_conformance.probes import Probe
from cortiq_conformance.source import Source
from cortiq_conformance.subject import Subject
from cortiq_conformance.wants import Observations

Slots = Mapping[str, Any]
"""What a sequence holds, by slot, as the oracle keeps it: key and value rows, or an array."""


def planes_of(slot: Any) -> KVPlanes | np.ndarray:
    """A slot of the oracle in the canonical layout."""
    if isinstance(slot, np.ndarray):
        return slot
    keys, values = slot
    exponents = [rows.e.astype(np.int8) for rows in (keys, values)]
    return KVPlanes(*planes(keys.q), exponents[0], *planes(values.q), exponents[1])


def behind_window(state: ExportedState, windows: Mapping[str, int]) -> ExportedState:
    """The state without rows that no window reaches: they need not be there."""
    length = state.lengths["trunk"]
    slots = {
        name: slot.last(length - kept_from(length, windows.get(name)))
        if isinstance(slot, KVPlanes)
        else slot
        for name, slot in state.slots.items()
    }
    return replace(state, slots=slots)


def rows_before(probe: Probe, source: Source, count: int) -> Slots:
    """Random key and value rows for `count` positions of every slot of the program."""
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
class Imported:
    """Imports a sequence, and feeds it the rows of `feed`, which begin at `feed.start`.

    Attributes
    ----------
    before : what the sequence holds of the rows before, by slot.
    steps : how many rows are fed at a time; none for all at once.
    options : of compilation.
    """

    probe: Probe
    feed: Feed
    before: Slots = field(default_factory=dict)
    steps: Sequence[int] = ()
    wants: Sequence[Want] = (Named("y"),)
    options: Mapping[str, Any] = field(default_factory=dict)

    def expected(self) -> Observations:
        """By definition; computed once."""
        return dict(self._definition)

    @cached_property
    def _definition(self) -> Observations:
        oracle = Oracle(self.probe.program, self.probe.weights)
        oracle.tokens, oracle.lengths = [0] * self.feed.start, {"trunk": self.feed.start}
        oracle.slots |= {name: _copied(slot) for name, slot in self.before.items()}
        evaluation = oracle.feed(self.feed.tokens, self.feed.inputs)
        return want_arrays.expected(self.wants, evaluation, oracle.tokens)

    def observe(self, subject: Subject) -> Observations:
        """On the backend."""
        bench = Bench(subject, self.probe.program, self.probe.weights, options=self.options)
        start, count = self.feed.start, len(self.feed)
        ends = np.cumsum([0, *(self.steps or [count])]).tolist()
        rows = []
        with bench.compiled() as executable:
            state = executable.import_(self._exported(), start + count)
            for span in pairwise(ends):
                rows += advance(executable, state, self.feed, span, self.wants)
        return want_arrays.observed(self.wants, rows)

    def _exported(self) -> ExportedState:
        """The sequence up to the first row, without rows that no window reaches."""
        start = self.feed.start
        slots = {name: planes_of(slot) for name, slot in self.before.items()}
        state = ExportedState({"trunk": start}, np.zeros(start, np.int32), slots)
        return behind_window(state, windows_of(self.probe.program))

    def inputs(self) -> Observations:
        """The rows fed, and what was there before them."""
        found = Scenario(self.probe.program, self.probe.weights, [self.feed]).inputs()
        for name, slot in self.before.items():
            keys, values = slot
            found |= {f"{name}: keys": keys.q, f"{name}: values": values.q}
            found |= {f"{name}: key exponents": keys.e, f"{name}: value exponents": values.e}
        return found

    def localise(self, subject: Subject, found: Divergence) -> Divergence:
        """There is one operator, and its values were compared."""
        return found


def _copied(slot: Any) -> Any:
    """A slot that the oracle may append to."""
    return [Quantised(rows.q, rows.e) for rows in slot]
