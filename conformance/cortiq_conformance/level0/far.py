"""Rotary embedding at the far end of a long context: sequences imported where they start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from cortiq.backend import Batch, ExportedState, Named, Row, Status
from cortiq.numerics.rope import RopeTable
from cortiq.numerics.rope_scaling import Linear
from cortiq_conformance import wants as want_arrays
from cortiq_conformance.case import Case, Scenario
from cortiq_conformance.compare import Divergence
from cortiq_conformance.drives import Bench, Feed, StoppedError
from cortiq_conformance.level0.sequences import TABLE, rope
from cortiq_conformance.oracle import Oracle
from cortiq_conformance.probes import Probe
from cortiq_conformance.source import Source
from cortiq_conformance.subject import Subject
from cortiq_conformance.wants import Observations

POSITIONS = 1 << 17
ROWS = 8
WANTS = (Named("y"),)
PROBES: Mapping[str, Probe] = {
    "pairs of halves": rope(TABLE),
    "interleaved pairs": rope(RopeTable(1e6, 64), "interleaved", heads=2, width=64),
    "scaled linearly": rope(RopeTable(500000.0, 16, Linear(4.0))),
}


def cases() -> Iterator[Case]:
    """Rotations at positions 131,064 to 131,071."""
    for what, probe in PROBES.items():
        name = f"level0/Rope[{what}, the last {ROWS} of {POSITIONS} positions]"
        yield Case(name, 0, "Rope", "Rope", partial(_build, probe))


def _build(probe: Probe, source: Source) -> Far:
    long = replace(probe, program=replace(probe.program, context=POSITIONS))
    return Far(long, long.feed(source, ROWS))


@dataclass(frozen=True)
class Far:
    """Imports a sequence without slots, as if it had been fed, and feeds it its last rows."""

    probe: Probe
    feed: Feed

    def expected(self) -> Observations:
        """By definition."""
        oracle = Oracle(self.probe.program, self.probe.weights)
        oracle.tokens, oracle.lengths = [0] * (POSITIONS - ROWS), {"trunk": POSITIONS - ROWS}
        evaluation = oracle.feed(self.feed.tokens, self.feed.inputs)
        return want_arrays.expected(WANTS, evaluation, oracle.tokens)

    def observe(self, subject: Subject) -> Observations:
        """On the backend."""
        start = POSITIONS - ROWS
        before = ExportedState({"trunk": start}, np.zeros(start, np.int32), {})
        with Bench(subject, self.probe.program, self.probe.weights).compiled() as executable:
            state = executable.import_(before, POSITIONS)
            rows = [
                Row(state, start + i, int(token), WANTS, {"x": self.feed.inputs["x"][i]})
                for i, token in enumerate(self.feed.tokens)
            ]
            result = executable.forward(Batch(rows)).result()
            outcome = result.outcomes[state]
            if outcome.status is not Status.COMPLETED:
                raise StoppedError(f"the sequence was {outcome.status.value}: {outcome.reason}")
        return want_arrays.observed(WANTS, list(result.rows))

    def inputs(self) -> Observations:
        """The last rows."""
        return Scenario(self.probe.program, self.probe.weights, [self.feed]).inputs()

    def localise(self, subject: Subject, found: Divergence) -> Divergence:
        """There is one operator, and its values were compared."""
        return found
