"""Expert routing: softmax, the choice of experts and their weights, and the weighted sum."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

import numpy as np

from cortiq.domains import Count, OneOf, Real, Relation, at_most, require
from cortiq.errors import UnsupportedError
from cortiq.numerics.contract import F32, Flags, Floats, Ints, snap
from cortiq.numerics.expert_weights import mixed, renormalised, trimmed
from cortiq.numerics.scalar import exp, sigmoid, softplus
from cortiq.numerics.sums import canonical_sum

ROUTER_KINDS = ("softmax", "sigmoid", "softmax_topk", "sqrt_softplus", "sparse_mixer")
GROUP_SCORES = ("max", "top2")
LOWEST = F32(-(2.0**60))
"""Below every sum of two canonical values."""
NEVER = F32(-(2.0**40))
"""Score of an expert that a token's list leaves out."""
SOFTMAX_MAX_ERROR = 2.0**-19
"""Largest |error| of `softmax` relative to the result; half an ulp of x − m is most of it."""


def softmax(x: Floats, allowed: Flags | bool | None = None, faults: Flags | None = None) -> Floats:
    """Compute the primitive over the last axis: m = max x; p = exp(RN(x − m)); snap(RN(p·RN(1/S))).

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
    """The choice and the weights of a mixture-of-experts layer's experts.

    Parameters
    ----------
    top_k : experts a row.
    kind : "softmax" over all experts, "sigmoid" of each, "sqrt_softplus", the root of each one's
        softplus, "softmax_topk", over the chosen ones, or "sparse_mixer", of each chosen one over
        those that come no earlier in order and are within `margin` of it (Phi-3.5-MoE).
    renormalise : divide the weights by their sum (plus `denominator_floor`).
    denominator_floor : 0, or a positive number of at least 2⁻¹⁰⁰.
    routed_scaling : factor of the weights at the end, 2⁻⁴⁰ to 2⁴⁹.
    groups, kept_groups : experts are divided into groups of neighbours, and chosen from the best
        groups only; 1 and 1: no such limit.
    group_score : a group's score: "max", its largest key, or "top2", the sum of its two best
        values (DeepSeek V2 and V3).
    tau : of the chosen experts in order of their keys keep the shortest prefix that holds this
        share of their weight, 0 < τ ≤ 1; None keeps all.
    margin : of a "sparse_mixer": how far a score may be below the chosen one's, as a part of the
        larger of its own magnitude and the chosen score; None for other kinds.

    Raises
    ------
    UnsupportedError : an option is out of its range.
    """

    top_k: Count
    kind: Annotated[str, OneOf(ROUTER_KINDS)] = "softmax"
    renormalise: bool = False
    denominator_floor: Annotated[float, Real(2.0**-100, 2.0**50, below=True, zero=True)] = 0.0
    routed_scaling: Annotated[float, Real(2.0**-40, 2.0**50, below=True)] = 1.0
    groups: Count = 1
    kept_groups: Count = 1
    group_score: Annotated[str, OneOf(GROUP_SCORES)] = "max"
    tau: Annotated[float, Real(2.0**-40, 1.0)] | None = None
    margin: Annotated[float, Real(2.0**-40, 2.0, zero=True)] | None = None
    relations = (
        at_most("kept_groups", "groups"),
        Relation(
            ("kind", "margin"), "a sparse mixer has a margin, and nothing else has one",
            lambda router: (router.kind == "sparse_mixer") == (router.margin is not None),
        ),
    )  # fmt: skip

    def __post_init__(self) -> None:
        require(self, UnsupportedError, "router")

    def __repr__(self) -> str:
        """Return the first five fields, and those others that differ from their defaults."""
        known = fields(self)
        shown = [f for i, f in enumerate(known) if i < 5 or getattr(self, f.name) != f.default]
        return f"Router({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in shown)})"

    def refusal(self, experts: int) -> str:
        """Return why this router cannot route so many experts; empty if it can."""
        if experts % self.groups:
            return f"{experts} experts in {self.groups} groups"
        reach = self.kept_groups * (experts // self.groups)
        return "" if self.top_k <= reach else f"top_k = {self.top_k} of {reach} experts"


def keep_listed(scores: Floats, tokens: Ints, table: Floats) -> Floats:
    """Return the scores of the experts that each row's token lists, and −2⁴⁰ for all others.

    Parameters
    ----------
    scores : float32 [rows, experts]; tokens : [rows].
    table : float32 [vocabulary, listed], whole numbers; others than experts list nothing.
    """
    experts = np.arange(scores.shape[-1], dtype=F32)
    listed = (table[np.asarray(tokens)][..., None] == experts).any(axis=1)
    return np.where(listed, scores, NEVER)


def index_select(x: Floats, index: Floats) -> Floats:
    """Return the value that each index names, and −2⁴⁰ where it names none; exact.

    Parameters
    ----------
    x : float32 [rows, n]; index : float32 [m], whole numbers; others than 0 to n − 1 name nothing.
    """
    there = (index >= 0) & (index < x.shape[-1])
    return np.where(there, x[..., np.where(there, index, 0).astype(np.int64)], NEVER)


def stack_index(number: Ints, size: int, index: Ints | None = None) -> Ints:
    """Return places in a stack of stacks, int32 [rows, k]: number·size + index.

    Parameters
    ----------
    number : int32 [rows]; index : int32 [rows, k], below `size`; None for 0 to size − 1.
    """
    if index is None:
        index = np.arange(size, dtype=np.int32)[None]
    return np.asarray(number, np.int32)[:, None] * np.int32(size) + index


def choose(keys: Floats, top_k: int, admitted: Flags | None = None) -> Ints:
    """Choose the top_k largest keys of each row, lower index first on equality; ascending indices.

    Parameters
    ----------
    keys : float32 [rows, n], canonical.
    admitted : bool [rows, n]: the others come after all of these, by select.

    Returns
    -------
    int32 [rows, top_k].
    """
    order = np.argsort(-keys, axis=-1, kind="stable")
    if admitted is not None:
        late = ~np.take_along_axis(admitted, order, axis=-1)
        order = np.take_along_axis(order, np.argsort(late, axis=-1, kind="stable"), axis=-1)
    return np.sort(order[..., :top_k], axis=-1).astype(np.int32)


def admit(values: Floats, keys: Floats, router: Router, mask: Floats | None) -> Flags | None:
    """Return the experts that may be chosen, bool [rows, experts]; None for all of them.

    Those that the mask admits and whose group is kept. A group's score counts its admitted
    experts only: the largest key, or RN(a + b) of the two largest values (a alone if it has one).
    The kept_groups largest scores are kept, the lower index first on equality, groups without an
    admitted expert last.
    """
    if mask is None and router.groups == 1:
        return None
    admitted = np.broadcast_to(True if mask is None else mask != 0, keys.shape)
    if router.groups == 1:
        return admitted
    grouped = (*keys.shape[:-1], router.groups, -1)
    inside = admitted.reshape(grouped)
    counted = keys if router.group_score == "max" else values
    scores = -np.sort(-np.where(inside, counted.reshape(grouped), LOWEST), axis=-1)
    best = scores[..., 0]
    if router.group_score == "top2" and scores.shape[-1] > 1:
        best = np.where(scores[..., 1] == LOWEST, best, best + scores[..., 1])
    there: Flags = np.any(inside, axis=-1)
    kept = choose(best, router.kept_groups, there)
    chosen = np.zeros(best.shape, np.bool_)
    np.put_along_axis(chosen, kept, True, axis=-1)
    return (inside & chosen[..., None]).reshape(keys.shape)


def route(
    scores: Floats,
    router: Router,
    selection_bias: Floats | None = None,
    faults: Flags | None = None,
    mask: Floats | None = None,
) -> tuple[Ints, Floats]:
    """Choose experts and weigh them; one primitive.

    1. p: "softmax" softmax(scores); "sigmoid" snap(σ(scores)); "sqrt_softplus"
       RN(√snap(softplus(scores))); "softmax_topk" and "sparse_mixer" the scores.
    2. Keys: the raw scores without a bias (p saturates and would tie where scores differ), else
       snap(RN(p + bias)). The top_k largest keys of the experts that `admit` allows are chosen
       (a group's values for "top2" are p, or the keys with a bias), the lower index first on
       equality, and listed in ascending index order. Where fewer are admitted, the rest are the
       experts that would come next.
    3. Weights: p of the chosen, never with the bias; "softmax_topk": softmax of the chosen scores;
       "sparse_mixer": see `expert_weights.mixed` (there is no bias).
       Experts that are not admitted take no part and weigh +0, by select.
    4. `tau`: see `expert_weights.trimmed`.
    5. `renormalise`: s = +0; s = RN(s + w) in ascending index order; s = RN(s + RN(floor));
       w = RN(w/s), +0 where s is 0.
    6. w = RN(w·RN(routed_scaling)) unless it is 1; snap.

    Parameters
    ----------
    scores : float32 [rows, experts], canonical: the router's logits.
    selection_bias : float32 [experts], canonical: moves the choice only.
    faults : bool [rows], see `snap`.
    mask : float32 [experts]: experts where it is 0 are never chosen.

    Returns
    -------
    indices int32 [rows, top_k] ascending, weights float32 [rows, top_k].

    Raises
    ------
    UnsupportedError : more experts are to be chosen than there are.
    """
    scores = np.asarray(scores, F32)
    if refusal := router.refusal(scores.shape[-1]):
        raise UnsupportedError(refusal, where="router")
    p = probabilities(scores, router.kind, faults)
    biased = p if selection_bias is None else snap(p + selection_bias, faults)
    keys = scores if selection_bias is None else biased
    admitted = admit(biased, keys, router, mask)
    indices = choose(keys, router.top_k, admitted)
    there = True if admitted is None else np.take_along_axis(admitted, indices, axis=-1)
    weights = np.take_along_axis(p, indices, axis=-1)
    if router.margin is not None:
        weights = mixed(scores, indices, admitted, router.margin)
    whole = router.kind == "softmax_topk"
    weights = softmax(weights, there, faults) if whole else np.where(there, weights, F32(0))
    if router.tau is not None:
        weights = trimmed(weights, np.take_along_axis(keys, indices, axis=-1), router.tau)
    if router.renormalise:
        weights = renormalised(weights, router.denominator_floor)
    if router.routed_scaling != 1:
        weights = weights * F32(router.routed_scaling)
    return indices, snap(weights, faults)


def probabilities(scores: Floats, kind: str, faults: Flags | None) -> Floats:
    """Compute step 1 of `route`."""
    if kind == "softmax":
        return softmax(scores, faults=faults)
    if kind == "sigmoid":
        return snap(sigmoid(scores), faults)
    if kind == "sqrt_softplus":
        return np.sqrt(snap(softplus(scores), faults))
    return scores


def combine_experts(weights: Floats, outputs: Floats, faults: Flags | None = None) -> Floats:
    """Compute y = +0; y = RN(y + RN(w·out)) over chosen experts in ascending index order; snap.

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
