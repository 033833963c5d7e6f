"""Rows in chunks, batches, after rewinds, forks and moves: bits must not change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from cortiq_conformance.case import Case, Scenario
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.drives import BatchedDrive, ChunkedDrive, Drive
from cortiq_conformance.level0 import compressed, keys, ngrams
from cortiq_conformance.level0.blocks import sparse
from cortiq_conformance.level0.recurrences import PROBES
from cortiq_conformance.level0.sequences import attention, conv
from cortiq_conformance.probes import ProbeProgram
from cortiq_conformance.state_drives import ExportDrive, ForkDrive, RewindDrive, SnapshotDrive

STAGE = 2
CUT, ROWS = 64, 150
"""Going back and branching off happen where a tile ends, so that they test nothing else."""

WHOLE = ChunkedDrive()
DRIVES: dict[str, dict[str, Drive]] = {
    "chunks": {f"of {n}": ChunkedDrive(n) for n in (1, 7, 64, 65)},
    "batch": {"whole": BatchedDrive(), "64 rows at a time": BatchedDrive(64)},
    "rewind": {"over 16 rows": RewindDrive(CUT), "over 86 rows": RewindDrive(CUT, 86)},
    "snapshot": {"over 16 rows": SnapshotDrive(CUT)},
    "fork": {"two forks": ForkDrive(CUT, 64)},
    "export": {"to pages of 16 rows": ExportDrive(CUT)},
}
"""By family and description."""


def probes() -> dict[str, Callable[[CaseData], ProbeProgram]]:
    """Return a program for each kind of slot."""
    return {
        "attention": lambda source: attention((2, 1, 8, 8)),
        "convolution": lambda source: conv(source),
        "block attention": sparse,
        "key attention": keys.sparse,
        "compression": compressed.compress,
        "delta rule": lambda source: PROBES["DeltaRule"](),
        "diagonal delta rule": lambda source: PROBES["DiagonalDeltaRule"](),
        "state space": lambda source: PROBES["StateSpace"](),
        "n-grams": lambda source: ngrams.hashes(),
    }


OPERATORS = {
    "attention": "Attend", "block attention": "Attend", "key attention": "Attend",
    "convolution": "CausalConv", "compression": "Compress",
    "delta rule": "DeltaRule", "diagonal delta rule": "DiagonalDeltaRule",
    "state space": "StateSpace", "n-grams": "HashNGrams",
}  # fmt: skip
"""The operator that each program is of."""


def cases() -> Iterator[Case]:
    """Yield state cases of level 0."""
    for slot, probe in probes().items():
        op = OPERATORS[slot]
        for family, drives in DRIVES.items():
            for what, drive in drives.items():
                yield Case(f"level0/{family}[{slot}, {what}]", 0, family, op,
                           partial(_scenario, probe, drive, family), STAGE)  # fmt: skip
        yield Case(f"level0/unused memory[{slot}, poisoned]", 0, "unused memory", op,
                   partial(_poisoned, probe), STAGE)  # fmt: skip


def _scenario(
    make: Callable[[CaseData], ProbeProgram], drive: Drive, family: str, source: CaseData
) -> Scenario:
    probe = make(source)
    counts = (ROWS, 90, 64) if family == "batch" else (ROWS,)
    feeds = [probe.feed(source, rows, 1.5) for rows in counts]
    return Scenario(probe.program, probe.weights, feeds, drive=drive)


def _poisoned(make: Callable[[CaseData], ProbeProgram], source: CaseData) -> Scenario:
    probe = make(source)
    options = {"page_rows": 48, "extra": {"poison": True}}
    return replace(probe.scenario(source, 100), options=options)
