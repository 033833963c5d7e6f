"""Recurrent mixers: the step recurrence is the definition, whatever way a backend computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from cortiq.numerics.contract import F32, Flags, Floats, snap
from cortiq.numerics.sums import canonical_sum

StepFunction = Callable[..., tuple[Floats, Floats]]
"""(state, *row, faults) → (state', output)."""
CONV_UNIT_ERROR = 2.0**-24
"""A convolution's error is at most taps + 2 of these, relative to the sum of magnitudes."""
DELTA_TYPICAL_ERROR = 1e-6
"""Error of 64 delta-rule steps on unit keys and normal values, relative to the largest output."""
STATE_SPACE_TYPICAL_ERROR = 1e-6
"""Error of 64 state-space steps on normal values, relative to the largest output."""


def causal_conv(
    history: Floats,
    x: Floats,
    weight: Floats,
    bias: Floats | None = None,
    faults: Flags | None = None,
) -> Floats:
    """Compute depthwise causal convolution of a sequence's rows, no activation: float32 [rows, C].

    y starts at +0; taps in order, the oldest row first: y = y + RN(weight[:, t]·x[i − (L−1) + t])
    for t = 0 … L−1; then y = y + bias if there is one; snap(y).

    Parameters
    ----------
    history : float32 [L−1, C], the rows before x, zeros at the start of a sequence.
    x : float32 [rows, C]; weight : float32 [C, L]; bias : float32 [C] or None; all canonical.
    """
    taps = weight.shape[1]
    if history.shape != (taps - 1, x.shape[1]):
        raise ValueError(f"a history of {history.shape} under {taps} taps of {x.shape[1]} channels")
    padded = np.concatenate([history, x]).astype(F32, copy=False)
    y = np.zeros(x.shape, F32)
    for tap in range(taps):
        y = y + weight[:, tap] * padded[tap : tap + len(x)]
    if bias is not None:
        y = y + bias
    return snap(y, faults)


def conv_history(history: Floats, x: Floats) -> Floats:
    """Return the history after rows x: the last L−1 rows of both, float32 [L−1, C]."""
    both = np.concatenate([history, x])
    return both[len(both) - len(history) :]


def delta_step(
    state: Floats,
    q: Floats,
    k: Floats,
    v: Floats,
    alpha: Floats,
    beta: Floats,
    faults: Flags | None = None,
) -> tuple[Floats, Floats]:
    """Compute one step of the gated delta rule: (state', o), o float32 [H, Dv].

    With k′[i] = snap(RN(k[i]·α[i])): m[j] = canonical_sum_i(RN(S[i, j]·k′[i]));
    d[j] = snap(RN(RN(v[j] − m[j])·β)); S[i, j] = snap(RN(RN(S[i, j]·α[i]) + RN(k[i]·d[j])));
    o[j] = snap(canonical_sum_i(RN(S[i, j]·q[i]))). The state is read once for m, and read and
    written once for the rest.

    Parameters
    ----------
    state : float32 [H, Dk, Dv]; q, k : float32 [G, Dk], head h takes row h // (H / G);
        v : float32 [H, Dv]; canonical.
    alpha : decay, float32 [H], or [H, Dk] for a decay per channel; beta : float32 [H].
    faults : bool [1], the sequence's flag.

    Source: Yang, Kautz and Hatamizadeh, "Gated delta networks", 2024; with [H, Dk] decays Kimi
    Delta Attention, 2025.
    """
    q, k = (np.repeat(x, len(v) // len(x), axis=0) for x in (q, k))
    decay = alpha[:, None] if alpha.ndim == 1 else alpha
    recalled = _read(state, _snapped(k * decay, faults))
    delta = _snapped((v - recalled) * beta[:, None], faults)
    after = _snapped(state * decay[:, :, None] + k[:, :, None] * delta[:, None, :], faults)
    return after, _snapped(_read(after, q), faults)


def diagonal_delta_step(
    state: Floats,
    q: Floats,
    k: Floats,
    v: Floats,
    alpha: Floats,
    kappa: Floats,
    beta: Floats,
    faults: Flags | None = None,
) -> tuple[Floats, Floats]:
    """Compute one step of the delta rule with a diagonal decay and a key of its own for what is
    removed: (state', o), o float32 [H, Dv].

    m[j] = snap(canonical_sum_i(RN(S[i, j]·κ[i]))); S[i, j] = snap(RN(RN(RN(S[i, j]·α[i]) −
    RN(β[i]·m[j])) + RN(k[i]·v[j]))); o[j] = snap(canonical_sum_i(RN(S[i, j]·q[i]))).

    Parameters
    ----------
    state : float32 [H, Dk, Dv]; q, k, alpha, kappa, beta : float32 [H, Dk]; v : float32 [H, Dv];
        all canonical.
    faults : bool [1], the sequence's flag.

    Source: Peng et al., "RWKV-7 Goose with expressive dynamic state evolution", 2025.
    """
    recalled = _snapped(_read(state, kappa), faults)
    kept = state * alpha[:, :, None] - beta[:, :, None] * recalled[:, None, :]
    after = _snapped(kept + k[:, :, None] * v[:, None, :], faults)
    return after, _snapped(_read(after, q), faults)


def state_space_step(
    state: Floats,
    x: Floats,
    b: Floats,
    c: Floats,
    alpha: Floats,
    delta: Floats,
    faults: Flags | None = None,
) -> tuple[Floats, Floats]:
    """Compute one step of a selective state space: (state', o), o float32 [H, P].

    u[p] = snap(RN(Δ·x[p])); S[n, p] = snap(RN(RN(S[n, p]·α) + RN(B[n]·u[p])));
    o[p] = snap(canonical_sum_n(RN(S[n, p]·C[n]))).

    Parameters
    ----------
    state : float32 [H, N, P]; x : float32 [H, P]; b, c : float32 [G, N], head h takes row
        h // (H / G); alpha : float32 [H], or [H, N] for a decay a row; delta : float32 [H].
    faults : bool [1], the sequence's flag.

    Source: Dao and Gu, "Transformers are SSMs", 2024 (Mamba-2).
    """
    b, c = (np.repeat(y, len(x) // len(y), axis=0) for y in (b, c))
    driven = _snapped(delta[:, None] * x, faults)
    decay = alpha[:, None, None] if alpha.ndim == 1 else alpha[:, :, None]
    after = _snapped(state * decay + b[:, :, None] * driven[:, None, :], faults)
    return after, _snapped(_read(after, c), faults)


def _read(state: Floats, weights: Floats) -> Floats:
    """Return canonical_sum_i(RN(S[i, j]·w[i])) of each head: float32 [H, Dv]; no snap."""
    return canonical_sum(state * weights[:, :, None], axis=-2)


def _snapped(y: Floats, faults: Flags | None) -> Floats:
    """Snap the values of one row."""
    return snap(y[None], faults)[0]


def in_order(
    step: StepFunction, state: Floats, rows: Sequence[Floats], faults: Flags | None = None
) -> tuple[Floats, Floats]:
    """Step through one sequence's rows: the last state, every row's output [rows, ...].

    Parameters
    ----------
    step : `delta_step` or another step here; rows : its arguments after the state, each with a
        leading axis of rows; faults : bool [rows].
    """
    out = []
    for i in range(len(rows[0])):
        flag = None if faults is None else faults[i : i + 1]
        state, o = step(state, *(x[i] for x in rows), flag)
        out.append(o)
    return state, np.stack(out)
