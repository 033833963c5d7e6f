"""Choosing experts and adding up what they say; see `cortiq.numerics.route`."""

from __future__ import annotations

import torch
from torch import Tensor

from cortiq.numerics.contract import F32
from cortiq.numerics.route import Router
from cortiq_torch.arithmetic import canonical_sum, exp, inverse, sigmoid, snap


def softmax(x: Tensor, faults: Tensor) -> Tensor:
    """p = exp(x − max x); snap(p·RN(1/Σp))."""
    p = exp(x - x.amax(dim=-1, keepdim=True))
    return snap(p * inverse(canonical_sum(p))[..., None], faults)


def routed(
    scores: Tensor, router: Router, bias: Tensor | None, faults: Tensor
) -> tuple[Tensor, Tensor]:
    """Indices int32 [rows, k] in ascending order, and their weights."""
    p = scores
    if router.kind == "softmax":
        p = softmax(scores, faults)
    elif router.kind == "sigmoid":
        p = snap(sigmoid(scores), faults)
    keys = scores if bias is None else snap(p + bias, faults)
    # A stable order: of equal keys the first index comes first.
    best = keys.argsort(dim=-1, descending=True, stable=True)[..., : router.top_k]
    indices = best.sort(dim=-1).values
    weights = p.gather(-1, indices)
    if router.kind == "softmax_topk":
        weights = softmax(weights, faults)
    if router.renormalise:
        weights = _renormalised(weights, router.denominator_floor)
    if router.routed_scaling != 1:
        weights = weights * float(F32(router.routed_scaling))
    return indices.int(), snap(weights, faults)


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
