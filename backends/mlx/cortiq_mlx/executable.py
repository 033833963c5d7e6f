"""A program bound to its weights on a device; see `cortiq.backend.Executable`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from cortiq.backend import Batch
from cortiq.backend.executable import Accepted
from cortiq.backend.kernel_executable import KernelExecutable
from cortiq_mlx.arrays import MlxArrays
from cortiq_mlx.plan import Plan
from cortiq_mlx.run import Run
from cortiq_mlx.state import MlxState
from cortiq_mlx.trial import confirmed

EARLY_POSITIONS = 4096
"""Positions whose rotary angles are known when a sequence is opened; the rest when they come."""


def arrays_on(device: str) -> MlxArrays:
    """MLX on a device, with our own kernels that have the right bits there."""
    return MlxArrays(device, confirmed(device))


class MlxExecutable(KernelExecutable):
    """A program on one device."""

    walk_type = Run
    state_type = MlxState
    plan_type: ClassVar[type[Plan]] = Plan
    plans: Mapping[str, Plan]

    def new_state(self, limit: int) -> MlxState:
        """An empty sequence of at most `limit` positions."""
        for plan in self.plans.values():
            plan.angles.grow(min(limit, EARLY_POSITIONS))
        return MlxState(self, limit)

    def refusal(self, plan: Any, batch: Batch, sequence: Accepted[Any]) -> str | None:
        """Why a sequence's rows cannot be computed; None also has the angles of positions made."""
        with self.library.running(self.options):
            reason = super().refusal(plan, batch, sequence)
        if reason is None:
            indices = sequence.indices
            plan.angles.grow(plan.reach(batch.rows[indices.start : indices.stop]))
        return reason
