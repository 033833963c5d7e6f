"""Primitives whose state every position changes: convolution, the delta rule, the state space.

A sequence's rows follow one another; what one row computes is written for all heads at once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cortiq.backend.walk import Call
from cortiq_torch.arithmetic import canonical_sum, snap

Step = Callable[..., tuple[Tensor, Tensor]]
"""(state, *row, flag) → (state, output)."""


def causal_conv(call: Call, x: Tensor) -> Tensor:
    """Taps in order, the oldest row first, then the bias."""
    out, weight, bias = torch.zeros_like(x), call.weights["weight"], call.weights.get("bias")
    for segment in call.segments:
        rows = x[segment.cut]
        store = segment.state.stores[call.slots["ring"]]
        padded, y = torch.cat([store.last(), rows]), out[segment.cut]
        for tap in range(call.op.kernel):
            y = y + weight[:, tap] * padded[tap : tap + len(rows)]
        out[segment.cut] = y if bias is None else y + bias
        store.append(rows)
    return snap(out, call.faults)


def recurrent(step: Step) -> Callable[..., Tensor]:
    """The kernel that takes this step for each row of each sequence in order."""

    def kernel(call: Call, *inputs: Tensor) -> Tensor:
        rows: list[Tensor] = []
        for segment in call.segments:
            store = segment.state.stores[call.slots["state"]]
            state = store.state
            for at in range(segment.start, segment.stop):
                flag = call.faults[at : at + 1]
                state, row = step(state, *(value[at] for value in inputs), flag)
                rows.append(row)
            store.advance(state, segment.stop - segment.start)
        return torch.stack(rows)

    return kernel


def delta_step(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, flag: Tensor
) -> tuple[Tensor, Tensor]:
    """One step of the gated delta rule; see `cortiq.numerics.recurrent.delta_step`."""
    q, k = (x.repeat_interleave(len(v) // len(x), dim=0) for x in (q, k))
    decay = alpha[:, None] if alpha.ndim == 1 else alpha
    recalled = _read(state, _snapped(k * decay, flag))
    delta = _snapped((v - recalled) * beta[:, None], flag)
    after = _snapped(state * decay[:, :, None] + k[:, :, None] * delta[:, None, :], flag)
    return after, _snapped(_read(after, q), flag)


def state_space_step(
    state: Tensor, x: Tensor, b: Tensor, c: Tensor, alpha: Tensor, delta: Tensor, flag: Tensor
) -> tuple[Tensor, Tensor]:
    """One step of a state space; see `cortiq.numerics.recurrent.state_space_step`."""
    b, c = (y.repeat_interleave(len(x) // len(y), dim=0) for y in (b, c))
    driven = _snapped(delta[:, None] * x, flag)
    after = _snapped(state * alpha[:, None, None] + b[:, :, None] * driven[:, None, :], flag)
    return after, _snapped(_read(after, c), flag)


def _read(state: Tensor, weights: Tensor) -> Tensor:
    """Σ_i S[i, j]·w[i] of each head, in the order of `canonical_sum`."""
    return canonical_sum((state * weights[:, :, None]).transpose(1, 2))


def _snapped(y: Tensor, flag: Tensor) -> Tensor:
    return snap(y[None], flag)[0]
