"""Primitives whose state every position changes: convolution, the delta rule, the state space.

A sequence's rows follow one another; what one row computes is written for all heads at once.
"""

from __future__ import annotations

from collections.abc import Callable

from cortiq_mlx.arithmetic import Faults, canonical_sum, snap
from cortiq_mlx.call import Call
from cortiq_mlx.library import mx

Step = Callable[..., tuple[mx.array, mx.array]]
"""(state, *row, faults) → (state, output)."""
PIECE = 32
"""Rows of a recurrence after which it is computed, so that no graph grows with a prompt."""


def causal_conv(call: Call, x: mx.array) -> mx.array:
    """Taps in order, the oldest row first, then the bias."""
    weight, bias, parts = call.weights["weight"], call.weights.get("bias"), []
    for segment in call.segments:
        rows = x[segment.cut]
        store = segment.state.stores[call.slots["ring"]]
        padded = mx.concatenate([store.last, rows])
        y = weight[:, 0] * padded[: len(rows)]
        for tap in range(1, call.op.kernel):
            y = y + weight[:, tap] * padded[tap : tap + len(rows)]
        parts.append(y if bias is None else y + bias)
        store.append(rows)
    return snap(mx.concatenate(parts), call.faults)


def recurrent(step: Step) -> Callable[..., mx.array]:
    """The kernel that takes this step for each row of each sequence in order."""

    def kernel(call: Call, *inputs: mx.array) -> mx.array:
        rows: list[mx.array] = []
        peaks: list[mx.array] = []
        for segment in call.segments:
            store = segment.state.stores[call.slots["state"]]
            state = store.state
            for at in range(segment.start, segment.stop):
                faults = Faults(1)
                state, row = step(state, *(value[at] for value in inputs), faults)
                rows.append(row)
                peaks.append(faults.seen())
                if len(rows) % PIECE == 0:
                    mx.eval(state, rows[-PIECE:], peaks[-PIECE:])
            store.advance(state, segment.stop - segment.start)
        call.faults.see(mx.concatenate(peaks))
        return mx.stack(rows)

    return kernel


def delta_step(
    state: mx.array, q: mx.array, k: mx.array, v: mx.array, alpha: mx.array, beta: mx.array,
    faults: Faults,
) -> tuple[mx.array, mx.array]:  # fmt: skip
    """One step of the gated delta rule; see `cortiq.numerics.recurrent.delta_step`."""
    q, k = (mx.repeat(x, len(v) // len(x), axis=0) for x in (q, k))
    decay = alpha[:, None] if alpha.ndim == 1 else alpha
    recalled = _read(state, _snapped(k * decay, faults))
    delta = _snapped((v - recalled) * beta[:, None], faults)
    after = _snapped(state * decay[:, :, None] + k[:, :, None] * delta[:, None, :], faults)
    return after, _snapped(_read(after, q), faults)


def state_space_step(
    state: mx.array, x: mx.array, b: mx.array, c: mx.array, alpha: mx.array, delta: mx.array,
    faults: Faults,
) -> tuple[mx.array, mx.array]:  # fmt: skip
    """One step of a state space; see `cortiq.numerics.recurrent.state_space_step`."""
    b, c = (mx.repeat(y, len(x) // len(y), axis=0) for y in (b, c))
    driven = _snapped(delta[:, None] * x, faults)
    after = _snapped(state * alpha[:, None, None] + b[:, :, None] * driven[:, None, :], faults)
    return after, _snapped(_read(after, c), faults)


def _read(state: mx.array, weights: mx.array) -> mx.array:
    """Σ_i S[i, j]·w[i] of each head, in the order of `canonical_sum`."""
    return canonical_sum((state * weights[:, :, None]).swapaxes(1, 2)).squeeze(-1)


def _snapped(y: mx.array, faults: Faults) -> mx.array:
    return snap(y[None], faults)[0]
