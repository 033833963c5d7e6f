"""Faults of recurrent primitives and their state, of routing by groups, and of host constants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cortiq.backend.kernel import StepKernel
from cortiq.backend.stored import StoredState
from cortiq.backend.walk import Call
from cortiq.ir import ops
from cortiq.numerics import recurrent
from cortiq.numerics.contract import F32, Flags, Floats, Ints, snap
from cortiq.numerics.sums import canonical_sum
from cortiq_conformance.faults.kernels import Kernel, Wrong
from cortiq_reference.kernels import KERNELS


def _stepped(step: recurrent.StepFunction) -> Kernel:
    """Return the reference's kernel with another step."""
    return StepKernel(lambda op: step)


def _decayed_first(
    state: Floats,
    q: Floats,
    k: Floats,
    v: Floats,
    alpha: Floats,
    beta: Floats,
    faults: Flags | None = None,
) -> tuple[Floats, Floats]:
    """Round the decayed state before the recalled value is read from it."""
    decay = alpha if alpha.ndim == 2 else alpha[:, None]
    decayed = state * decay[:, :, None]
    return recurrent.delta_step(decayed, q, k, v, np.ones_like(alpha), beta, faults)


def _written_first(
    state: Floats,
    q: Floats,
    k: Floats,
    v: Floats,
    alpha: Floats,
    kappa: Floats,
    beta: Floats,
    faults: Flags | None = None,
) -> tuple[Floats, Floats]:
    """Add the new key and value before what is removed."""
    gone = canonical_sum(state * kappa[:, :, None], axis=-2)
    kept = state * alpha[:, :, None] + k[:, :, None] * v[:, None, :]
    after = snap((kept - beta[:, :, None] * snap(gone[None])[0][:, None, :])[None], faults)[0]
    return after, snap(canonical_sum(after * q[:, :, None], axis=-2)[None], faults)[0]


def _row_after_row(
    state: Floats,
    x: Floats,
    b: Floats,
    c: Floats,
    alpha: Floats,
    delta: Floats,
    faults: Flags | None = None,
) -> tuple[Floats, Floats]:
    """Sum the state from its first row to its last."""
    after, _ = recurrent.state_space_step(state, x, b, c, alpha, delta, faults)
    shared = np.repeat(c, len(x) // len(c), axis=0)
    return after, snap(np.cumsum(after * shared[:, :, None], axis=1, dtype=F32)[:, -1][None])[0]


def _one_decay(
    state: Floats,
    x: Floats,
    b: Floats,
    c: Floats,
    alpha: Floats,
    delta: Floats,
    faults: Flags | None = None,
) -> tuple[Floats, Floats]:
    """Let all rows of a head's state decay as the first."""
    first = alpha if alpha.ndim == 1 else alpha[:, 0]
    return recurrent.state_space_step(state, x, b, c, first, delta, faults)


def _without_groups(call: Call, scores: Floats) -> tuple[Ints, Floats]:
    """Choose experts of every group."""
    call.op = replace(call.op, router=replace(call.op.router, groups=1, kept_groups=1))
    return KERNELS[ops.Route](call, scores)


def _logarithms(call: Call, x: Floats) -> Floats:
    """Return gains one bit off if the file holds their logarithms."""
    if call.op.form not in ("plain", "square", "magnitude"):
        gains = call.weights["weight"]
        call.weights = {"weight": np.nextafter(gains, np.full_like(gains, np.inf))}
    return KERNELS[ops.Gain](call, x)


def _squares(call: Call, x: Floats) -> Floats:
    """Return gains one bit off if they are squares or magnitudes of what the file holds."""
    if call.op.form in ("square", "magnitude"):
        gains = call.weights["weight"]
        call.weights = {"weight": np.nextafter(gains, np.full_like(gains, np.inf))}
    return KERNELS[ops.Gain](call, x)


WRONG_RECURRENCES: dict[str, Wrong] = {
    "a state rounded once more": {ops.DeltaRule: _stepped(_decayed_first)},
    "a key written before what is removed": {ops.DiagonalDeltaRule: _stepped(_written_first)},
    "a state summed row after row": {ops.StateSpace: _stepped(_row_after_row)},
    "the decay of the first row": {ops.StateSpace: _stepped(_one_decay)},
    "experts of every group": {ops.Route: _without_groups},
    "an exponential of another library": {ops.Gain: _logarithms},
    "a square rounded up": {ops.Gain: _squares},
}
"""Wrong kernels by fault."""


class KeptState(StoredState):
    """A recurrent state that a rewind leaves unchanged."""

    def rewind(self, length: int, entry: str = "trunk") -> int:
        """Forget rows, but not their effect on a delta rule's state."""
        before = {name: getattr(store, "state", None) for name, store in self.stores.items()}
        reached = super().rewind(length, entry)
        for name, store in self.stores.items():
            if getattr(store, "step", None) is recurrent.delta_step:
                store.state = before[name]  # type: ignore[union-attr,assignment]
        return reached


WRONG_RECURRENT_STATES: dict[str, type[StoredState]] = {
    "a state that a rewind leaves as it is": KeptState,
}
"""Wrong states by fault."""
