"""The canonical layout of a sequence: exported byte for byte, and continued from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial

import numpy as np

from cortiq.backend import ExportedState, KVPlanes, Named
from cortiq.backend.windows import windows_of
from cortiq_conformance import outputs
from cortiq_conformance.case import Case, Scenario
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.compare import Divergence
from cortiq_conformance.drives import ProgramUnderTest, SequenceInput, advance
from cortiq_conformance.import_scenario import behind_window, planes_of
from cortiq_conformance.level0.states import CUT, OPERATORS, STAGE, probes
from cortiq_conformance.oracle import OracleSequence
from cortiq_conformance.outputs import Observations
from cortiq_conformance.probes import ProbeProgram
from cortiq_conformance.subject import Subject

WANTS = (Named("y"),)
ROWS = 100


def cases() -> Iterator[Case]:
    """Yield a case for each kind of slot."""
    for slot, probe in probes().items():
        op = OPERATORS[slot]
        name = f"level0/export[{slot}, the canonical layout out and in]"
        yield Case(name, 0, "export", op, partial(_build, probe), STAGE)


def _build(make: Callable[[CaseData], ProbeProgram], source: CaseData) -> ExportScenario:
    probe = make(source)
    return ExportScenario(probe, probe.feed(source, ROWS))


@dataclass(frozen=True)
class ExportScenario:
    """Feeds `cut` rows and exports; imports the export by definition, and continues.

    Rows behind a window are not compared, and not part of the import.
    """

    probe: ProbeProgram
    feed: SequenceInput
    cut: int = CUT

    def _defined(self) -> tuple[ExportedState, Observations]:
        oracle = OracleSequence(self.probe.program, self.probe.weights)
        start, rest = self.feed.cut(0, self.cut), self.feed.cut(self.cut, len(self.feed))
        oracle.feed(start.tokens, start.inputs)
        slots = {name: planes_of(value) for name, value in oracle.slots.items()}
        lengths = {"trunk": self.cut}
        state = self._kept(ExportedState(lengths, start.tokens.astype(np.int32), slots))
        evaluation = oracle.feed(rest.tokens, rest.inputs)
        return state, outputs.expected(WANTS, evaluation, oracle.tokens)

    def _kept(self, state: ExportedState) -> ExportedState:
        return behind_window(state, windows_of(self.probe.program))

    def expected(self) -> Observations:
        """Return the layout, and the rows after an import."""
        state, after = self._defined()
        return {**_arrays(state), **after}

    def observe(self, subject: Subject) -> Observations:
        """Return the backend's result."""
        bench = ProgramUnderTest(subject, self.probe.program, self.probe.weights)
        given, _ = self._defined()
        with bench.compiled() as executable:
            end = len(self.feed)
            state = executable.open(end)
            advance(executable, state, self.feed, (0, self.cut), WANTS)
            found = _arrays(self._kept(state.export()))
            moved = executable.import_(given, end)
            rows = advance(executable, moved, self.feed, (self.cut, end), WANTS)
        return {**found, **outputs.observed(WANTS, rows)}

    def inputs(self) -> Observations:
        """Return the inputs before and after the export."""
        return Scenario(self.probe.program, self.probe.weights, [self.feed]).inputs()

    def localise(self, subject: Subject, found: Divergence) -> Divergence:
        """Return the divergence: the array's name gives the place."""
        return found


def _arrays(state: ExportedState) -> Observations:
    """Return every part of an exported state, with planes widened to int32."""
    found: Observations = {"ids": np.asarray(state.tokens, np.int32)}
    found |= {f"rows of {n}": np.array([c], np.int32) for n, c in state.lengths.items()}
    for name, slot in state.slots.items():
        if isinstance(slot, KVPlanes):
            parts = {f.name: getattr(slot, f.name) for f in fields(slot)}
            found |= {f"{name}: {part}": a.astype(np.int32) for part, a in parts.items()}
        else:
            found[name] = np.asarray(slot, np.float32)
    return found
