"""Rows of a batch that choose overlays: low-rank products beside a product, and vectors around it.

Several sequences are in one batch, three rows and more of each overlay, neighbours and apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from cortiq.ir import WeightSpec, ops
from cortiq.ir.overlays import OVERLAY, OVERLAY_INDEX, OverlayChange, with_overlays
from cortiq.numerics.layouts import Weight
from cortiq.numerics.weights import convert
from cortiq_conformance.case import Case, Scenario
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.case_overlays import SMALL
from cortiq_conformance.case_weights import typical
from cortiq_conformance.drives import BatchedDrive, SequenceInput
from cortiq_conformance.probes import floats, one

SEQUENCES = 2
"""Stage of level 0: after the primitives that overlays are made of."""
MEMBERS, COLUMNS, HEIGHT = 5, 96, 40
NUMBERS = (1, 0, 4, 2, 1, 3, 4, 1)
"""Overlays of the sequences of a batch."""
ROWS = 3
CHANGES = {
    "products of rank 1": OverlayChange(1),
    "products of rank 16": OverlayChange(16),
    "products of rank 33, lengths": OverlayChange(33, gain=True),
    "vectors before and after": OverlayChange(before=True, after=True),
    "products of rank 5 and every vector": OverlayChange(5, True, True, True),
    "vectors before, and added ones": OverlayChange(before=True, shift=True),
    "products of rank 5, and added vectors": OverlayChange(5, shift=True),
    "matrices of their own": OverlayChange(whole=True),
    "matrices of their own, and products of rank 5": OverlayChange(5, whole=True),
}


def cases() -> Iterator[Case]:
    """Yield overlays of level 0."""
    for layout in ("w16", "Q4_1", "f32"):
        for what, change in CHANGES.items():
            build = partial(_batch, layout, change)
            case_id = f"level0/overlay[{layout}, {what}]"
            yield Case(case_id, 0, "overlay", "ExpertMatMul", build, SEQUENCES)


def _batch(layout: str, change: OverlayChange, source: CaseData) -> Scenario:
    weight = typical(source, layout, HEIGHT, COLUMNS)
    quantised = () if layout == "f32" else ("x",)
    op = ops.MatMul(COLUMNS, HEIGHT)
    probe = one(op, {"x": floats(COLUMNS)}, {"weight": weight}, quantised)
    program = with_overlays(probe.program, MEMBERS, {("weight", False): change})
    specs = {name: spec for name, spec in program.weights.items() if name != "weight"}
    banks = {name: _bank(source, name, spec) for name, spec in specs.items()}
    feeds = [_feed(source, number) for number in NUMBERS]
    return Scenario(program, {**probe.weights, **banks}, feeds, drive=BatchedDrive())


def _bank(source: CaseData, name: str, spec: WeightSpec) -> Weight:
    shape = spec.shape
    if len(shape) == 2:
        return Weight.from_floats(source.floats(*shape, amplitude=SMALL) + 1)
    rows = shape[0] * shape[1]
    if name.endswith("@whole"):
        return typical(source, str(spec.layout), rows, shape[2])
    return convert(Weight.from_floats(source.floats(rows, shape[2])), "w16", "bank")


def _feed(source: CaseData, number: int) -> SequenceInput:
    chosen = np.full(ROWS, number, np.int32)
    given = {"x": source.floats(ROWS, COLUMNS), OVERLAY: chosen, OVERLAY_INDEX: chosen[:, None]}
    return SequenceInput(np.zeros(ROWS, np.int32), given)
