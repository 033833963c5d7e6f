"""A program bound to its weights on a device; see `cortiq.backend.Executable`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

from cortiq.backend import Batch
from cortiq.backend.executable import Accepted
from cortiq.backend.kernel_executable import KernelExecutable
from cortiq_mlx.array_library import MlxArrays
from cortiq_mlx.kernel_trial import confirmed
from cortiq_mlx.plan import MlxPlan
from cortiq_mlx.run import MlxWalk
from cortiq_mlx.state import MlxState

EARLY_POSITIONS = 4096
"""Positions whose rotary angles are known when a sequence is opened; the rest when they come."""


def arrays_on(device: str) -> MlxArrays:
    """Return MLX on a device, with our own kernels that have the right bits there."""
    return MlxArrays(device, confirmed(device))


class MlxExecutable(KernelExecutable):
    """A program on one device."""

    walk_type = MlxWalk
    state_type = MlxState
    plan_type: ClassVar[type[MlxPlan]] = MlxPlan
    plans: Mapping[str, MlxPlan]

    def new_state(self, limit: int) -> MlxState:
        """Return an empty sequence of at most `limit` positions."""
        for plan in cast(list[MlxPlan], self.every_plan):
            plan.angles.grow(min(limit, EARLY_POSITIONS))
        return MlxState(self, limit)

    def refusal(self, plan: Any, batch: Batch, sequence: Accepted[Any]) -> str | None:
        """Return why a sequence's rows are refused; if they are not, extend the rotary tables."""
        with self.library.running(self.options):
            reason = super().refusal(plan, batch, sequence)
        if reason is None:
            indices = sequence.indices
            plan.angles.grow(plan.reach(batch.rows[indices.start : indices.stop]))
        return reason
