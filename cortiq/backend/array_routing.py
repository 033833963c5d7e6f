"""Routing over any array library: choosing experts and adding up what they say.

See `cortiq.numerics.route`. Orders are those of integers that hold key and index together, so that
no sort need be stable.
"""

from __future__ import annotations

from typing import Any

from cortiq.backend.arithmetic import Arithmetic
from cortiq.numerics.contract import F32
from cortiq.numerics.route import LOWEST, NEVER, Router

BELOW_ALL = float(LOWEST)
"""Below every canonical value."""
INDEX_BITS = 24


def softmax(library: Arithmetic, x: Any, faults: Any, allowed: Any = None) -> Any:
    """Return snap(p·RN(1/Σp)), p = exp(x − max x) where allowed, else +0."""
    kept = x if allowed is None else library.where(allowed, x, BELOW_ALL)
    distance = x - library.highest(kept)
    if allowed is None:
        p = library.exp(distance)
    else:
        p = library.exp(library.where(allowed, distance, 0.0))
        p = library.where(allowed, p, 0.0)
    total = library.canonical_sum(p)
    return library.snap(p * library.inverse(library.where(total > 0.0, total, 1.0)), faults)


def first(library: Arithmetic, order: Any, number: int, late: Any = None) -> Any:
    """Return indices of the `number` smallest integers of the last axis, ascending, int32.

    Parameters
    ----------
    order : int64 in [0, 2³²); of equal ones the lower index comes first.
    late : small integers; those with a larger one come after all others.
    """
    keys = (order << INDEX_BITS) | library.wide(library.counted(order.shape[-1]))
    if late is not None:
        keys = keys | (library.wide(late) << (32 + INDEX_BITS))
    chosen = library.ascending(keys)[..., :number] & ((1 << INDEX_BITS) - 1)
    return library.cast(library.ascending(chosen), "i32")


def routed(
    library: Arithmetic, scores: Any, router: Router, bias: Any, mask: Any, faults: Any
) -> tuple[Any, Any]:
    """Return indices int32 [rows, k] in ascending order, and their weights."""
    p = scores
    if router.kind == "softmax":
        p = softmax(library, scores, faults)
    elif router.kind == "sigmoid":
        p = library.snap(library.sigmoid(scores), faults)
    elif router.kind == "sqrt_softplus":
        p = library.root(library.snap(library.activation("softplus", scores), faults))
    biased = p if bias is None else library.snap(p + bias, faults)
    keys = scores if bias is None else biased
    admitted = _admitted(library, biased, keys, router, mask)
    late = None if admitted is None else library.where(admitted, 0, 1)
    indices = first(library, library.descending(keys), router.top_k, late)
    weights = library.take_along(p, indices)
    there = None if admitted is None else library.take_along(admitted, indices)
    if router.margin is not None:
        weights = _mixed(library, scores, indices, admitted, router.margin)
    if router.kind == "softmax_topk":
        weights = softmax(library, weights, faults, there)
    elif there is not None:
        weights = library.where(there, weights, 0.0)
    if router.tau is not None:
        weights = _trimmed(library, weights, library.take_along(keys, indices), router.tau)
    if router.renormalise:
        weights = _renormalised(library, weights, router.denominator_floor)
    if router.routed_scaling != 1:
        weights = weights * float(F32(router.routed_scaling))
    return indices, library.snap(weights, faults)


def keep_listed(library: Arithmetic, scores: Any, lists: Any) -> Any:
    """Return the scores of the experts in each row's list, float32 [rows, n], and `NEVER`."""
    experts = library.cast(library.counted(scores.shape[-1]), "f32")
    listed = (lists[..., None] == experts).any(-2)
    return library.where(listed, scores, float(NEVER))


def index_select(library: Arithmetic, x: Any, index: Any) -> Any:
    """Return the values that an index names, float32 [rows, m], and `NEVER`."""
    there = (index >= 0) & (index < x.shape[-1])
    return library.where(there, x[..., library.cast(library.where(there, index, 0.0), "i32")],
                         float(NEVER))  # fmt: skip


def _admitted(library: Arithmetic, values: Any, keys: Any, router: Router, mask: Any) -> Any:
    """Return the experts that the mask allows and whose group is one of the best; None for all."""
    admitted = None if mask is None else library.spread(mask != 0.0, keys.shape)
    if router.groups == 1:
        return admitted
    grouped = (*keys.shape[:-1], router.groups, keys.shape[-1] // router.groups)
    counted = (keys if router.group_score == "max" else values).reshape(grouped)
    if admitted is not None:
        counted = library.where(admitted.reshape(grouped), counted, BELOW_ALL)
    best, second = _two_best(library, counted)
    late = None if admitted is None else best == BELOW_ALL
    if router.group_score == "top2" and grouped[-1] > 1:
        best = library.where(second == BELOW_ALL, best, best + second)
    kept = first(library, library.descending(best), router.kept_groups, late)
    chosen = (kept[..., None] == library.counted(router.groups)).any(-2)[..., None]
    inside = chosen if admitted is None else admitted.reshape(grouped) & chosen
    return library.spread(inside, grouped).reshape(keys.shape)


def _two_best(library: Arithmetic, x: Any) -> tuple[Any, Any]:
    """Return the largest value of the last axis and the next one, without the axis."""
    keys = (library.descending(x) << INDEX_BITS) | library.wide(library.counted(x.shape[-1]))
    order = library.ascending(keys)[..., :2] & ((1 << INDEX_BITS) - 1)
    found = library.take_along(x, library.cast(order, "i32"))
    return found[..., 0], found[..., -1]


def _mixed(library: Arithmetic, scores: Any, indices: Any, admitted: Any, margin: float) -> Any:
    """Return each chosen expert's share among those no earlier in order and near to it."""
    place, share, top = library.counted(scores.shape[-1]), float(F32(margin)), indices.shape[-1]
    columns = []
    for column in range(top):
        index = indices[..., column : column + 1]
        best = library.take_along(scores, index)
        size = library.magnitude(scores)
        reach = library.where(size > best, size, best) * share
        part = ((scores < best) | ((scores == best) & (place >= index))) & (best - scores <= reach)
        part = part if admitted is None else part & admitted
        p = library.exp(library.where(part, scores - best, 0.0))
        total = library.canonical_sum(library.where(part, p, 0.0))
        columns.append(library.inverse(library.where(total > 0.0, total, 1.0))[..., 0])
    return library.stack(columns, -1)


def _trimmed(library: Arithmetic, weights: Any, keys: Any, tau: float) -> Any:
    """Return the weights of the shortest prefix, by key, that holds τ of them; the others +0."""
    total, before = weights[..., 0] * 0.0, weights * 0.0
    place = library.counted(weights.shape[-1])
    for d in range(weights.shape[-1]):
        weight, key = weights[..., d, None], keys[..., d, None]
        total = total + weight[..., 0]
        ahead = (key > keys) | ((key == keys) & (place > d))
        before = library.where(ahead, before + weight, before)
    enough = (total * float(F32(tau)))[..., None]
    return library.where((enough == 0.0) | (before < enough), weights, 0.0)


def _renormalised(library: Arithmetic, weights: Any, floor: float) -> Any:
    total = weights[..., 0] * 0.0
    for column in range(weights.shape[-1]):
        total = total + weights[..., column]
    total = (total + float(F32(floor)))[..., None]
    whole = library.where(total == 0.0, 1.0, total)
    return library.where(total == 0.0, 0.0, library.quotient(weights, whole))


def combined(library: Arithmetic, weights: Any, outputs: Any, faults: Any) -> Any:
    """Return Σ weight·output in ascending index of the experts."""
    y = weights[:, 0, None] * outputs[:, 0]
    for column in range(1, outputs.shape[1]):
        y = y + weights[:, column, None] * outputs[:, column]
    return library.snap(y, faults)
