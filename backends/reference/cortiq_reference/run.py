"""One batch on its way through a plan: rows in, values of every node, wants out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.backend import Batch
from cortiq.backend.admission import value_of
from cortiq.backend.executable import Accepted
from cortiq.ir import Type
from cortiq.numerics.contract import F32, Flags, Ints, OutOfDomainError, snap
from cortiq.numerics.quantise import Quantised
from cortiq_reference.kernels import Call, Segment
from cortiq_reference.plan import Plan, Step
from cortiq_reference.state import ReferenceState
from cortiq_reference.wants import Answers


class Run:
    """One batch on its way through a plan. `index` arrays point into the accepted rows."""

    def __init__(
        self,
        plan: Plan,
        batch: Batch,
        accepted: Sequence[Accepted[ReferenceState]],
        answers: Answers,
    ) -> None:
        self.plan, self.batch, self.answers = plan, batch, answers
        self.order = [index for sequence in accepted for index in sequence.indices]
        self.rows = [batch.rows[i] for i in self.order]
        self.tokens = np.array([t for sequence in accepted for t in sequence.tokens], np.int32)
        self.segments, start = [], 0
        for sequence in accepted:
            self.segments.append(Segment(sequence.state, start, start + len(sequence.indices)))
            start += len(sequence.indices)
        self.faults: Flags = np.zeros(start, np.bool_)
        self.values: dict[str, Any] = {}
        wants = [{value_of(want) for want in row.wants} for row in self.rows]
        self.wanted = frozenset(name for names in wants for name in names)
        self.wants = [frozenset(names) for names in wants]
        tail = [bool(names - plan.always - set(plan.graph.inputs)) for names in wants]
        self.tail = np.flatnonzero(np.array(tail))

    def compute(self) -> None:
        """Run every step that is needed."""
        self._take_inputs()
        for step, used_up in self.plan.select(self.wanted):
            rows = self.tail if step.wanted_only else np.arange(len(self.rows))
            if len(rows):
                self._run_step(step, rows)
            for name in used_up:
                self.values.pop(name, None)

    def _run_step(self, step: Step, rows: npt.NDArray[np.integer]) -> None:
        node = step.node
        inputs = [self._value(name, rows, step.wanted_only) for name in node.inputs]
        faults = np.zeros(len(rows), np.bool_)
        segments = self.segments
        if step.wanted_only:
            segments = [s for s in (_restrict(s, rows) for s in self.segments) if s]
        call = Call(node.op, step.weights, node.slots, segments, faults)
        for name, value in zip(node.outputs, step.run(call, inputs), strict=True):
            self.values[name] = self._overridden(name, value, rows, faults)
        if step.wanted_only and faults.any():
            faults &= [node.name in self.plan.needs(self.wants[row]) for row in rows]
        self.faults[rows] |= faults

    def _value(self, name: str, rows: npt.NDArray[np.integer], wanted_only: bool) -> Any:
        value = self.values[name]
        if not wanted_only or (name not in self.plan.always and name not in self.plan.graph.inputs):
            return value
        if isinstance(value, Quantised):
            return Quantised(value.q[rows], value.e[rows])
        return value[rows]

    def _take_inputs(self) -> None:
        positions = np.array([row.position for row in self.rows], np.int32)
        for name in self.plan.graph.inputs:
            if name == "token":
                self.values[name] = self.tokens
            elif name == "position":
                self.values[name] = positions
            else:
                supplied = [row.inputs[name] for row in self.rows]
                self.values[name] = self._supplied(name, supplied, self.faults)

    def _supplied(self, name: str, values: list[Any], faults: Flags) -> Any:
        type_: Type = self.plan.graph.values[name]
        if type_.dtype == "q16":
            return Quantised(np.stack([v.q for v in values]), np.stack([v.e for v in values]))
        stacked = np.stack([np.asarray(v).reshape(type_.shape) for v in values])
        if type_.dtype == "i32":
            return stacked.astype(np.int32)
        with np.errstate(over="ignore"):  # float64 beyond float32 is infinite, and so a fault
            return snap(stacked.astype(F32), faults)

    def _overridden(self, name: str, value: Any, rows: npt.NDArray, faults: Flags) -> Any:
        """Values that a row supplies itself take the place of what the node computed."""
        given = {at: self.rows[index].inputs[name] for at, index in enumerate(rows)
                 if name in self.rows[index].inputs}  # fmt: skip
        if given:
            value = value.copy()  # it may be a view of the node's input
        for at, supplied in given.items():
            value[at] = self._supplied(name, [supplied], faults[at : at + 1])[0]
        return value

    def failed(self, state: ReferenceState) -> bool:
        """Whether any row of the sequence met a fault."""
        segment = next(s for s in self.segments if s.state is state)
        return bool(self.faults[segment.start : segment.stop].any())

    def wants_of(self, index: int) -> dict:
        """What the batch's row `index` asked for."""
        at = self.order.index(index)
        row = self.rows[at]
        try:
            return {want: self.answers[type(want)](want, self, at) for want in row.wants}
        except OutOfDomainError:
            self.faults[at] = True
            return {}

    def row_of(self, name: str, at: int) -> Any:
        """Row `at` of a value."""
        value = self.values[name]
        if name not in self.plan.always and name not in self.plan.graph.inputs:
            at = int(np.searchsorted(self.tail, at))
        if isinstance(value, Quantised):
            return Quantised(value.q[at].copy(), value.e[at].copy())
        return value[at].copy() if value.ndim > 1 else value[at]

    def history(self, at: int) -> Ints:
        """Every id the row's sequence was fed, up to and including the row."""
        segment = next(s for s in self.segments if s.start <= at < s.stop)
        before = np.array(segment.state.tokens[: self.rows[segment.start].position], np.int32)
        return np.concatenate([before, self.tokens[segment.start : at + 1]])


def _restrict(segment: Segment, rows: npt.NDArray[np.integer]) -> Segment | None:
    start, stop = np.searchsorted(rows, [segment.start, segment.stop])
    return Segment(segment.state, int(start), int(stop)) if stop > start else None
