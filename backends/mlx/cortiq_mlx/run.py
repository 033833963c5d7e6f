"""One batch on its way through a plan, in MLX.

All of it is one lazy graph, computed by one `mx.eval` at the end of the step together with what the
sequences keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cortiq.backend import Batch
from cortiq.backend.admission import value_of
from cortiq.backend.executable import Accepted, Brought
from cortiq.backend.plan import Step
from cortiq.backend.walk import Group, Walk
from cortiq_mlx.arithmetic import LARGEST, Faults, Rows, snap
from cortiq_mlx.call import Call
from cortiq_mlx.library import mx
from cortiq_mlx.plan import Plan
from cortiq_mlx.state import MlxState
from cortiq_mlx.wants import Answer, answer


class Run(Walk[MlxState]):
    """A batch under way; what rows want is part of the graph."""

    plan: Plan

    def __init__(self, plan: Plan, batch: Batch, accepted: Sequence[Accepted[MlxState]]) -> None:
        super().__init__(plan, batch, accepted)
        self._shared: dict[object, Any] = {}

    def start(self) -> None:
        """Make the groups of rows; the flags of all of them are there, whatever is computed."""
        super().start()
        self.all.faults.see(mx.zeros((len(self.rows), 1), mx.int32))

    def array(self, host: np.ndarray) -> mx.array:
        """A copy."""
        return mx.array(host)

    def host(self, array: mx.array) -> np.ndarray:
        """The values, which are computed now."""
        return np.array(array)

    def quantised(self, q: np.ndarray, e: np.ndarray) -> Rows:
        """Rows whose integers are held as int16."""
        return Rows(mx.array(q.astype(np.int16)), mx.array(e.astype(np.int32)))

    def snap(self, x: mx.array, faults: Faults) -> mx.array:
        """As every kernel ends."""
        return snap(x, faults)

    def flags(self, count: int) -> Faults:
        """Nothing seen yet."""
        return Faults(count)

    def flag(self, faults: Faults, index: Any, found: Faults, concerned: Any = True) -> None:
        """Have `faults` see what those of some rows saw."""
        if found.peaks:
            peak = mx.zeros(faults.rows, mx.int32)
            peak[index] = mx.where(concerned, found.seen(), 0)
            faults.see(peak)

    def call(self, step: Step, group: Group, faults: Faults) -> Call:
        """What the step's kernel is called with."""
        node = step.node
        angles = lambda: self._turned(node, group)  # noqa: E731
        given = (node.op, step.weights, node.slots, group.segments, faults)
        return Call(*given, self._shared, angles)

    def _turned(self, node: Any, group: Group) -> tuple[mx.array, mx.array]:
        """Cosines and sines of rows, looked up once for all nodes of one geometry."""
        op, name = getattr(node.op, "inner", node.op), node.inputs[-1]
        key = (op.table, op.sections, name, len(group.places))
        if key not in self._shared:
            rows = [self.rows[at] for at in group.places]
            if op.sections:
                positions = np.stack([np.asarray(row.inputs[name]) for row in rows])
            else:
                positions = np.array([row.position for row in rows])
            pair = self.plan.angles.rows(op.table, op.sections, positions)
            cos, sin = (mx.array(part)[:, None] for part in pair)
            self._shared[key] = cos, sin
        return self._shared[key]

    def brought(self) -> list[list[Brought] | None]:
        """Compute everything; what each sequence brings, None for one with a fault."""
        answers = [self._answers_of(at) for at in range(len(self.rows))]
        kept = [array for s in self.all.segments for array in s.state.kept()]
        self.all.values.clear()
        self.tail.values.clear()
        under_way = [a for row in answers for a in row.values()]
        peaks = [a.peak for a in under_way if a.peak is not None]
        peak = self.all.faults.seen()
        mx.eval(peak, kept, peaks, [list(a.arrays) for a in under_way])
        return self._settled(answers, np.array(peak) >= LARGEST)

    def _answers_of(self, at: int) -> dict[Any, Answer]:
        """What the row asked for, under way."""
        position = self.rows[at].position
        return {
            want: answer(want, self.row(value_of(want), at), position, lambda: self.history(at))
            for want in self.rows[at].wants
        }

    def _settled(
        self, answers: Sequence[dict[Any, Answer]], failed: np.ndarray
    ) -> list[list[Brought] | None]:
        """What was computed, on the host; `failed`: rows at fault."""
        for at, row in enumerate(answers):
            peaks = [a.peak for a in row.values() if a.peak is not None]
            failed[at] |= any(int(np.array(peak).max()) >= LARGEST for peak in peaks)
        found: list[list[Brought] | None] = []
        for segment in self.all.segments:
            if failed[segment.cut].any():
                found.append(None)
                continue
            rows = answers[segment.start : segment.stop]
            found.append([{want: a.result() for want, a in row.items()} for row in rows])
        return found
