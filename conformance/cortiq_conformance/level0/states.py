"""The same rows in chunks, batches, after going back, branching off, moving: the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from cortiq_conformance.case import Case, Scenario
from cortiq_conformance.drives import Chunks, Drive, Together
from cortiq_conformance.level0.blocks import sparse
from cortiq_conformance.level0.recurrences import PROBES
from cortiq_conformance.level0.sequences import attention, conv
from cortiq_conformance.moves import Export, Fork, Rewind, Snapshot
from cortiq_conformance.probes import Probe
from cortiq_conformance.source import Source

STAGE = 2
CUT, ROWS = 64, 150
"""Going back and branching off happen where a tile ends, so that they test nothing else."""

WHOLE = Chunks()
DRIVES: dict[str, dict[str, Drive]] = {
    "chunks": {f"of {n}": Chunks(n) for n in (1, 7, 64, 65)},
    "batch": {"whole": Together(), "64 rows at a time": Together(64)},
    "rewind": {"over 16 rows": Rewind(CUT), "over 86 rows": Rewind(CUT, 86)},
    "snapshot": {"over 16 rows": Snapshot(CUT)},
    "fork": {"two forks": Fork(CUT, 64)},
    "export": {"to pages of 16 rows": Export(CUT)},
}
"""By family and description."""


def probes() -> dict[str, Callable[[Source], Probe]]:
    """A program for each kind of slot."""
    return {
        "attention": lambda source: attention((2, 1, 8, 8)),
        "convolution": lambda source: conv(source),
        "block attention": sparse,
        "delta rule": lambda source: PROBES["DeltaRule"](),
        "state space": lambda source: PROBES["StateSpace"](),
    }


OPERATORS = {
    "attention": "Attend", "block attention": "Attend",
    "convolution": "CausalConv",
    "delta rule": "DeltaRule", "state space": "StateSpace",
}  # fmt: skip
"""The operator that each program is of."""


def cases() -> Iterator[Case]:
    """State cases of level 0."""
    for slot, probe in probes().items():
        op = OPERATORS[slot]
        for family, drives in DRIVES.items():
            for what, drive in drives.items():
                yield Case(f"level0/{family}[{slot}, {what}]", 0, family, op,
                           partial(_scenario, probe, drive, family), STAGE)  # fmt: skip
        yield Case(f"level0/unused memory[{slot}, poisoned]", 0, "unused memory", op,
                   partial(_poisoned, probe), STAGE)  # fmt: skip


def _scenario(
    make: Callable[[Source], Probe], drive: Drive, family: str, source: Source
) -> Scenario:
    probe = make(source)
    counts = (ROWS, 90, 64) if family == "batch" else (ROWS,)
    feeds = [probe.feed(source, rows, 1.5) for rows in counts]
    return Scenario(probe.program, probe.weights, feeds, drive=drive)


def _poisoned(make: Callable[[Source], Probe], source: Source) -> Scenario:
    probe = make(source)
    options = {"page_rows": 48, "extra": {"poison": True}}
    return replace(probe.scenario(source, 100), options=options)
