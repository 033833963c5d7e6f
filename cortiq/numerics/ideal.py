"""Float64 twins of the scalar half of the contract: the plain formulas, without order or snap.

The contract's errors are stated against these, and graphs evaluated with them are compared with
other libraries. They promise no bits: NumPy's own exp, log and sums are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from cortiq.errors import UnsupportedError
from cortiq.numerics.rope import RopeTable
from cortiq.numerics.rope_scaling import Growth
from cortiq.numerics.route import Router

Doubles = npt.NDArray[np.float64]
Array = npt.ArrayLike


def wide(x: Array) -> Doubles:
    """Return x as float64."""
    return np.asarray(x, np.float64)


def sigmoid(x: Array) -> Doubles:
    """Return 1/(1 + e^−x), without overflow."""
    e = np.exp(-np.abs(wide(x)))
    return np.where(wide(x) >= 0, 1, e) / (1 + e)


def silu(x: Array) -> Doubles:
    """Return x·σ(x)."""
    return wide(x) * sigmoid(x)


def gelu_tanh(x: Array) -> Doubles:
    """Return ½x(1 + tanh(√(2/π)(x + 0.044715x³)))."""
    x = wide(x)
    return x * sigmoid(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))


def gelu(x: Array) -> Doubles:
    """Return x·Φ(x), Φ the normal distribution."""
    x = wide(x)
    tails = [math.erfc(-value / math.sqrt(2)) / 2 for value in x.ravel()]
    return x * np.array(tails).reshape(x.shape)


def softplus(x: Array) -> Doubles:
    """Return ln(1 + e^x), without overflow."""
    return np.maximum(wide(x), 0) + np.log1p(np.exp(-np.abs(wide(x))))


def relu(x: Array) -> Doubles:
    """Return max(x, 0)."""
    return np.maximum(wide(x), 0)


def relu2(x: Array) -> Doubles:
    """Return max(x, 0)²."""
    return relu(x) ** 2


def signed_root(x: Array) -> Doubles:
    """Return √max(|x|, 10⁻⁶) with the sign of x."""
    x = wide(x)
    return np.sign(x) * np.sqrt(np.maximum(np.abs(x), 1e-6))


def tanh(x: Array) -> Doubles:
    """Return the hyperbolic tangent."""
    return np.tanh(wide(x))


ACTIVATIONS: dict[str, Callable[[Array], Doubles]] = {
    "silu": silu,
    "gelu_tanh": gelu_tanh,
    "gelu": gelu,
    "exp": lambda x: np.exp(wide(x)),
    "sigmoid": sigmoid,
    "tanh": tanh,
    "softplus": softplus,
    "relu": relu,
    "relu2": relu2,
    "signed_root": signed_root,
}


def activation(x: Array, kind: str) -> Doubles:
    """Return ACTIVATIONS[kind](x)."""
    if kind not in ACTIVATIONS:
        hint = f"supported: {', '.join(ACTIVATIONS)}"
        raise UnsupportedError(f"no activation is called {kind!r}", where="activation", hint=hint)
    return ACTIVATIONS[kind](x)


def soft_cap(x: Array, cap: float) -> Doubles:
    """Return cap·tanh(x/cap)."""
    return cap * np.tanh(wide(x) / cap)


def clamp(x: Array, low: float | None, high: float | None) -> Doubles:
    """Return min(max(x, low), high), the bounds rounded to float32."""
    lowest = -np.inf if low is None else float(np.float32(low))
    highest = np.inf if high is None else float(np.float32(high))
    return np.minimum(np.maximum(wide(x), lowest), highest)


def rms_norm(x: Array, weight: Array | None, eps: float) -> Doubles:
    """Return x/√(mean(x²) + eps)·w over the last axis."""
    x = wide(x)
    y = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    return y if weight is None else y * wide(weight)


def layer_norm(x: Array, weight: Array | None, bias: Array | None, eps: float) -> Doubles:
    """Return (x − mean)/√(variance + eps)·w + b over the last axis."""
    x = wide(x)
    centred = x - x.mean(axis=-1, keepdims=True)
    y = centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + eps)
    y = y if weight is None else y * wide(weight)
    return y if bias is None else y + wide(bias)


def l2_norm(x: Array, eps: float) -> Doubles:
    """Return x/√(Σx² + eps) over the last axis."""
    x = wide(x)
    return x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + eps)


def rope_table(table: RopeTable, positions: Array) -> tuple[Doubles, Doubles]:
    """Return (cos, sin)·amplitude, [n, dim/2]; good to 1e-9 for positions below 2²⁰."""
    frequencies = np.array([float(f) for f in table.frequencies])
    angles = (wide(positions)[:, None] - table.lag) * frequencies * (-1 if table.inverse else 1)
    amplitude = np.full((1, 1), float(table.amplitude))
    if isinstance(table.scaling, Growth):
        steps = np.floor((wide(positions) + table.scaling.ahead) / table.scaling.every)
        amplitude = amplitude * (1 + table.scaling.beta * np.log1p(steps))[:, None]
    return np.cos(angles) * amplitude, np.sin(angles) * amplitude


def apply_rope(x: Array, cos: Array, sin: Array, pairing: str = "half") -> Doubles:
    """Turn each pair (a, b) to (a·cos − b·sin, b·cos + a·sin), as `rope.apply_rope`."""
    x = wide(x)
    pairs = np.shape(cos)[-1]
    half = pairing == "half"
    first = slice(0, pairs) if half else slice(0, 2 * pairs, 2)
    second = slice(pairs, 2 * pairs) if half else slice(1, 2 * pairs, 2)
    turned = (x[..., first] + 1j * x[..., second]) * (wide(cos) + 1j * wide(sin))[:, None]
    y = x.copy()
    y[..., first], y[..., second] = turned.real, turned.imag
    return y


def softmax(x: Array, allowed: Array | None = None) -> Doubles:
    """Return e^x/Σe^x over the allowed elements of the last axis, 0 elsewhere."""
    x = wide(x)
    kept = np.broadcast_to(True if allowed is None else np.asarray(allowed, bool), x.shape)
    highest = np.where(kept, x, -np.inf).max(axis=-1, keepdims=True)
    p = np.where(kept, np.exp(np.minimum(x - np.where(np.isfinite(highest), highest, 0), 0)), 0)
    return p / np.maximum(p.sum(axis=-1, keepdims=True), np.finfo(np.float64).tiny)


def sqrt_softplus(x: Array) -> Doubles:
    """Return √softplus(x)."""
    return np.sqrt(softplus(x))


_PROBABILITIES: Mapping[str, Callable[[Array], Doubles]] = {
    "softmax": softmax, "sigmoid": sigmoid, "sqrt_softplus": sqrt_softplus,
}  # fmt: skip


def mixed(
    scores: Doubles, order: npt.NDArray[np.intp], admitted: npt.NDArray[np.bool_], margin: float
) -> Doubles:
    """Return a sparse mixer's weights of experts in this order, see `expert_weights.mixed`."""
    rest, weights = np.array(admitted), []
    for index in np.moveaxis(order, -1, 0)[..., None]:
        best = np.take_along_axis(scores, index, axis=-1)
        near = best - scores <= float(np.float32(margin)) * np.maximum(np.abs(scores), best)
        p = softmax(scores, rest & near)
        weights.append(np.take_along_axis(p, index, axis=-1))
        np.put_along_axis(rest, index, False, axis=-1)
    return np.concatenate(weights, axis=-1)


def route(
    scores: Array, router: Router, selection_bias: Array | None = None, mask: Array | None = None
) -> tuple[npt.NDArray[np.int32], Doubles]:
    """Return the indices (ascending) and weights of the chosen experts, see `route.route`."""
    scores = wide(scores)
    p = _PROBABILITIES.get(router.kind, wide)(scores)
    values = p if selection_bias is None else p + wide(selection_bias)
    keys = scores if selection_bias is None else values
    admitted = _admitted(values, keys, router, mask)
    order = np.lexsort((-keys, ~admitted), axis=-1)[..., : router.top_k]
    weights = np.take_along_axis(p, order, axis=-1)
    there = np.take_along_axis(admitted, order, axis=-1)
    if router.margin is not None:
        weights = mixed(scores, order, admitted, router.margin)
    weights = softmax(weights, there) if router.kind == "softmax_topk" else weights * there
    if router.tau is not None:
        before = np.cumsum(weights, axis=-1) - weights
        weights = weights * (before < router.tau * weights.sum(axis=-1, keepdims=True))
    if router.renormalise:
        total = weights.sum(axis=-1, keepdims=True) + router.denominator_floor
        weights = weights / np.where(total == 0, 1, total)
    ascending = np.argsort(order, axis=-1)
    indices = np.take_along_axis(order, ascending, axis=-1).astype(np.int32)
    return indices, np.take_along_axis(weights, ascending, axis=-1) * router.routed_scaling


def _admitted(values: Doubles, keys: Doubles, router: Router, mask: Array | None) -> npt.NDArray:
    allowed = np.broadcast_to(True if mask is None else wide(mask) != 0, keys.shape)
    per_group = (*keys.shape[:-1], router.groups, -1)
    counted = np.where(allowed, keys if router.group_score == "max" else values, -np.inf)
    best = -np.sort(-counted.reshape(per_group), axis=-1)[..., :2]
    if router.group_score == "max":
        best = best[..., :1]
    first = best[..., 0]
    score = first + np.where(np.isinf(best[..., 1:]), 0, best[..., 1:]).sum(axis=-1)
    kept = np.argsort(-score, axis=-1, kind="stable")[..., : router.kept_groups]
    inside = np.zeros(first.shape, bool)
    np.put_along_axis(inside, kept, True, axis=-1)
    return allowed & np.repeat(inside, keys.shape[-1] // router.groups, axis=-1)


def combine_experts(weights: Array, outputs: Array) -> Doubles:
    """Return Σ_k w[row, k]·out[row, k]."""
    return (wide(weights)[..., None] * wide(outputs)).sum(axis=1)


def log_sum_exp(logits: Array) -> Doubles:
    """Return ln Σ e^x over the last axis."""
    x = wide(logits)
    highest = x.max(axis=-1, keepdims=True)
    return highest[..., 0] + np.log(np.exp(x - highest).sum(axis=-1))


def adjusted(
    logits: Array, history: Sequence[int], bias: Mapping[int, float], penalties: Sequence[float]
) -> Doubles:
    """Return logits after bias and (repetition, presence, frequency) penalties over the history."""
    x = wide(logits).copy()
    repetition, presence, frequency = penalties
    for token, value in bias.items():
        x[token] += value
    for token in set(history):
        x[token] = x[token] / repetition if x[token] > 0 else x[token] * repetition
        x[token] -= presence + frequency * list(history).count(token)
    return x


def kept_probabilities(
    logits: Array, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Doubles:
    """Return a draw's probabilities: softmax of logits/T after the three filters, else 0."""
    p = softmax(wide(logits) / temperature)
    order = np.argsort(-p, kind="stable")
    order = order[: top_k or None]
    before = np.cumsum(p[order]) - p[order]
    reached = (top_p < 1) & (before >= top_p * p[order].sum())
    kept = order[~reached & (p[order] >= min_p * p.max())]
    result = np.zeros_like(p)
    result[kept] = p[kept] / p[kept].sum()
    return result
