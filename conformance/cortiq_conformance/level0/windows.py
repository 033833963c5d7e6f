"""Rows behind a window, which a backend may give up: the same bits as if it kept them all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from cortiq_conformance.case import Case, Scenario
from cortiq_conformance.drives import Chunks, Drive
from cortiq_conformance.level0 import states
from cortiq_conformance.level0.exports import Canonical
from cortiq_conformance.level0.sequences import attention
from cortiq_conformance.moves import Export, Fork, Rewind, Snapshot
from cortiq_conformance.probes import Probe
from cortiq_conformance.source import Source

STAGE = states.STAGE + 1
"""What goes wrong without windows too is found there."""
WINDOW, ROWS = 20, 500
"""Several tiles are given up, and the rows are more than one piece of a batch."""
CUT, SLACK = 420, 64
Options = Mapping[str, Any]
POISONED = {"page_rows": 48, "extra": {"poison": True}}
WAYS: dict[str, tuple[Drive, Options]] = {
    "all rows in one batch": (Chunks(), {}),
    "chunks of 50": (Chunks(50), {}),
    "chunks of 50, unused memory poisoned": (Chunks(50), POISONED),
    "all rows kept": (Chunks(50), {"full_windows": True}),
    "rewind over 64 rows": (Rewind(CUT, SLACK), {}),
    "rewind over 64 rows, poisoned": (Rewind(CUT, SLACK), POISONED),
    "rewind to behind what is kept": (Rewind(250, 200), {}),
    "snapshot": (Snapshot(CUT, SLACK), {}),
    "two forks": (Fork(CUT, SLACK), {}),
    "moved to pages of 16 rows": (Export(CUT), {}),
}
"""How the rows are driven, by description."""


def cases() -> Iterator[Case]:
    """Cases of windows in level 0."""
    for what, (drive, options) in WAYS.items():
        build = partial(_scenario, drive, options)
        yield Case(f"level0/windows[{what}]", 0, "windows", "Attend", build, STAGE)
    name = "level0/windows[the canonical layout out and in]"
    yield Case(name, 0, "windows", "Attend", _canonical, STAGE)


def _probe() -> Probe:
    return attention((2, 1, 8, 8), window=WINDOW)


def _scenario(drive: Drive, options: Options, source: Source) -> Scenario:
    probe = _probe()
    feeds = [probe.feed(source, ROWS, 1.5)]
    return Scenario(probe.program, probe.weights, feeds, drive=drive, options=options)


def _canonical(source: Source) -> Canonical:
    probe = _probe()
    return Canonical(probe, probe.feed(source, ROWS), CUT)
