"""A batch computed by a plan, in MLX.

All of it is one lazy graph, computed by one `mx.eval` at the end of the step together with what the
sequences keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cortiq.backend import DrawnLogit
from cortiq.backend.answers import drawing_want
from cortiq.backend.columns import Brought
from cortiq.backend.kernel_walk import KernelWalk
from cortiq.backend.wants import value_of
from cortiq.ir import ops
from cortiq_mlx.library import mx
from cortiq_mlx.plan import MlxPlan
from cortiq_mlx.quantised_rows import LARGEST
from cortiq_mlx.state import MlxState
from cortiq_mlx.wants import LazyAnswer, answer, drawn_logit


class MlxWalk(KernelWalk[MlxState]):
    """A batch under way; requested outputs are part of the lazy graph."""

    plan: MlxPlan

    def start(self) -> None:
        """Make the groups of rows; all have fault flags, whatever is computed."""
        super().start()
        self.all.faults.see(mx.zeros((len(self.rows), 1), mx.int32))

    def turned(self, op: ops.Rope, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Look up cosines and sines of positions."""
        return self.plan.angles.rows(op.table, op.sections, positions)

    def brought(self) -> list[Sequence[Brought] | None]:
        """Compute everything and return each sequence's outputs, None for one with a fault."""
        answers = [self._answers_of(at) for at in range(len(self.rows))]
        kept = [array for s in self.all.segments for array in s.state.kept()]
        self.all.values.clear()
        self.tail.values.clear()
        under_way = [a for row in answers for a in row.values()]
        peaks = [a.peak for a in under_way if a.peak is not None]
        peak = self.all.faults.seen()
        mx.eval(peak, kept, peaks, [list(a.arrays) for a in under_way])
        return self._settled(answers, np.array(peak) >= LARGEST)

    def _answers_of(self, at: int) -> dict[Any, LazyAnswer]:
        """Start the requested outputs of a row."""
        position, wants = self.rows[at].position, self.rows[at].wants
        found: dict[Any, LazyAnswer] = {
            want: answer(want, self.row(value_of(want), at), position, lambda: self.history(at))
            for want in wants
            if not isinstance(want, DrawnLogit)
        }
        for want in wants:
            if isinstance(want, DrawnLogit):
                token = found[drawing_want(wants)].arrays[0]
                found[want] = drawn_logit(want, self.row("logits", at), token)
        return found

    def _settled(
        self, answers: Sequence[dict[Any, LazyAnswer]], failed: np.ndarray
    ) -> list[Sequence[Brought] | None]:
        """Read the outputs on the host; `failed`: rows at fault."""
        for at, row in enumerate(answers):
            peaks = [a.peak for a in row.values() if a.peak is not None]
            failed[at] |= any(int(np.array(peak).max()) >= LARGEST for peak in peaks)
        found: list[Sequence[Brought] | None] = []
        for segment in self.all.segments:
            if failed[segment.cut].any():
                found.append(None)
                continue
            rows = answers[segment.start : segment.stop]
            found.append([{want: a.result() for want, a in row.items()} for row in rows])
        return found
