"""Recurrent mixers: the step recurrence is the definition, whatever way a backend computes it."""

from __future__ import annotations

import numpy as np

from cortiq.numerics.contract import F32, Flags, Floats, snap
from cortiq.numerics.sums import canonical_sum

CONV_UNIT_ERROR = 2.0**-24
"""A convolution's error is at most taps + 2 of these, relative to the sum of magnitudes."""
DELTA_TYPICAL_ERROR = 1e-6
"""Error of 64 delta-rule steps on unit keys and normal values, relative to the largest output."""


def causal_conv(
    history: Floats,
    x: Floats,
    weight: Floats,
    bias: Floats | None = None,
    faults: Flags | None = None,
) -> Floats:
    """Depthwise causal convolution of a sequence's rows, no activation: float32 [rows, C].

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
    """The history after rows x: the last L−1 rows of both, float32 [L−1, C]."""
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
    """One step of the gated delta rule: (state', o), o float32 [H, Dv].

    S = RN(S·α); m[j] = canonical_sum_i(RN(S[i, j]·k[i])); d = RN(RN(v − m)·β);
    S = snap(RN(S + RN(k[i]·d[j]))); o[j] = snap(canonical_sum_i(RN(S[i, j]·q[i]))).

    Parameters
    ----------
    state : float32 [H, Dk, Dv]; q, k : float32 [H, Dk]; v : float32 [H, Dv]; canonical.
    alpha : decay, float32 [H], or [H, Dk] for a decay per channel; beta : float32 [H].
    faults : bool [1], the sequence's flag.

    Source: Yang, Kautz and Hatamizadeh, "Gated delta networks", 2024; with [H, Dk] decays Kimi
    Delta Attention, 2025.
    """
    decay = alpha[:, None, None] if alpha.ndim == 1 else alpha[:, :, None]
    decayed = state * decay
    recalled = canonical_sum((decayed * k[:, :, None]).swapaxes(1, 2))
    delta = (v - recalled) * beta[:, None]
    written = decayed + k[:, :, None] * delta[:, None, :]
    after = snap(written[None], faults)[0]
    out = canonical_sum((after * q[:, :, None]).swapaxes(1, 2))
    return after, snap(out[None], faults)[0]


def delta_rule(
    state: Floats,
    q: Floats,
    k: Floats,
    v: Floats,
    alpha: Floats,
    beta: Floats,
    faults: Flags | None = None,
) -> tuple[Floats, Floats]:
    """`delta_step` for rows of one sequence in order: (state', o), o float32 [rows, H, Dv].

    As `delta_step`, each argument but the state with a leading axis of rows; faults bool [rows].
    """
    out = np.zeros(v.shape, F32)
    for i in range(len(v)):
        flag = None if faults is None else faults[i : i + 1]
        state, out[i] = delta_step(state, q[i], k[i], v[i], alpha[i], beta[i], flag)
    return state, out
