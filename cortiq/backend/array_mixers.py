"""Primitives whose state every position changes, over any array library.

A sequence's rows follow one another; what one row computes is written for all heads at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cortiq.backend.arithmetic import Arithmetic
from cortiq.backend.kernel_walk import KernelCall

Step = Callable[..., tuple[Any, Any]]
"""(library, state, *row, faults) → (state, output)."""
PIECE = 32
"""Rows of a recurrence after which it is computed, so that no lazy graph grows with a prompt."""


def causal_conv(call: KernelCall, x: Any) -> Any:
    """Add up taps in order, the oldest row first, then the bias."""
    library: Arithmetic = call.library
    weight, bias, parts = call.weights["weight"], call.weights.get("bias"), []
    for segment in call.segments:
        rows = x[segment.cut]
        store = segment.state.stores[call.slots["ring"]]
        window = library.concatenate([store.last, rows])
        y = weight[:, 0] * window[: len(rows)]
        for tap in range(1, call.op.kernel):
            y = y + weight[:, tap] * window[tap : tap + len(rows)]
        parts.append(y if bias is None else y + bias)
        store.append(rows)
    return library.snap(library.concatenate(parts), call.faults)


def recurrent(step: Step) -> Callable[..., Any]:
    """Return the kernel that takes this step for each row of each sequence in order."""

    def kernel(call: KernelCall, *inputs: Any) -> Any:
        library: Arithmetic = call.library
        rows: list[Any] = []
        flags: list[Any] = []
        for segment in call.segments:
            store = segment.state.stores[call.slots["state"]]
            state = store.state
            for at in range(segment.start, segment.stop):
                flag = library.flags(1)
                state, row = step(library, state, *(value[at] for value in inputs), flag)
                rows.append(row)
                flags.append(flag)
                if len(rows) % PIECE == 0:
                    library.settle([state, *rows[-PIECE:], *flags[-PIECE:]])
            store.advance(state, segment.stop - segment.start)
        library.gather_flags(call.faults, flags)
        return library.stack(rows)

    return kernel


def delta_step(
    library: Arithmetic, state: Any, q: Any, k: Any, v: Any, alpha: Any, beta: Any, faults: Any
) -> tuple[Any, Any]:
    """Take one step of the gated delta rule; see `cortiq.numerics.recurrent.delta_step`."""
    q, k = (library.repeat(x, len(v) // len(x)) for x in (q, k))
    decay = alpha[:, None] if alpha.ndim == 1 else alpha
    recalled = _read(library, state, _snapped(library, k * decay, faults))
    delta = _snapped(library, (v - recalled) * beta[:, None], faults)
    after = state * decay[:, :, None] + k[:, :, None] * delta[:, None, :]
    after = _snapped(library, after, faults)
    return after, _snapped(library, _read(library, after, q), faults)


def state_space_step(
    library: Arithmetic, state: Any, x: Any, b: Any, c: Any, alpha: Any, delta: Any, faults: Any
) -> tuple[Any, Any]:
    """Take one step of a state space; see `cortiq.numerics.recurrent.state_space_step`."""
    b, c = (library.repeat(y, len(x) // len(y)) for y in (b, c))
    driven = _snapped(library, delta[:, None] * x, faults)
    decay = alpha[:, None, None] if alpha.ndim == 1 else alpha[:, :, None]
    after = state * decay + b[:, :, None] * driven[:, None, :]
    after = _snapped(library, after, faults)
    return after, _snapped(library, _read(library, after, c), faults)


def _read(library: Arithmetic, state: Any, weights: Any) -> Any:
    """Compute Σ_i S[i, j]·w[i] of each head, in the order of `canonical_sum`."""
    return library.canonical_sum((state * weights[:, :, None]).swapaxes(1, 2))[..., 0]


def _snapped(library: Arithmetic, y: Any, faults: Any) -> Any:
    return library.snap(y[None], faults)[0]
