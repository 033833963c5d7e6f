"""Expert routing: softmax, the choice of experts and their weights, and the weighted sum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cortiq.errors import UnsupportedError
from cortiq.numerics.contract import F32, Flags, Floats, Ints, snap
from cortiq.numerics.scalar import exp, sigmoid
from cortiq.numerics.sums import canonical_sum

ROUTER_KINDS = ("softmax", "sigmoid", "softmax_topk")
SOFTMAX_MAX_ERROR = 2.0**-19
"""Largest |error| of `softmax` relative to the result; half an ulp of x − m is most of it."""


def softmax(x: Floats, allowed: Flags | None = None, faults: Flags | None = None) -> Floats:
    """Primitive over the last axis: m = max x; p = exp(RN(x − m)); snap(RN(p·RN(1/S))).

    S = canonical_sum(p). Where `allowed` is false, x takes no part in m and p is +0 by select; a
    row without an allowed element is all +0. Error at most `SOFTMAX_MAX_ERROR`.

    Parameters
    ----------
    x : float32 [rows, ..., n], canonical.
    allowed : bool, broadcasting against x; None allows everything.
    faults : bool [rows], see `snap`.
    """
    x = np.asarray(x, F32)
    kept = np.broadcast_to(True if allowed is None else allowed, x.shape)
    highest = np.where(kept, x, -F32(2.0**50)).max(axis=-1, keepdims=True)
    p = np.where(kept, exp(np.where(kept, x - highest, F32(0))), F32(0))
    total = canonical_sum(p)[..., None]
    inverse = np.divide(F32(1), np.where(total > 0, total, F32(1)))
    return snap(p * inverse, faults)


@dataclass(frozen=True)
class Router:
    """How a mixture-of-experts layer chooses and weighs its experts.

    Parameters
    ----------
    top_k : experts a row.
    kind : "softmax" over all experts, "sigmoid" of each, or "softmax_topk", over the chosen ones.
    renormalise : divide the weights by their sum (plus `denominator_floor`).
    denominator_floor : 0, or a positive number of at least 2⁻¹⁰⁰.
    routed_scaling : what the weights are multiplied by at the end, 2⁻⁴⁰ to 2⁴⁹.

    Raises
    ------
    UnsupportedError : an option is out of its range.
    """

    top_k: int
    kind: str = "softmax"
    renormalise: bool = False
    denominator_floor: float = 0.0
    routed_scaling: float = 1.0

    def __post_init__(self) -> None:
        floor, scaling = self.denominator_floor, self.routed_scaling
        rules = {
            f"kind = {self.kind!r}": self.kind in ROUTER_KINDS,
            f"top_k = {self.top_k}": self.top_k >= 1,
            f"denominator_floor = {floor}": floor == 0 or 2.0**-100 <= floor < 2.0**50,
            f"routed_scaling = {scaling}": 2.0**-40 <= scaling < 2.0**50,
        }
        hint = f"kinds: {', '.join(ROUTER_KINDS)}; top_k from 1; numbers inside float32's range"
        for what, holds in rules.items():
            if not holds:
                raise UnsupportedError(what, where="router", hint=hint)


def choose(keys: Floats, top_k: int) -> Ints:
    """Indices of the top_k largest keys of each row, lower index first on equality; ascending.

    Parameters
    ----------
    keys : float32 [rows, n], canonical.

    Returns
    -------
    int32 [rows, top_k].
    """
    order = np.argsort(-keys, axis=-1, kind="stable")[..., :top_k]
    return np.sort(order, axis=-1).astype(np.int32)


def route(
    scores: Floats,
    router: Router,
    selection_bias: Floats | None = None,
    faults: Flags | None = None,
) -> tuple[Ints, Floats]:
    """Choose experts and weigh them; one primitive.

    1. p: "softmax" softmax(scores); "sigmoid" snap(σ(scores)); "softmax_topk" the scores.
    2. Keys: the raw scores without a bias (p saturates and would tie where scores differ), else
       snap(RN(p + bias)). The top_k largest keys are chosen, the lower index first on equality,
       and listed in ascending index order.
    3. Weights: p of the chosen, never with the bias; "softmax_topk": softmax of the chosen scores.
    4. `renormalise`: s = +0; s = RN(s + w) in ascending index order; s = RN(s + RN(floor));
       w = RN(w/s), +0 where s is 0.
    5. w = RN(w·RN(routed_scaling)) unless it is 1; snap.

    Parameters
    ----------
    scores : float32 [rows, experts], canonical: the router's logits.
    selection_bias : float32 [experts], canonical: moves the choice only.
    faults : bool [rows], see `snap`.

    Returns
    -------
    indices int32 [rows, top_k] ascending, weights float32 [rows, top_k].

    Raises
    ------
    UnsupportedError : fewer experts than top_k.
    """
    scores = np.asarray(scores, F32)
    if router.top_k > scores.shape[-1]:
        what = f"top_k = {router.top_k} of {scores.shape[-1]} experts"
        raise UnsupportedError(what, where="router")
    p = scores
    if router.kind == "softmax":
        p = softmax(scores, faults=faults)
    elif router.kind == "sigmoid":
        p = snap(sigmoid(scores), faults)
    keys = scores if selection_bias is None else snap(p + selection_bias, faults)
    indices = choose(keys, router.top_k)
    weights = np.take_along_axis(p, indices, axis=-1)
    if router.kind == "softmax_topk":
        weights = softmax(weights, faults=faults)
    if router.renormalise:
        weights = renormalised(weights, router.denominator_floor)
    if router.routed_scaling != 1:
        weights = weights * F32(router.routed_scaling)
    return indices, snap(weights, faults)


def renormalised(weights: Floats, floor: float) -> Floats:
    """Step 4 of `route`."""
    total = np.zeros(weights.shape[:-1], F32)
    for column in range(weights.shape[-1]):
        total = total + weights[..., column]
    total = (total + F32(floor))[..., None]
    empty = total == 0
    return np.where(empty, F32(0), weights / np.where(empty, F32(1), total))


def combine_experts(weights: Floats, outputs: Floats, faults: Flags | None = None) -> Floats:
    """y = +0; y = RN(y + RN(w·out)) over the chosen experts in ascending index order; snap.

    Parameters
    ----------
    weights : float32 [rows, k], of experts in ascending index order.
    outputs : float32 [rows, k, width], canonical.
    faults : bool [rows], see `snap`.
    """
    y = np.zeros((outputs.shape[0], outputs.shape[2]), F32)
    for column in range(outputs.shape[1]):
        y = y + weights[:, column, None] * outputs[:, column]
    return snap(y, faults)
