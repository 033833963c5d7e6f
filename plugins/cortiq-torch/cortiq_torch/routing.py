"""Choosing experts and adding up what they say; see `cortiq.numerics.route`."""

from __future__ import annotations

import torch
from torch import Tensor

from cortiq.numerics.contract import F32
from cortiq.numerics.route import LOWEST, Router
from cortiq_torch.arithmetic import canonical_sum, exp, inverse, sigmoid, snap

BELOW_ALL = float(LOWEST)
"""Below every canonical value."""


def softmax(x: Tensor, faults: Tensor, allowed: Tensor | None = None) -> Tensor:
    """p = exp(x − max x) where allowed, else +0; snap(p·RN(1/Σp))."""
    kept = torch.ones_like(x, dtype=torch.bool) if allowed is None else allowed
    highest = torch.where(kept, x, BELOW_ALL).amax(dim=-1, keepdim=True)
    p = torch.where(kept, exp(torch.where(kept, x - highest, 0.0)), 0.0)
    total = canonical_sum(p)
    return snap(p * inverse(torch.where(total > 0, total, 1.0))[..., None], faults)


def routed(
    scores: Tensor, router: Router, bias: Tensor | None, mask: Tensor | None, faults: Tensor
) -> tuple[Tensor, Tensor]:
    """Indices int32 [rows, k] in ascending order, and their weights."""
    p = scores
    if router.kind == "softmax":
        p = softmax(scores, faults)
    elif router.kind == "sigmoid":
        p = snap(sigmoid(scores), faults)
    biased = p if bias is None else snap(p + bias, faults)
    keys = scores if bias is None else biased
    admitted = _admitted(biased, keys, router, mask)
    indices = _chosen(keys, router.top_k, admitted)
    there = admitted.gather(-1, indices)
    weights = p.gather(-1, indices)
    if router.kind == "softmax_topk":
        weights = softmax(weights, faults, there)
    else:
        weights = torch.where(there, weights, 0.0)
    if router.tau is not None:
        weights = _trimmed(weights, keys.gather(-1, indices), router.tau)
    if router.renormalise:
        weights = _renormalised(weights, router.denominator_floor)
    if router.routed_scaling != 1:
        weights = weights * float(F32(router.routed_scaling))
    return indices.int(), snap(weights, faults)


def _chosen(keys: Tensor, count: int, admitted: Tensor) -> Tensor:
    """Indices of the largest keys, the admitted ones first, the lower index first on equality."""
    order = keys.argsort(dim=-1, descending=True, stable=True)
    late = (~admitted).gather(-1, order).int()
    order = order.gather(-1, late.argsort(dim=-1, stable=True))
    return order[..., :count].sort(dim=-1).values


def _admitted(values: Tensor, keys: Tensor, router: Router, mask: Tensor | None) -> Tensor:
    """Experts that the mask allows and whose group is one of the best."""
    admitted = torch.ones_like(keys, dtype=torch.bool)
    if mask is not None:
        admitted = admitted & (mask != 0)
    if router.groups == 1:
        return admitted
    inside = admitted.unflatten(-1, (router.groups, -1))
    counted = (keys if router.group_score == "max" else values).unflatten(-1, (router.groups, -1))
    scores = torch.where(inside, counted, BELOW_ALL).sort(dim=-1, descending=True).values
    best = scores[..., 0]
    if router.group_score == "top2" and scores.shape[-1] > 1:
        best = torch.where(scores[..., 1] == BELOW_ALL, best, best + scores[..., 1])
    kept = _chosen(best, router.kept_groups, inside.any(dim=-1))
    chosen = torch.zeros_like(best, dtype=torch.bool).scatter(-1, kept, True)
    return (inside & chosen[..., None]).flatten(-2)


def _trimmed(weights: Tensor, keys: Tensor, tau: float) -> Tensor:
    """The weights of the shortest prefix, by key, that holds τ of them; the others +0."""
    total, before = torch.zeros_like(weights[..., 0]), torch.zeros_like(weights)
    for d in range(weights.shape[-1]):
        weight, key = weights[..., d, None], keys[..., d, None]
        total = total + weight[..., 0]
        ahead = key > keys
        ahead[..., d + 1 :] |= key == keys[..., d + 1 :]
        before = torch.where(ahead, before + weight, before)
    enough = (total * float(F32(tau)))[..., None]
    return torch.where((enough == 0) | (before < enough), weights, 0.0)


def _renormalised(weights: Tensor, floor: float) -> Tensor:
    total = torch.zeros_like(weights[..., 0])
    for column in range(weights.shape[-1]):
        total = total + weights[..., column]
    total = (total + float(F32(floor)))[..., None]
    return torch.where(total == 0, 0.0, weights / torch.where(total == 0, 1.0, total))


def combined(weights: Tensor, outputs: Tensor, faults: Tensor) -> Tensor:
    """Σ weight·output in ascending index of the experts."""
    y = torch.zeros_like(outputs[:, 0])
    for column in range(outputs.shape[1]):
        y = y + weights[:, column, None] * outputs[:, column]
    return snap(y, faults)
