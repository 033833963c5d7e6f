"""Decoding steps whose logits are a table's rows: nothing but the draws is computed.

Rows supply no values, so that a backend which captures its steps, or runs them ahead, does so here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from cortiq.backend import Argmax, Digest, Draw, DrawnLogit, Top, Want
from cortiq.ir import Builder
from cortiq.ir.layers import Embedding
from cortiq.numerics.layouts import LAYOUTS, Weight
from cortiq.numerics.masks import mask_of
from cortiq.numerics.sampling import Sampling
from cortiq_conformance.case import Case, Scenario
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.drives import BatchedDrive, Drive, SequenceInput
from cortiq_conformance.level0.tails import CHAINS, MASKED, VOCABULARY
from cortiq_conformance.state_drives import ExportDrive, ForkDrive, RewindDrive, SnapshotDrive

SEQUENCES = 2
"""Stage of level 0."""
IDS, ROWS, CUT = 30, 24, 12
DIGEST = Digest("logits")
COUNTED = Sampling(0.0, repetition_penalty=1.3, frequency_penalty=-2.0)
"""Draws mostly the id that its history has most often."""
DRIVES: dict[str, tuple[str, Drive]] = {
    "rewind": ("over 8 rows", RewindDrive(CUT, 8, 1)),
    "snapshot": ("over 8 rows", SnapshotDrive(CUT, 8, 1)),
    "fork": ("two forks", ForkDrive(CUT, 8, 1)),
    "export": ("to pages of 16 rows", ExportDrive(CUT, chunk=1)),
}
"""By family: description and drive."""


def cases() -> Iterator[Case]:
    """Yield steps of level 0."""
    yield _case("every option, in one batch step by step", partial(_together, _options()))
    yield _case("equal logits where a prefix ends, step by step", _tied)
    for family, (what, drive) in DRIVES.items():
        yield Case(
            f"level0/{family}[penalised draws, {what}]", 0, family, "Draw",
            partial(_after, drive), SEQUENCES,
        )  # fmt: skip


def _case(what: str, build: partial[Scenario] | object) -> Case:
    return Case(f"level0/Draw[{what}]", 0, "Draw", "Draw", build)  # type: ignore[arg-type]


def _options() -> list[tuple[Want, ...]]:
    """Return what each of many sequences wants: every chain, masks, and values besides."""
    found: list[tuple[Want, ...]] = [(Draw(chain), DIGEST) for chain in CHAINS.values()]
    for chain, ids in MASKED.values():
        found.append((Draw(chain, mask=mask_of(ids, VOCABULARY)), DIGEST, DrawnLogit()))
    return [
        *found,
        (Argmax(), DIGEST, DrawnLogit(0.7)),
        (Draw(Sampling(seed=11), choice=2), Top(5), DrawnLogit()),
        (Draw(COUNTED), DIGEST, Top(3)),
    ]


def _table(source: CaseData, tied: bool = False) -> Scenario:
    """Return a program whose logits are a row of a table, and no sequences."""
    builder = Builder(context=256)
    token = builder.input("token")
    builder.input("position")
    table = Embedding(IDS, VOCABULARY)
    builder.add(table, token, name="logits", weights={"table": "table"})
    rows = source.integers(-3, 4, IDS, VOCABULARY) if tied else source.floats(IDS, VOCABULARY)
    values = (rows if tied else 2 * rows).astype("<f4")
    weights = {"table": Weight(LAYOUTS["f32"], values.shape, {"raw": values.view(np.uint8)})}
    program = builder.program(("logits",)).with_layouts({"table": "f32"})
    return Scenario(program, weights, [])


def _sequences(source: CaseData, wants: Sequence[tuple[Want, ...]]) -> list[SequenceInput]:
    return [SequenceInput(source.integers(0, 12, ROWS), wants=each) for each in wants]


def _together(wants: Sequence[tuple[Want, ...]], source: CaseData) -> Scenario:
    table = _table(source)
    feeds = _sequences(source, wants)
    return Scenario(table.program, table.weights, feeds, (Draw(COUNTED),), BatchedDrive(1))


def _tied(source: CaseData) -> Scenario:
    """Draw from many equal logits at a temperature at which the last ids kept are often drawn."""
    chains = [
        Sampling(2.0**10, top_k=40, seed=1), Sampling(2.0**10, top_k=200, top_p=0.5, seed=2),
        Sampling(1.5, top_p=0.3, seed=3), Sampling(2.0**10, top_p=0.01, seed=4),
    ]  # fmt: skip
    table = _table(source, tied=True)
    feeds = _sequences(source, [(Draw(chain), DIGEST) for chain in chains])
    return Scenario(table.program, table.weights, feeds, (Draw(COUNTED),), BatchedDrive(1))


def _after(drive: Drive, source: CaseData) -> Scenario:
    """Draw by a history that was forgotten in part, and went on otherwise."""
    table = _table(source)
    feed = SequenceInput(source.integers(0, 12, ROWS))
    return Scenario(table.program, table.weights, [feed], (Draw(COUNTED), DIGEST), drive)
