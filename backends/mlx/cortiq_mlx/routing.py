"""Choosing experts and adding up what they say; see `cortiq.numerics.route`.

Orders are those of integers that hold key and index together, so that no sort need be stable.
"""

from __future__ import annotations

from cortiq.numerics.contract import F32
from cortiq.numerics.route import LOWEST, Router
from cortiq_mlx.arithmetic import Faults, canonical_sum, descending, exp, inverse, sigmoid, snap
from cortiq_mlx.library import mx

BELOW_ALL = float(LOWEST)
"""Below every canonical value."""
INDEX_BITS = 24


def softmax(x: mx.array, faults: Faults, allowed: mx.array | None = None) -> mx.array:
    """p = exp(x − max x) where allowed, else +0; snap(p·RN(1/Σp))."""
    kept = x if allowed is None else mx.where(allowed, x, BELOW_ALL)
    distance = x - kept.max(axis=-1, keepdims=True)
    if allowed is None:
        p = exp(distance)
    else:
        p = mx.where(allowed, exp(mx.where(allowed, distance, 0.0)), 0.0)
    total = canonical_sum(p)
    return snap(p * inverse(mx.where(total > 0.0, total, 1.0)), faults)


def first(order: mx.array, number: int, late: mx.array | None = None) -> mx.array:
    """Indices of the `number` smallest integers of the last axis, ascending: int32 [..., number].

    Parameters
    ----------
    order : int64 in [0, 2³²); of equal ones the lower index comes first.
    late : small integers; those with a larger one come after all others.
    """
    index = mx.arange(order.shape[-1], dtype=mx.int64)
    keys = (order << INDEX_BITS) | index
    if late is not None:
        keys = keys | (late.astype(mx.int64) << (32 + INDEX_BITS))
    chosen = mx.sort(keys, axis=-1)[..., :number] & ((1 << INDEX_BITS) - 1)
    return mx.sort(chosen, axis=-1).astype(mx.int32)


def routed(
    scores: mx.array, router: Router, bias: mx.array | None, mask: mx.array | None, faults: Faults
) -> tuple[mx.array, mx.array]:
    """Indices int32 [rows, k] in ascending order, and their weights."""
    p = scores
    if router.kind == "softmax":
        p = softmax(scores, faults)
    elif router.kind == "sigmoid":
        p = snap(sigmoid(scores), faults)
    biased = p if bias is None else snap(p + bias, faults)
    keys = scores if bias is None else biased
    admitted = _admitted(biased, keys, router, mask)
    late = None if admitted is None else mx.logical_not(admitted)
    indices = first(descending(keys), router.top_k, late)
    weights = mx.take_along_axis(p, indices, axis=-1)
    there = None if admitted is None else mx.take_along_axis(admitted, indices, axis=-1)
    if router.kind == "softmax_topk":
        weights = softmax(weights, faults, there)
    elif there is not None:
        weights = mx.where(there, weights, 0.0)
    if router.tau is not None:
        weights = _trimmed(weights, mx.take_along_axis(keys, indices, axis=-1), router.tau)
    if router.renormalise:
        weights = _renormalised(weights, router.denominator_floor)
    if router.routed_scaling != 1:
        weights = weights * float(F32(router.routed_scaling))
    return indices, snap(weights, faults)


def _admitted(
    values: mx.array, keys: mx.array, router: Router, mask: mx.array | None
) -> mx.array | None:
    """Experts that the mask allows and whose group is one of the best; None for all."""
    admitted = None if mask is None else mx.broadcast_to(mask != 0.0, keys.shape)
    if router.groups == 1:
        return admitted
    grouped = (*keys.shape[:-1], router.groups, -1)
    counted = (keys if router.group_score == "max" else values).reshape(grouped)
    if admitted is not None:
        counted = mx.where(admitted.reshape(grouped), counted, BELOW_ALL)
    scores = mx.sort(counted, axis=-1)
    best = scores[..., -1]
    late = None if admitted is None else best == BELOW_ALL
    if router.group_score == "top2" and scores.shape[-1] > 1:
        best = mx.where(scores[..., -2] == BELOW_ALL, best, best + scores[..., -2])
    kept = first(descending(best), router.kept_groups, late)
    groups = mx.arange(router.groups, dtype=mx.int32)
    chosen = (kept[..., None] == groups).any(axis=-2)[..., None]
    inside = chosen if admitted is None else mx.logical_and(admitted.reshape(grouped), chosen)
    return mx.broadcast_to(inside, counted.shape).reshape(keys.shape)


def _trimmed(weights: mx.array, keys: mx.array, tau: float) -> mx.array:
    """The weights of the shortest prefix, by key, that holds τ of them; the others +0."""
    total, before = mx.zeros_like(weights[..., 0]), mx.zeros_like(weights)
    place = mx.arange(weights.shape[-1])
    for d in range(weights.shape[-1]):
        weight, key = weights[..., d, None], keys[..., d, None]
        total = total + weight[..., 0]
        ahead = (key > keys) | ((key == keys) & (place > d))
        before = mx.where(ahead, before + weight, before)
    enough = (total * float(F32(tau)))[..., None]
    return mx.where((enough == 0.0) | (before < enough), weights, 0.0)


def _renormalised(weights: mx.array, floor: float) -> mx.array:
    total = mx.zeros_like(weights[..., 0])
    for column in range(weights.shape[-1]):
        total = total + weights[..., column]
    total = (total + float(F32(floor)))[..., None]
    return mx.where(total == 0.0, 0.0, weights / mx.where(total == 0.0, 1.0, total))


def combined(weights: mx.array, outputs: mx.array, faults: Faults) -> mx.array:
    """Σ weight·output in ascending index of the experts."""
    y = weights[:, 0, None] * outputs[:, 0]
    for column in range(1, outputs.shape[1]):
        y = y + weights[:, column, None] * outputs[:, column]
    return snap(y, faults)
