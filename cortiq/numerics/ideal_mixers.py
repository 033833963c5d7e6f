"""Plain float64 formulas of matmul, attention, convolution and delta net.

Errors of the contract's functions are stated against these; they take the same operands.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cortiq.numerics.ideal import softmax
from cortiq.numerics.quantise import Quantised
from cortiq.numerics.unpacked_weights import Codes

Doubles = npt.NDArray[np.float64]


def dequantise_ideal(x: Quantised) -> Doubles:
    """Return q·2^e in float64, exact."""
    return x.q.astype(np.float64) * np.exp2(x.e.astype(np.float64))[..., None]


def weight_ideal(weight: Codes) -> Doubles:
    """Return scale·code [+ minimum·offset] in float64 [N, K]."""
    columns = weight.codes.shape[1]
    scale = np.repeat(weight.scale.astype(np.float64), weight.block, axis=1)[:, :columns]
    values = scale * weight.codes
    if weight.offsets is None or weight.minimum is None:
        return values
    minimum = np.repeat(weight.minimum.astype(np.float64), weight.block // weight.sub, axis=1)
    return values + np.repeat(minimum * weight.offsets, weight.sub, axis=1)


def matmul_ideal(x: Quantised, weight: Codes) -> Doubles:
    """Return x·Wᵀ of the dequantised operands, float64 [rows, N]."""
    return dequantise_ideal(x) @ weight_ideal(weight).T


def matmul_error_scale(x: Quantised, weight: Codes) -> Doubles:
    """Return Σ_b (|I_b·scale_b| + |J_b·minimum_b|)·2^e, the factor in the matmul's error bound."""
    total = np.zeros((len(x.q), len(weight.codes)))
    for block in range(weight.scale.shape[1]):
        part = weight.columns(*_block_edges(weight, block))
        q = x.q[:, slice(*_block_edges(weight, block))]
        here = Quantised(q, x.e)
        code_part = part._replace(offsets=None, minimum=None)
        total += np.abs(matmul_ideal(here, code_part))
        if part.minimum is not None:
            low = part._replace(codes=np.zeros_like(part.codes))
            total += np.abs(matmul_ideal(here, low))
    return total


def _block_edges(weight: Codes, block: int) -> tuple[int, int]:
    return block * weight.block, min((block + 1) * weight.block, weight.codes.shape[1])


def attention_ideal(
    q: Quantised,
    keys: Quantised,
    values: Quantised,
    positions: npt.NDArray[np.integer],
    scale: float,
    *,
    window: int = 0,
    soft_cap: float | None = None,
    sinks: npt.NDArray[np.floating] | None = None,
    slopes: Sequence[float] = (),
) -> tuple[Doubles, Doubles]:
    """Return softmax attention in float64, and a bound on the contract's error: [rows, H, Dv].

    The bound, with p the softmax weights, u_j = 32512·2^ev of value row j and s the base-2 scores:
    Σ_tiles n·2⁻¹⁴·max(p·u) + (2⁻¹⁹ + 2⁻²⁰·max|s| + tiles·2⁻²³)·max u + 2⁻⁴⁰, n the tile's keys.
    The first term is the rounding of p·2^ev to 14 bits below its tile's largest.
    """
    heads, group = q.q.shape[1], q.q.shape[1] // keys.q.shape[1]
    query, key, value = (dequantise_ideal(x) for x in (q, keys, values))
    units = 32512 * np.exp2(values.e.astype(np.float64))
    out = np.zeros((len(query), heads, value.shape[2]))
    bound = np.zeros_like(out)
    for row, h in np.ndindex(len(query), heads):
        position = int(positions[row])
        seen = np.arange(max(0, position - window + 1) if window else 0, position + 1)
        if not len(seen):
            continue
        s = key[seen, h // group] @ query[row, h] * scale
        if soft_cap is not None:
            s = soft_cap * np.tanh(s / soft_cap)
        if slopes:
            s = s - slopes[h] * (position - seen)
        sink = -np.inf if sinks is None else float(sinks[h])
        top = max(s.max(), sink)
        p = np.exp(s - top)
        p = p / (p.sum() + np.exp(sink - top))
        out[row, h] = p @ value[seen, h // group]
        bound[row, h] = _attention_bound(seen, p, np.abs(s).max(), units[seen, h // group])
    return out, bound


def _attention_bound(
    seen: npt.NDArray[np.int64], p: Doubles, largest_score: float, units: Doubles
) -> float:
    starts = np.flatnonzero(np.diff(seen // 64, prepend=-1))
    counts = np.diff(starts, append=len(seen))
    weights = counts * np.maximum.reduceat(p * units, starts)
    rest = 2.0**-19 + 2.0**-20 * largest_score * 1.45 + len(starts) * 2.0**-23
    return float(2.0**-14 * weights.sum() + rest * units.max() + 2.0**-40)


def causal_conv_ideal(
    history: Doubles, x: Doubles, weight: Doubles, bias: Doubles | None = None
) -> Doubles:
    """Compute depthwise causal convolution in float64, shapes as `recurrent.causal_conv`."""
    padded = np.concatenate([history, x]).astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(padded, weight.shape[1], axis=0)
    y = (windows * weight.astype(np.float64)).sum(axis=-1)
    return y if bias is None else y + bias


def delta_rule_ideal(
    state: Doubles, q: Doubles, k: Doubles, v: Doubles, alpha: Doubles, beta: Doubles
) -> tuple[Doubles, Doubles]:
    """Return the gated delta rule in float64, S ← (I − β·k·kᵀ)·diag(α)·S + β·k·vᵀ and o = Sᵀ·q;
    shapes as `recurrent.delta_step`, with rows.
    """
    out = np.zeros(v.shape)
    q, k = (np.repeat(x, v.shape[1] // x.shape[1], axis=1) for x in (q, k))
    identity = np.eye(k.shape[2])
    state = state.astype(np.float64).copy()
    for i, h in np.ndindex(v.shape[:2]):
        key, strength = k[i, h].astype(np.float64), float(beta[i, h])
        decay = np.broadcast_to(alpha[i, h], key.shape).astype(np.float64)
        forget = identity - strength * np.outer(key, key)
        written = strength * np.outer(key, v[i, h].astype(np.float64))
        state[h] = forget @ (decay[:, None] * state[h]) + written
        out[i, h] = q[i, h].astype(np.float64) @ state[h]
    return state, out


def diagonal_delta_ideal(
    state: Doubles,
    q: Doubles,
    k: Doubles,
    v: Doubles,
    alpha: Doubles,
    kappa: Doubles,
    beta: Doubles,
) -> tuple[Doubles, Doubles]:
    """Return S ← (diag(α) − β·κᵀ)·S + k·vᵀ and o = Sᵀ·q in float64; shapes as
    `recurrent.diagonal_delta_step`, with rows.
    """
    out, state = np.zeros(v.shape), state.astype(np.float64)
    q, k, v, alpha, kappa, beta = (x.astype(np.float64) for x in (q, k, v, alpha, kappa, beta))
    for i, h in np.ndindex(v.shape[:2]):
        transition = np.diag(alpha[i, h]) - np.outer(beta[i, h], kappa[i, h])
        state[h] = transition @ state[h] + np.outer(k[i, h], v[i, h])
        out[i, h] = q[i, h] @ state[h]
    return state, out


def state_space_ideal(
    state: Doubles, x: Doubles, b: Doubles, c: Doubles, alpha: Doubles, delta: Doubles
) -> tuple[Doubles, Doubles]:
    """Return the selective state space in float64, S ← α·S + B·(Δ·x)ᵀ and o = Sᵀ·C; shapes as
    `recurrent.state_space_step`, with rows.
    """
    out, state = np.zeros(x.shape), state.astype(np.float64)
    b, c = (np.repeat(y, x.shape[1] // y.shape[1], axis=1).astype(np.float64) for y in (b, c))
    for i, driven in enumerate(delta.astype(np.float64)[:, :, None] * x):
        decay = alpha[i].reshape(len(alpha[i]), -1, 1)
        state = decay * state + b[i][:, :, None] * driven[:, None, :]
        out[i] = np.einsum("hn,hnp->hp", c[i], state)
    return state, out


def sinkhorn_ideal(x: Doubles, rounds: int, eps: float) -> Doubles:
    """Return matrices made doubly stochastic, as `streams.sinkhorn`."""
    c = softmax(x) + eps
    c = c / (c.sum(axis=-2, keepdims=True) + eps)
    for _ in range(rounds - 1):
        c = c / (c.sum(axis=-1, keepdims=True) + eps)
        c = c / (c.sum(axis=-2, keepdims=True) + eps)
    return c


def compress_ideal(rows: Doubles, gates: Doubles, bias: Doubles, width: int) -> Doubles:
    """Return the entries of a sequence's rows from its start, as `compression.compress`."""
    rate, out = len(bias), np.zeros((len(rows), width))
    z = gates + bias[np.arange(len(rows)) % rate]
    for last in range(rate - 1, len(rows), rate):
        own = slice(last + 1 - rate, last + 1)
        values, scores = [rows[own, -width:]], [z[own, -width:]]
        if rows.shape[1] > width and last >= rate:
            before = slice(last + 1 - 2 * rate, last + 1 - rate)
            values, scores = [rows[before, :width], *values], [z[before, :width], *scores]
        weights = softmax(np.concatenate(scores).T).T
        out[last] = (weights * np.concatenate(values)).sum(axis=0)
    return out
