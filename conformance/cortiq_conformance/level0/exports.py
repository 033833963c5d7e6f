"""The canonical layout of a sequence: what is exported, byte for byte, and going on from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial

import numpy as np

from cortiq.backend import ExportedState, KVPlanes, Named
from cortiq.backend.windows import windows_of
from cortiq_conformance import wants as want_arrays
from cortiq_conformance.case import Case, Scenario
from cortiq_conformance.compare import Divergence
from cortiq_conformance.drives import Bench, Feed, advance
from cortiq_conformance.imported import behind_window, planes_of
from cortiq_conformance.level0.states import CUT, OPERATORS, STAGE, probes
from cortiq_conformance.oracle import Oracle
from cortiq_conformance.probes import Probe
from cortiq_conformance.source import Source
from cortiq_conformance.subject import Subject
from cortiq_conformance.wants import Observations

WANTS = (Named("y"),)
ROWS = 100


def cases() -> Iterator[Case]:
    """A case for each kind of slot."""
    for slot, probe in probes().items():
        op = OPERATORS[slot]
        name = f"level0/export[{slot}, the canonical layout out and in]"
        yield Case(name, 0, "export", op, partial(_build, probe), STAGE)


def _build(make: Callable[[Source], Probe], source: Source) -> Canonical:
    probe = make(source)
    return Canonical(probe, probe.feed(source, ROWS))


@dataclass(frozen=True)
class Canonical:
    """Feeds `cut` rows and exports; imports what the definitions export, and goes on.

    Rows behind the window, if there is one, are not looked at, and not there in what is imported.
    """

    probe: Probe
    feed: Feed
    cut: int = CUT

    def _defined(self) -> tuple[ExportedState, Observations]:
        oracle = Oracle(self.probe.program, self.probe.weights)
        start, rest = self.feed.cut(0, self.cut), self.feed.cut(self.cut, len(self.feed))
        oracle.feed(start.tokens, start.inputs)
        slots = {name: planes_of(value) for name, value in oracle.slots.items()}
        lengths = {"trunk": self.cut}
        state = self._kept(ExportedState(lengths, start.tokens.astype(np.int32), slots))
        evaluation = oracle.feed(rest.tokens, rest.inputs)
        return state, want_arrays.expected(WANTS, evaluation, oracle.tokens)

    def _kept(self, state: ExportedState) -> ExportedState:
        return behind_window(state, windows_of(self.probe.program))

    def expected(self) -> Observations:
        """The layout, and the rows after an import."""
        state, after = self._defined()
        return {**_arrays(state), **after}

    def observe(self, subject: Subject) -> Observations:
        """On the backend."""
        bench = Bench(subject, self.probe.program, self.probe.weights)
        given, _ = self._defined()
        with bench.compiled() as executable:
            end = len(self.feed)
            state = executable.open(end)
            advance(executable, state, self.feed, (0, self.cut), WANTS)
            found = _arrays(self._kept(state.export()))
            moved = executable.import_(given, end)
            rows = advance(executable, moved, self.feed, (self.cut, end), WANTS)
        return {**found, **want_arrays.observed(WANTS, rows)}

    def inputs(self) -> Observations:
        """What is fed, before and after the export."""
        return Scenario(self.probe.program, self.probe.weights, [self.feed]).inputs()

    def localise(self, subject: Subject, found: Divergence) -> Divergence:
        """The array's name says where."""
        return found


def _arrays(state: ExportedState) -> Observations:
    """Every part of an exported state; its planes widened to int32."""
    found: Observations = {"ids": np.asarray(state.tokens, np.int32)}
    found |= {f"rows of {n}": np.array([c], np.int32) for n, c in state.lengths.items()}
    for name, slot in state.slots.items():
        if isinstance(slot, KVPlanes):
            parts = {f.name: getattr(slot, f.name) for f in fields(slot)}
            found |= {f"{name}: {part}": a.astype(np.int32) for part, a in parts.items()}
        else:
            found[name] = np.asarray(slot, np.float32)
    return found
