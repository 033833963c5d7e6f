"""Values outside the domain, flush-to-zero, and who really computes: for every primitive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from cortiq.backend import Executable, Named
from cortiq.ir import Program, ops
from cortiq.numerics.contract import F32
from cortiq.numerics.route import Router
from cortiq_conformance.call_counter import CallCounter
from cortiq_conformance.case import Case, NotRunError, Scenario
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.case_weights import extreme, typical
from cortiq_conformance.compare import Divergence
from cortiq_conformance.drives import BatchedDrive, SequenceInput
from cortiq_conformance.flush import available
from cortiq_conformance.level0 import (
    blocks,
    compressed,
    elementwise,
    keys,
    matrices,
    ngrams,
    recurrences,
    scaling,
    sequences,
)
from cortiq_conformance.outputs import Observations
from cortiq_conformance.probes import ProbeProgram, floats, one, through_quantise
from cortiq_conformance.subject import Subject

STAGE = 3
DELEGATED = "delegation behind the back (the reference ran, and placement names the backend)"
"""Label of a value that is 1 where a node said to be the backend's own was delegated."""
BAD_VALUES = (float("nan"), float("inf"), float("-inf"), 2.0**50)

PROBES: dict[str, Callable[[CaseData], ProbeProgram]] = {
    "Add": lambda s: elementwise.binary(ops.Add(), 64),
    "Multiply": lambda s: elementwise.binary(ops.Multiply(), 64),
    "Scale": lambda s: one(ops.Scale(0.3), {"x": floats(64)}),
    "Bias": elementwise.bias,
    "Activation": lambda s: one(ops.Activation("silu"), {"x": floats(64)}),
    "SoftCap": lambda s: one(ops.SoftCap(30.0), {"x": floats(64)}),
    "RMSNorm": lambda s: elementwise.rms_norm(s, 64),
    "LayerNorm": lambda s: elementwise.layer_norm(s, 64, True),
    "Slice": lambda s: one(ops.Slice(3, 50), {"x": floats(64)}),
    "Concat": lambda s: one(ops.Concat(), {"a": floats(8), "b": floats(5)}),
    "Permute": lambda s: elementwise.permute(s, 64),
    "Reshape": lambda s: one(ops.Reshape((8, 8)), {"x": floats(64)}),
    "Quantise": lambda s: through_quantise(64),
    "MatMul": lambda s: matrices.matmul(typical(s, "Q4_K", 20, 256)),
    "HeadMatMul": lambda s: matrices.head_matmul(s, "w8"),
    "ExpertMatMul": lambda s: matrices.expert_matmul(s, "w8", True),
    "EmbedRows": lambda s: matrices.embed(extreme(s, "Q4_1", 256)),
    "Rope": lambda s: sequences.rope(),
    "Attend": lambda s: sequences.attention(),
    "CausalConv": lambda s: sequences.conv(s),
    "Recall": lambda s: sequences.recall(),
    "Route": lambda s: matrices.route(s, Router(3), False),
    "CombineExperts": matrices.combine,
    "ChooseBlocks": blocks.choosing,
    "ChooseKeys": keys.choosing,
    "OwnBlock": lambda s: blocks.chunked_attention(16),
    "DeltaRule": lambda s: recurrences.PROBES["DeltaRule"](),
    "DiagonalDeltaRule": lambda s: recurrences.PROBES["DiagonalDeltaRule"](),
    "StateSpace": lambda s: recurrences.PROBES["StateSpace"](),
    "Gain": lambda s: scaling.gain(s, 48, "value", (2, 48)),
    "ScaleRows": scaling.scale_rows,
    "Shift": lambda s: one(ops.Shift(1.0), {"x": floats(64)}),
    "Clamp": lambda s: one(ops.Clamp(-1.0, 1.0), {"x": floats(64)}),
    "L2Norm": lambda s: one(ops.L2Norm(64, 1e-6), {"x": floats(64)}),
    "Softmax": lambda s: one(ops.Softmax(64), {"x": floats(64)}),
    "ExpertGain": lambda s: scaling.expert_gain(s, 40),
    "ExpertBias": scaling.expert_bias,
    "Sinkhorn": lambda s: compressed.sinkhorn(),
    "Compress": lambda s: compressed.compress(s, compressed.COMPRESSIONS["2 rows, overlapping"]),
    "ListKeys": lambda s: compressed.list_keys(),
    "KeepListed": compressed.keep_listed,
    "IndexSelect": scaling.index_select,
    "StackIndex": lambda s: matrices.stack_index(),
    "WindowBlocks": lambda s: ngrams.windows(),
    "HashNGrams": lambda s: ngrams.hashes(),
}
"""A small program around each primitive; StoreKV is part of Attend's."""


def cases() -> Iterator[Case]:
    """Yield robustness cases of level 0."""
    for op, probe in PROBES.items():
        if op != "EmbedRows":
            yield _case("planted NaN", op, f"{op}, in the second of three sequences",
                        partial(_planted, probe, op))  # fmt: skip
        yield _case("edge of the domain", op, op, partial(_edge, probe, op))
        yield _case("flush to zero", op, op, partial(_flushed, probe, op))
        yield _case("placement", op, op, partial(_placed, probe, op))


def _case(family: str, op: str, what: str, build: Callable) -> Case:
    return Case(f"level0/{family}[{what}]", 0, family, op, build, STAGE)


def _wants(op: str) -> tuple[Named, ...]:
    choices = dict.fromkeys(("ChooseBlocks", "ChooseKeys"), (blocks.CHOSEN,))
    names = {"Route": ("y.0", "y.1"), **choices}.get(op, ("y",))
    return tuple(map(Named, names))


def _planted(make: Callable[[CaseData], ProbeProgram], op: str, source: CaseData) -> Scenario:
    """Return four bad values in separate sequences, with sound sequences between them."""
    probe = make(source)
    feeds = [probe.feed(source, 3)]
    for bad in BAD_VALUES:
        feeds += [_spoilt(probe.feed(source, 3), bad, source), probe.feed(source, 3)]
    return Scenario(probe.program, probe.weights, feeds, _wants(op), BatchedDrive())


def _spoilt(feed: SequenceInput, bad: float, source: CaseData) -> SequenceInput:
    inputs = {name: array.copy() for name, array in feed.inputs.items()}
    for array in inputs.values():
        if array.dtype == F32:
            array[1].reshape(-1)[int(source.integers(0, array[1].size, 1)[0])] = F32(bad)
            break
    return SequenceInput(feed.tokens, inputs)


def _flushed(make: Callable[[CaseData], ProbeProgram], op: str, source: CaseData) -> Scenario:
    reason = available()
    if reason:
        raise NotRunError(reason)
    return replace(_edge(make, op, source), flush=True)


def _edge(make: Callable[[CaseData], ProbeProgram], op: str, source: CaseData) -> Scenario:
    """Return −0 and values around 2⁻⁴⁰, whose unsnapped products would be subnormal."""
    probe = make(source)
    feed = probe.feed(source, 16)
    inputs = dict(feed.inputs)
    for name, array in inputs.items():
        if array.dtype == F32:
            small = source.spread(*array.shape, low=-40, high=-18)
            chosen = source.integers(0, 3, *array.shape)
            inputs[name] = np.where(chosen == 0, small, np.where(chosen == 1, F32(-0.0), array))
    feeds = [SequenceInput(feed.tokens, inputs)]
    return Scenario(probe.program, probe.weights, feeds, _wants(op))


@dataclass(frozen=True)
class PlacementScenario:
    """Runs a program with a counter of calls into the reference and the contract."""

    scenario: Scenario
    op: str

    def expected(self) -> Observations:
        """Return no calls: the backend computes what it claims to compute."""
        values = self.scenario.expected()
        return {**values, DELEGATED: np.zeros(1, np.int32)}

    def observe(self, subject: Subject) -> Observations:
        """Return the values, and whether a node claimed by the backend was delegated."""
        watched = _Watched(subject, self.op)
        values, called = self._watch(watched)
        subject.computed.update(watched.computed)
        subject.covered.update(watched.covered)
        subject.required |= watched.required
        return {**values, DELEGATED: np.array([bool(called)], np.int32)}

    def _watch(self, watched: _Watched) -> tuple[Observations, Mapping[str, int]]:
        """Return the values, and who else computed the operator if the backend claims it."""
        with CallCounter() as guard:
            values = self.scenario.observe(watched)
        return values, guard.calls(self.op) if watched.claimed else {}

    def inputs(self) -> Observations:
        """Return the scenario's inputs."""
        return self.scenario.inputs()

    def localise(self, subject: Subject, found: Divergence) -> Divergence:
        """Return the functions that computed nodes claimed by the backend."""
        if found.value != DELEGATED:
            return self.scenario.localise(subject, found)
        _, called = self._watch(_Watched(subject, self.op))
        message = (
            f"placement says that {subject.name} computes {self.op}, but "
            f"{' and '.join(called)} of the reference did: compute it without, or let placement "
            "say 'reference'"
        )
        return replace(found, message=message)


class _Watched(Subject):
    """The subject with counts of its own; `claimed`: it says that it computes `op` itself."""

    def __init__(self, subject: Subject, op: str) -> None:
        super().__init__(subject.backend, subject.device)
        self.op, self.claimed = op, False

    def _count(self, placed: Program, executable: Executable) -> None:
        super()._count(placed, executable)
        nodes = [node for graph in placed.graphs.values() for node in graph.nodes]
        owners = {executable.placement.get(n.name) for n in nodes if n.op.kind == self.op}
        self.claimed |= self.name in owners and self.name != "reference"


def _placed(
    make: Callable[[CaseData], ProbeProgram], op: str, source: CaseData
) -> PlacementScenario:
    probe = make(source)
    scenario = replace(probe.scenario(source, 4), wants=_wants(op))
    return PlacementScenario(scenario, op)
