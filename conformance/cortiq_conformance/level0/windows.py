"""Rows behind a window, which a backend may free without changing a bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from cortiq_conformance.case import Case, Scenario
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.drives import ChunkedDrive, Drive
from cortiq_conformance.level0 import states
from cortiq_conformance.level0.exports import ExportScenario
from cortiq_conformance.level0.sequences import attention
from cortiq_conformance.probes import ProbeProgram
from cortiq_conformance.state_drives import ExportDrive, ForkDrive, RewindDrive, SnapshotDrive

STAGE = states.STAGE + 1
"""After the state cases, which find faults that also occur without windows."""
WINDOW, ROWS = 20, 500
"""Several tiles are given up, and the rows are more than one piece of a batch."""
CUT, SLACK = 420, 64
Options = Mapping[str, Any]
POISONED = {"page_rows": 48, "extra": {"poison": True}}
WAYS: dict[str, tuple[Drive, Options]] = {
    "all rows in one batch": (ChunkedDrive(), {}),
    "chunks of 50": (ChunkedDrive(50), {}),
    "chunks of 50, unused memory poisoned": (ChunkedDrive(50), POISONED),
    "all rows kept": (ChunkedDrive(50), {"full_windows": True}),
    "rewind over 64 rows": (RewindDrive(CUT, SLACK), {}),
    "rewind over 64 rows, poisoned": (RewindDrive(CUT, SLACK), POISONED),
    "rewind to behind what is kept": (RewindDrive(250, 200), {}),
    "snapshot": (SnapshotDrive(CUT, SLACK), {}),
    "two forks": (ForkDrive(CUT, SLACK), {}),
    "moved to pages of 16 rows": (ExportDrive(CUT), {}),
}
"""Drives by description."""


def cases() -> Iterator[Case]:
    """Yield the cases of windows in level 0."""
    for what, (drive, options) in WAYS.items():
        build = partial(_scenario, drive, options)
        yield Case(f"level0/windows[{what}]", 0, "windows", "Attend", build, STAGE)
    name = "level0/windows[the canonical layout out and in]"
    yield Case(name, 0, "windows", "Attend", _canonical, STAGE)


def _probe() -> ProbeProgram:
    return attention((2, 1, 8, 8), window=WINDOW)


def _scenario(drive: Drive, options: Options, source: CaseData) -> Scenario:
    probe = _probe()
    feeds = [probe.feed(source, ROWS, 1.5)]
    return Scenario(probe.program, probe.weights, feeds, drive=drive, options=options)


def _canonical(source: CaseData) -> ExportScenario:
    probe = _probe()
    return ExportScenario(probe, probe.feed(source, ROWS), CUT)
