"""Primitives whose state every position changes, over any array library.

A sequence's rows follow one another; what one row computes is written for all heads at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cortiq.backend.arithmetic import Arithmetic
from cortiq.backend.array_routing import softmax
from cortiq.backend.kernel_walk import KernelCall
from cortiq.numerics.contract import F32
from cortiq.numerics.ngrams import ngram_rows

Step = Callable[..., tuple[Any, Any]]
"""(library, state, *row, faults) → (state, output)."""
SMALLEST, LEAST = float(2.0**-40), float(-(2.0**50))
"""Weights below this count as 0; below every z."""
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


def compress(call: KernelCall, x: Any, position: Any, gates: Any) -> Any:
    """Make an entry of each window that a row closes; see `cortiq.numerics.compression`."""
    library: Arithmetic = call.library
    op, bias, parts = call.op, call.weights["bias"], []
    z = library.snap(gates + bias[position % op.rate], call.faults)
    kept = library.concatenate([x, z], -1)
    for segment in call.segments:
        store, rows = segment.state.stores[call.slots["ring"]], kept[segment.cut]
        window = library.concatenate([store.last, rows])
        closing = [i for i, at in enumerate(segment.positions) if (at + 1) % op.rate == 0]
        out = library.full((len(rows), op.width), "f32")
        if closing:
            first = [segment.positions[i] + 1 >= op.parts * op.rate for i in closing]
            out = library.put(out, closing, _entries(library, op, window, closing, first))
        parts.append(out)
        store.append(rows)
    return library.snap(library.concatenate(parts), call.faults)


def _entries(
    library: Arithmetic, op: Any, window: Any, closing: list[int], whole: list[bool]
) -> Any:
    """Return the entries that these rows close, float32 [entries, width]; not snapped.

    Parameters
    ----------
    window : the rows before, and those of the batch. whole : whether the windows before are there.
    """
    count, width = op.parts * op.rate, op.width
    terms, there = [], library.array(np.array(whole))[:, None]
    for at in range(count):
        row = window[library.array(np.array(closing, np.int32) + at)]
        part = width if op.overlap and at >= op.rate else 0
        z = row[:, op.parts * width + part :][:, :width]
        early = op.overlap and at < op.rate
        terms.append((row[:, part : part + width], library.where(there, z, LEAST) if early else z))
    most = terms[-1][1]
    for _, z in terms[:-1]:
        most = library.where(z > most, z, most)
    total = y = None
    for at, (value, z) in enumerate(terms):
        weight = library.exp(z - most)
        weight = library.where(weight >= SMALLEST, weight, 0.0)
        if op.overlap and at < op.rate:
            weight = library.where(there, weight, 0.0)
        total = weight if total is None else total + weight
        y = weight * value if y is None else y + weight * value
    return y * library.inverse(total)


def hash_ngrams(call: KernelCall, token: Any) -> Any:
    """Hash n-grams on the host, where every library has integers of 64 bits."""
    library: Arithmetic = call.library
    op, tokens, parts = call.op, library.host(token), []
    for segment in call.segments:
        store = segment.state.stores[call.slots["ring"]]
        history, rows = library.host(store.last), tokens[segment.cut]
        found, kept = ngram_rows(history, rows, op.end, op.multipliers, op.heights)
        store.append(library.array(kept))
        parts.append(library.array(found))
    return library.concatenate(parts)


def sinkhorn(call: KernelCall, x: Any) -> Any:
    """Make matrices doubly stochastic; see `cortiq.numerics.streams.sinkhorn`."""
    library: Arithmetic = call.library
    n, floor = call.op.streams, float(F32(call.op.eps))

    def normalised(c: Any, axis: int) -> Any:
        lines = library.split(c, [1] * n, axis=axis)
        total = lines[0]
        for line in lines[1:]:
            total = total + line
        return library.snap(library.quotient(c, total + floor), call.faults)

    c = library.snap(softmax(library, x, call.faults) + floor, call.faults)
    c = normalised(c, 1)
    for _ in range(call.op.rounds - 1):
        c = normalised(normalised(c, 2), 1)
    return c


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


def diagonal_delta_step(
    library: Arithmetic, state: Any, q: Any, k: Any, v: Any, alpha: Any, kappa: Any, beta: Any,
    faults: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Take one step of RWKV-7's delta rule; see `cortiq.numerics.recurrent.diagonal_delta_step`."""
    recalled = _snapped(library, _read(library, state, kappa), faults)
    kept = state * alpha[:, :, None] - beta[:, :, None] * recalled[:, None, :]
    after = _snapped(library, kept + k[:, :, None] * v[:, None, :], faults)
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
