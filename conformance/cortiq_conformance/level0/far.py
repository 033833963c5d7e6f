"""Rotary embedding at the far end of a long context: sequences imported where they start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from cortiq.numerics.rope import RopeTable
from cortiq.numerics.rope_scaling import Growth, Linear
from cortiq_conformance.case import Case
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.import_scenario import ImportScenario
from cortiq_conformance.level0.sequences import TABLE, rope
from cortiq_conformance.probes import ProbeProgram

POSITIONS = 1 << 17
ROWS = 8
PROBES: Mapping[str, ProbeProgram] = {
    "pairs of halves": rope(TABLE),
    "interleaved pairs": rope(RopeTable(1e6, 64), "interleaved", heads=2, width=64),
    "scaled linearly": rope(RopeTable(500000.0, 16, Linear(4.0))),
    "an amplitude that grows": rope(RopeTable(1e6, 16, Growth(Linear(4.0), 0.1, 8192))),
}


def cases() -> Iterator[Case]:
    """Yield rotations at positions 131,064 to 131,071."""
    for what, probe in PROBES.items():
        name = f"level0/Rope[{what}, the last {ROWS} of {POSITIONS} positions]"
        yield Case(name, 0, "Rope", "Rope", partial(_build, probe))


def _build(probe: ProbeProgram, source: CaseData) -> ImportScenario:
    long = replace(probe, program=replace(probe.program, context=POSITIONS))
    return ImportScenario(long, replace(long.feed(source, ROWS), start=POSITIONS - ROWS))
