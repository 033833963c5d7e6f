"""One batch on its way through a plan: rows in, values of every node, wants out.

All of it is one lazy graph, computed by one `mx.eval` at the end of the step together with what the
sequences keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cortiq.backend import Batch, Row
from cortiq.backend.admission import value_of
from cortiq.backend.executable import Accepted, Brought
from cortiq.ir import Node
from cortiq_mlx.arithmetic import LARGEST, Faults, Rows, snap
from cortiq_mlx.call import Call, Segment
from cortiq_mlx.library import mx
from cortiq_mlx.plan import Plan, Step
from cortiq_mlx.state import MlxState
from cortiq_mlx.wants import Answer, answer


class Run:
    """One batch; rows are numbered among the accepted ones.

    Attributes
    ----------
    tail : rows that want a value which no state depends on; such values have only these rows.
    """

    def __init__(self, plan: Plan, batch: Batch, accepted: Sequence[Accepted[MlxState]]) -> None:
        self.plan, self.accepted = plan, accepted
        order = [index for sequence in accepted for index in sequence.indices]
        self.rows: list[Row] = [batch.rows[index] for index in order]
        self.tokens = [token for sequence in accepted for token in sequence.tokens]
        self.segments, start = [], 0
        for sequence in accepted:
            positions = [batch.rows[index].position for index in sequence.indices]
            stop = start + len(positions)
            self.segments.append(Segment(sequence.state, start, stop, positions))
            start = stop
        self.supplied = {name for row in self.rows for name in row.inputs}
        self.wants = [frozenset(value_of(want) for want in row.wants) for row in self.rows]
        known = plan.always | set(plan.graph.inputs)
        self.tail = [at for at, names in enumerate(self.wants) if names - known]
        self.tail_place = {at: place for place, at in enumerate(self.tail)}
        self.faults = Faults(start)
        self.faults.see(mx.zeros((start, 1), mx.int32))
        self.values: dict[str, Any] = {}
        self._shared: dict[object, Any] = {}

    def compute(self) -> list[list[Brought] | None]:
        """Run every step that is needed; what each sequence brings, None for one with a fault."""
        for name in self.plan.graph.inputs:
            self.values[name] = self._input(name)
        self.tail_rows = mx.array(np.array(self.tail, np.int32))
        for step in self.plan.select(frozenset().union(*self.wants)):
            if self.tail or not step.wanted_only:
                self._run(step)
        answers = [self._answers(at) for at in range(len(self.rows))]
        kept = [array for sequence in self.accepted for array in sequence.state.kept()]
        self.values.clear()
        under_way = [a for row in answers for a in row.values()]
        peaks = [a.peak for a in under_way if a.peak is not None]
        peak = self.faults.seen()
        mx.eval(peak, kept, peaks, [list(a.arrays) for a in under_way])
        return self._settled(answers, np.array(peak) >= LARGEST)

    def _settled(
        self, answers: Sequence[dict[Any, Answer]], failed: np.ndarray
    ) -> list[list[Brought] | None]:
        """What was computed, on the host; `failed`: rows at fault."""
        for at, row in enumerate(answers):
            peaks = [a.peak for a in row.values() if a.peak is not None]
            failed[at] |= any(int(np.array(peak).max()) >= LARGEST for peak in peaks)
        found: list[list[Brought] | None] = []
        for segment in self.segments:
            if failed[segment.cut].any():
                found.append(None)
                continue
            rows = answers[segment.start : segment.stop]
            found.append([{want: a.result() for want, a in row.items()} for row in rows])
        return found

    def _run(self, step: Step) -> None:
        node = step.node
        rows = self.tail if step.wanted_only else list(range(len(self.rows)))
        inputs = [self._value(name, step.wanted_only) for name in node.inputs]
        whole = not step.wanted_only or self._concerns_all(node)
        faults = self.faults if whole else Faults(len(rows))
        segments = _restricted(self.segments, rows) if step.wanted_only else self.segments
        angles = lambda: self._turned(node, rows)  # noqa: E731
        call = Call(node.op, step.weights, node.slots, segments, faults, self._shared, angles)
        result = step.kernel(call, *inputs)
        outputs = result if len(node.outputs) != 1 else (result,)
        for name, value in zip(node.outputs, outputs, strict=True):
            self.values[name] = self._overridden(name, value, rows, faults)
        if not whole and faults.peaks:
            concerned = [node.name in self.plan.needs(self.wants[at]) for at in rows]
            peak = mx.zeros(len(self.rows), mx.int32)
            peak[self.tail_rows] = mx.where(mx.array(concerned), faults.seen(), 0)
            self.faults.see(peak)

    def _concerns_all(self, node: Node) -> bool:
        """Whether every row of the batch depends on a node of the tail."""
        whole = len(self.tail) == len(self.rows)
        return whole and all(node.name in self.plan.needs(wants) for wants in self.wants)

    def _turned(self, node: Node, rows: list[int]) -> tuple[mx.array, mx.array]:
        """Cosines and sines of rows, looked up once for all nodes of one geometry."""
        op: Any = getattr(node.op, "inner", node.op)
        name = node.inputs[-1]
        key = (op.table, op.sections, name, len(rows))
        if key not in self._shared:
            if op.sections:
                positions = np.stack([np.asarray(self.rows[at].inputs[name]) for at in rows])
            else:
                positions = np.array([self.rows[at].position for at in rows])
            pair = self.plan.angles.rows(op, positions)
            cos, sin = (mx.array(part)[:, None] for part in pair)
            self._shared[key] = cos, sin
        return self._shared[key]

    def _value(self, name: str, wanted_only: bool) -> Any:
        value = self.values[name]
        if not wanted_only or not self._has_all_rows(name) or len(self.tail) == len(self.rows):
            return value
        if isinstance(value, Rows):
            return Rows(*(mx.take(part, self.tail_rows, axis=0) for part in value))
        return mx.take(value, self.tail_rows, axis=0)

    def _has_all_rows(self, name: str) -> bool:
        return name in self.plan.always or name in self.plan.graph.inputs

    def _input(self, name: str) -> Any:
        if name == "token":
            return mx.array(np.array(self.tokens, np.int32))
        if name == "position":
            return mx.array(np.array([row.position for row in self.rows], np.int32))
        return self._supplied(name, [row.inputs[name] for row in self.rows], self.faults)

    def _supplied(self, name: str, given: list[Any], faults: Faults) -> Any:
        """Values that rows bring, as a kernel would have left them."""
        kind = self.plan.graph.values[name]
        if kind.dtype == "q16":
            q, e = (np.stack([getattr(value, part) for value in given]) for part in "qe")
            return Rows(mx.array(q.astype(np.int16)), mx.array(e.astype(np.int32)))
        stacked = np.stack([np.asarray(value).reshape(kind.shape) for value in given])
        if kind.dtype == "i32":
            return mx.array(stacked.astype(np.int32))
        with np.errstate(over="ignore"):  # float64 beyond float32 is infinite, and so a fault
            return snap(mx.array(stacked.astype(np.float32)), faults)

    def _overridden(self, name: str, value: Any, rows: list[int], faults: Faults) -> Any:
        """Values that a row supplies itself take the place of what the node computed."""
        if name not in self.supplied:
            return value
        given = [at for at, index in enumerate(rows) if name in self.rows[index].inputs]
        if not given:
            return value
        flags = Faults(len(given))
        new = self._supplied(name, [self.rows[rows[at]].inputs[name] for at in given], flags)
        place, value, peak = mx.array(given), value[:], mx.zeros(faults.rows, mx.int32)
        value[place], peak[place] = new, flags.seen()
        faults.see(peak)
        return value

    def _answers(self, at: int) -> dict[Any, Answer]:
        """What the row asked for, under way."""
        found: dict[Any, Answer] = {}
        for want in self.rows[at].wants:
            name = value_of(want)
            value = self.values[name]
            place = at if self._has_all_rows(name) else self.tail_place[at]
            row = Rows(value.q[place], value.e[place]) if isinstance(value, Rows) else value[place]
            found[want] = answer(want, row, self.rows[at].position, lambda: self._history(at))
        return found

    def _history(self, at: int) -> list[int]:
        """Every id the row's sequence was fed, up to and including the row."""
        segment = next(s for s in self.segments if s.start <= at < s.stop)
        before = segment.state.tokens[: segment.positions[0]]
        return [*before, *self.tokens[segment.start : at + 1]]


def _restricted(segments: list[Segment], rows: list[int]) -> list[Segment]:
    """The segments of some of the rows, numbered among these."""
    found, start = [], 0
    for segment in segments:
        kept = [at for at in rows if segment.start <= at < segment.stop]
        if kept:
            positions = [segment.positions[at - segment.start] for at in kept]
            found.append(Segment(segment.state, start, start + len(kept), positions))
            start += len(kept)
    return found
