"""Attention over three and four runs of tiles, in sequences imported up to their end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from cortiq.backend import Named
from cortiq.ir import ops
from cortiq_conformance.case import Case
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.import_scenario import ImportScenario, rows_before
from cortiq_conformance.level0.blocks import CHOSEN, DIM, block_attention
from cortiq_conformance.level0.sequences import attention, sink_values, slopes_of, until
from cortiq_conformance.level0.states import STAGE
from cortiq_conformance.probes import OUTPUT, ProbeProgram

KEYS = {3: 2048 + 2 * 64 + 10, 4: 3072 + 3 * 64 + 7}
"""Rows before the first that is fed, by runs of tiles; as many tiles meet in the last run."""
STEPS = (1, 1, 17)
"""Rows fed at a time: backends have kernels for one and for many."""
WINDOWS = {3: 2000, 4: 3000}
"""Windows over so many runs, whose first and last key are inside a tile."""
FEW = (1, 5)
"""Rows that choose blocks."""
FORTY = ops.ChooseBlocks(2, DIM, 16, 40)
"""Forty blocks of a sequence, from every run of its tiles."""
HUNDREDS = ops.ChooseKeys(4, DIM, 300)
"""Three hundred keys of a sequence, from every run of its tiles."""
MADE: Mapping[str, tuple[str, Callable[[int, CaseData], ProbeProgram]]] = {
    "Attend": ("", lambda runs, s: attention((6, 1, 8, 12) if runs == 4 else (4, 2, 16, 16))),
    "Attend window": ("", lambda runs, s: attention((2, 1, 8, 8), window=WINDOWS[runs])),
    "Attend sinks": ("", lambda runs, s: attention(sinks=sink_values(s, 4))),
    "Attend soft cap": ("", lambda runs, s: attention(soft_cap=5.0)),
    "Attend slopes": ("", lambda runs, s: attention((6, 2, 8, 8), slopes=slopes_of(6))),
    "Attend block": (", all rows of a step", lambda runs, s: until()),
    "Attend span": (", a window and all rows of a step", lambda runs, s: until(WINDOWS[runs])),
    "Attend blocks": (", 40 blocks of 16 keys", lambda runs, s: block_attention(FORTY)),
    "Attend keys": (", 300 keys", lambda runs, s: block_attention(HUNDREDS)),
}
"""By family: what else an id says, and the program."""
PAGED: Mapping[str, Any] = {"page_rows": 64, "extra": {"poison": True}}


def cases() -> Iterator[Case]:
    """Yield the cases of attention beyond a run of tiles."""
    for runs, keys in KEYS.items():
        for family, (more, make) in MADE.items():
            what = f"{runs} runs of tiles{more}"
            yield _case(family, "Attend", what, partial(_imported, make, runs, keys, {}))
        what = f"40 of the blocks of 16 in {keys} keys"
        yield _case("ChooseBlocks", "ChooseBlocks", what, partial(_choosing, FORTY, keys))
        yield _case(
            "ChooseKeys", "ChooseKeys", f"300 of {keys}", partial(_choosing, HUNDREDS, keys)
        )
        build = partial(_imported, MADE["Attend"][1], runs, keys, PAGED)
        what = f"attention, {runs} runs of tiles, poisoned pages of 64 rows"
        yield replace(_case("unused memory", "Attend", what, build), stage=STAGE)
    what = "100, across the end of a run of tiles"
    yield _case("Attend window", "Attend", what, _across)
    build = partial(_imported, MADE["Attend sinks"][1], 2, 1024 + 70, {})
    yield _case("Attend sinks", "Attend", "2 runs of tiles", build)


def _case(family: str, op: str, what: str, build: Callable[[CaseData], ImportScenario]) -> Case:
    return Case(f"level0/{family}[{what}]", 0, family, op, build)


def _imported(
    make: Callable[[int, CaseData], ProbeProgram],
    runs: int,
    keys: int,
    options: Mapping[str, Any],
    source: CaseData,
) -> ImportScenario:
    probe = make(runs, source)
    steps = FEW if CHOSEN in probe.program.trunk.outputs else STEPS
    return _continued(probe, keys, steps, source, options)


def _continued(
    probe: ProbeProgram,
    keys: int,
    steps: tuple[int, ...],
    source: CaseData,
    options: Mapping[str, Any] | None = None,
) -> ImportScenario:
    """Return rows of the probe that follow the imported ones."""
    feed = replace(probe.feed(source, sum(steps)), start=keys)
    if "last" in probe.program.trunk.inputs:
        last = np.repeat(keys + np.cumsum(steps) - 1, steps).astype(np.int32)
        feed = replace(feed, inputs={**feed.inputs, "last": last})
    before = rows_before(probe, source, keys)
    return ImportScenario(probe, feed, before, steps, (Named(OUTPUT),), options or {})


def _choosing(op: ops.ChooseBlocks | ops.ChooseKeys, keys: int, source: CaseData) -> ImportScenario:
    probe = block_attention(op)
    return replace(_continued(probe, keys, FEW, source), wants=(Named(CHOSEN),))


def _across(source: CaseData) -> ImportScenario:
    """Return rows whose windows begin in one run and end in the next."""
    return _continued(attention((2, 1, 8, 8), window=100), 1000, (1, 60, 70), source)
