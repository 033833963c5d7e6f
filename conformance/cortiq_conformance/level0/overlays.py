"""Rows of a batch that choose overlays: low-rank products beside a product, and vectors around it.

Several sequences are in one batch, three rows and more of each overlay, neighbours and apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from cortiq.ir import Type, WeightSpec, ops
from cortiq.ir.overlay_graphs import with_overlays
from cortiq.ir.overlays import OVERLAY, OVERLAY_INDEX, OverlayChange
from cortiq.numerics.layouts import Weight
from cortiq.numerics.weights import convert
from cortiq_conformance.case import Case, Scenario
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.case_overlays import SMALL
from cortiq_conformance.case_weights import typical
from cortiq_conformance.drives import BatchedDrive, SequenceInput
from cortiq_conformance.probes import ProbeProgram, floats, one

SEQUENCES = 2
"""Stage of level 0: after the primitives that overlays are made of."""
MEMBERS, COLUMNS, HEIGHT = 5, 96, 40
NUMBERS = (1, 0, 4, 2, 1, 3, 4, 1)
"""Overlays of the sequences of a batch."""
ROWS = 3
CHOSEN = 3
STACKS: Mapping[str, ops.ExpertMatMul | ops.HeadMatMul] = {
    "3 of 6 experts": ops.ExpertMatMul(6, COLUMNS, HEIGHT),
    "4 heads": ops.HeadMatMul(4, COLUMNS, HEIGHT),
}
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
CHANGES_OF_STACKS = {
    "products of rank 5 and all vectors": OverlayChange(5, True, True, True, shift=True),
    "matrices of their own, and all else": OverlayChange(5, True, True, True, False, True, True),
}


def cases() -> Iterator[Case]:
    """Yield overlays of level 0."""
    for layout in ("w16", "Q4_1", "f32"):
        for what, change in CHANGES.items():
            build = partial(_batch, layout, change)
            case_id = f"level0/overlay[{layout}, {what}]"
            yield Case(case_id, 0, "overlay", "ExpertMatMul", build, SEQUENCES)
    for of, op in STACKS.items():
        for what, change in CHANGES_OF_STACKS.items():
            case_id, build = f"level0/overlay[{of}, {what}]", partial(_stacks, op, change)
            yield Case(case_id, 0, "overlay", "ExpertMatMul", build, SEQUENCES)


def _stacks(
    op: ops.ExpertMatMul | ops.HeadMatMul, change: OverlayChange, source: CaseData
) -> Scenario:
    """Return products of chosen experts, or of heads, with a change of each."""
    experts = isinstance(op, ops.ExpertMatMul)
    count = op.experts if isinstance(op, ops.ExpertMatMul) else op.heads
    inputs = {"x": floats(CHOSEN if experts else count, COLUMNS)}
    if experts:
        inputs["index"] = Type((CHOSEN,), "i32")
    weight = typical(source, "w16", count * HEIGHT, COLUMNS)
    probe = one(op, inputs, {"weight": weight}, ("x",), limits={"index": count})
    return _scenario(probe, change, source, lambda n: probe.feed(source, ROWS).inputs)


def _batch(layout: str, change: OverlayChange, source: CaseData) -> Scenario:
    weight = typical(source, layout, HEIGHT, COLUMNS)
    quantised = () if layout == "f32" else ("x",)
    op = ops.MatMul(COLUMNS, HEIGHT)
    probe = one(op, {"x": floats(COLUMNS)}, {"weight": weight}, quantised)
    return _scenario(probe, change, source, lambda n: {"x": source.floats(ROWS, COLUMNS)})


def _scenario(
    probe: ProbeProgram,
    change: OverlayChange,
    source: CaseData,
    given: Callable[[int], Mapping[str, np.ndarray]],
) -> Scenario:
    """Return a batch of a probe's rows, which `given` supplies for each sequence."""
    program = with_overlays(probe.program, MEMBERS, {("weight", False): change})
    specs = {name: spec for name, spec in program.weights.items() if name != "weight"}
    banks = {name: _bank(source, name, spec) for name, spec in specs.items()}
    feeds = [_feed(given(number), number) for number in NUMBERS]
    return Scenario(program, {**probe.weights, **banks}, feeds, drive=BatchedDrive())


def _bank(source: CaseData, name: str, spec: WeightSpec) -> Weight:
    shape = spec.shape
    if len(shape) == 2:
        return Weight.from_floats(source.floats(*shape, amplitude=SMALL) + 1)
    rows = shape[0] * shape[1]
    if name.endswith("@whole"):
        return typical(source, str(spec.layout), rows, shape[2])
    return convert(Weight.from_floats(source.floats(rows, shape[2])), "w16", "bank")


def _feed(given: Mapping[str, np.ndarray], number: int) -> SequenceInput:
    chosen = np.full(ROWS, number, np.int32)
    given = {**given, OVERLAY: chosen, OVERLAY_INDEX: chosen[:, None]}
    return SequenceInput(np.zeros(ROWS, np.int32), given)
