"""Choosing experts: one program a row; see `cortiq.numerics.route`."""

from __future__ import annotations

import torch
import triton.language as tl

from cortiq.numerics.contract import F32
from cortiq.numerics.route import Router
from cortiq_triton.language import Tensor, device, kernel, launch, pow2
from cortiq_triton.rows import ordered_bits
from cortiq_triton.scalar import exp, fold, inverse, outside, sigmoid, snapped, softplus
from cortiq_triton.sums import add_in_order

KINDS = ("softmax", "sigmoid", "softmax_topk", "sqrt_softplus", "sparse_mixer")
LANES = 256
LARGEST = 2048
"""Experts up to which a row's fit in one program."""


@device
def from_bits(key: Tensor) -> Tensor:
    """The float whose `ordered_bits` these are."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@device
def row_total(p: Tensor, EP: tl.constexpr) -> Tensor:
    """The sum of p [EP] in the canonical order, [1]."""
    chunks = tl.permute(tl.reshape(p, (EP // 256, 256)), (1, 0))
    lanes = add_in_order(tl.full((256,), 0.0, tl.float32), chunks, EP // 256, 256)
    total = tl.max(fold(lanes[None, :], 1).to(tl.int32, bitcast=True), 0).to(
        tl.float32, bitcast=True
    )
    return tl.reshape(total, (1,))


@device
def row_softmax(x: Tensor, kept: Tensor, EP: tl.constexpr) -> tuple[Tensor, Tensor]:
    """snap(p·RN(1/S)) of x [EP] where kept, and whether a value is a fault."""
    highest = from_bits(tl.max(tl.where(kept, ordered_bits(x), ordered_bits(x * 0.0 - 2.0**50)), 0))
    p = tl.where(kept, exp(tl.where(kept, x - highest, 0.0)), 0.0)
    total = row_total(p, EP) + tl.full((EP,), 0.0, tl.float32)
    y = p * inverse(tl.where(total > 0.0, total, 1.0))
    return snapped(y), tl.max((kept & outside(y)).to(tl.int32), 0)


@device
def picked(values: Tensor, where: Tensor) -> Tensor:
    """The one value of a vector where `where` holds; +0 if there is none."""
    return tl.sum(tl.where(where, values.to(tl.int32, bitcast=True), 0), 0).to(
        tl.float32, bitcast=True
    )


@device
def mixed(
    x: Tensor, bits: Tensor, index: Tensor, admitted: Tensor, at: Tensor, margin: Tensor,
    EP: tl.constexpr,
) -> Tensor:  # fmt: skip
    """A sparse mixer's weight of the chosen expert `at`, [256] times the same."""
    m = picked(x, index == at)
    mine = tl.sum(tl.where(index == at, bits, 0), 0)
    behind = (bits < mine) | ((bits == mine) & (index >= at))
    near = (m - x) <= margin * tl.maximum(tl.abs(x), m)
    part = (admitted > 0) & behind & near
    p = tl.where(part, exp(tl.where(part, x - m, 0.0)), 0.0)
    total = row_total(p, EP) + tl.full((256,), 0.0, tl.float32)
    return inverse(tl.where(total > 0.0, total, 1.0))


@device
def weight_of(
    x: Tensor, p: Tensor, bits: Tensor, index: Tensor, admitted: Tensor, at: Tensor,
    margin: Tensor, KIND: tl.constexpr, EP: tl.constexpr,
) -> Tensor:  # fmt: skip
    """The weight of the chosen expert `at`, [256] times the same."""
    if KIND == 4:
        weight = mixed(x, bits, index, admitted, at, margin, EP)
    else:
        weight = picked(p, index == at) + tl.full((256,), 0.0, tl.float32)
    return weight


@device
def best(order: Tensor, COUNT: tl.constexpr, EP: tl.constexpr) -> Tensor:
    """1 at the COUNT largest of distinct int64 numbers [EP]."""
    taken = tl.full((EP,), 0, tl.int32)
    for _ in range(COUNT):
        rest = tl.where(taken > 0, -9223372036854775807, order)
        taken = tl.where(rest == tl.max(rest, 0), 1, taken)
    return taken


@device
def order_of(key: Tensor, index: Tensor, early: Tensor) -> Tensor:
    """int64 numbers that put `early` ones first, then larger keys, then lower indices."""
    rank = key.to(tl.int64) + tl.where(early, 8589934592, 0)
    return (rank << 16) + (65535 - index).to(tl.int64)


@device
def group_score(
    keys: Tensor, values: Tensor, index: Tensor, inside: Tensor, TOP2: tl.constexpr
) -> Tensor:
    """A group's largest key, or the sum of its two largest values (of one, if it has one)."""
    if TOP2:
        bits = tl.where(inside, ordered_bits(values), -2147483648)
        first = tl.max(bits, 0)
        at = tl.min(tl.where(bits == first, index, 1 << 30), 0)
        second = tl.max(tl.where(index == at, -2147483648, bits), 0)
        both = from_bits(first) + from_bits(tl.maximum(second, -2139095040))
        return tl.where(second == -2147483648, from_bits(first), both)
    return from_bits(tl.max(tl.where(inside, keys, -2147483648), 0))


@device
def kept_groups(
    keys: Tensor, values: Tensor, index: Tensor, admitted: Tensor, GROUPS: tl.constexpr,
    SIZE: tl.constexpr, KEPT: tl.constexpr, TOP2: tl.constexpr, GP: tl.constexpr,
) -> Tensor:  # fmt: skip
    """Admitted experts of the best groups, as 0 and 1."""
    g = tl.arange(0, GP)
    scores = tl.full((GP,), 0.0, tl.float32)
    there = tl.full((GP,), 0, tl.int32)
    for group in range(GROUPS):
        inside = (admitted > 0) & (index // SIZE == group)
        some = tl.max(inside.to(tl.int32), 0)
        score = group_score(keys, values, index, inside, TOP2)
        scores = tl.where((g == group) & (there * 0 + some > 0), score, scores)
        there = tl.where(g == group, some, there)
    order = order_of(ordered_bits(scores), g, there > 0)
    chosen = best(tl.where(g < GROUPS, order, g.to(tl.int64) - 1152921504606846976), KEPT, GP)
    kept = admitted * 0
    for group in range(GROUPS):
        on = tl.max(tl.where(g == group, chosen, 0), 0)
        kept = tl.where(index // SIZE == group, admitted * on, kept)
    return kept


@device
def trimmed(w: Tensor, keys: Tensor, tau: Tensor, TOP: tl.constexpr) -> Tensor:
    """The weights of the shortest prefix in the order of the keys that holds τ of them."""
    lane = tl.arange(0, 256)
    before = tl.full((256,), 0.0, tl.float32)
    whole = tl.full((1,), 0.0, tl.float32)
    for d in range(TOP):
        weight, other = picked(w, lane == d), picked(keys, lane == d)
        whole = whole + weight
        ahead = (other > keys) | ((keys == other) & (lane > d))
        before = tl.where(ahead, before + weight, before)
    enough = tau * whole + before * 0.0
    return tl.where((enough == 0.0) | (before < enough), w, 0.0)


@device
def renormalised(w: Tensor, floor: Tensor, TOP: tl.constexpr) -> Tensor:
    """The weights over their sum in ascending order of the experts, and the floor."""
    lane = tl.arange(0, 256)
    whole = tl.full((1,), 0.0, tl.float32)
    for d in range(TOP):
        whole = whole + picked(w, lane == d)
    whole = (whole + floor) + w * 0.0
    return tl.where(whole == 0.0, 0.0, tl.div_rn(w, tl.where(whole == 0.0, 1.0, whole)))


@kernel
def route(
    scores: Tensor, bias: Tensor, mask: Tensor, indices: Tensor, weights: Tensor, faults: Tensor,
    E: Tensor, tau: Tensor, margin: Tensor, floor: Tensor, scaling: Tensor, KIND: tl.constexpr,
    TOP: tl.constexpr, BIAS: tl.constexpr, MASK: tl.constexpr, GROUPS: tl.constexpr,
    SIZE: tl.constexpr, KEPT: tl.constexpr, TOP2: tl.constexpr, TAU: tl.constexpr,
    RENORMALISE: tl.constexpr, SCALED: tl.constexpr, EP: tl.constexpr, GP: tl.constexpr,
) -> None:  # fmt: skip
    """One row's experts in ascending index, and their weights."""
    r, index, lane = tl.program_id(0), tl.arange(0, EP), tl.arange(0, 256)
    inside = index < E
    x = tl.load(scores + r * E + index, mask=inside, other=0.0)
    p, bad = x, tl.max(index * 0, 0)
    if KIND == 0:
        p, bad = row_softmax(x, inside, EP)
    elif KIND == 1:
        p = snapped(sigmoid(x))
    elif KIND == 3:
        p = tl.sqrt_rn(snapped(softplus(x)))
    key, values = x, p
    if BIAS:
        values = p + tl.load(bias + index, mask=inside, other=0.0)
        bad |= tl.max((inside & outside(values)).to(tl.int32), 0)
        values = snapped(values)
        key = values
    admitted = inside.to(tl.int32)
    if MASK:
        admitted *= (tl.load(mask + index, mask=inside, other=0.0) != 0.0).to(tl.int32)
    bits = ordered_bits(key)
    if GROUPS > 1:
        admitted = kept_groups(bits, values, index, admitted, GROUPS, SIZE, KEPT, TOP2, GP)
    order = order_of(bits, index, admitted > 0)
    taken = best(tl.where(inside, order, index.to(tl.int64) - 1152921504606846976), TOP, EP)
    w = tl.full((256,), 0.0, tl.float32)
    keys = tl.full((256,), 0.0, tl.float32)
    there = tl.full((256,), 0, tl.int32)
    for place in range(TOP):
        lowest = tl.min(tl.where(taken > 0, index, EP), 0)
        mine = index == lowest
        taken = tl.where(mine, 0, taken)
        tl.store(indices + r * TOP + place, lowest)
        weight = weight_of(x, p, bits, index, admitted, lowest, margin, KIND, EP)
        w = tl.where(lane == place, weight, w)
        keys = tl.where(lane == place, picked(key, mine), keys)
        there = tl.where(lane == place, tl.sum(tl.where(mine, admitted, 0), 0), there)
    if KIND == 2:
        w, worse = row_softmax(w, there > 0, 256)
        bad |= worse
    else:
        w = tl.where(there > 0, w, 0.0)
    if TAU:
        w = trimmed(w, keys, tau, TOP)
    if RENORMALISE:
        w = renormalised(w, floor, TOP)
    if SCALED:
        w = w * scaling
    used = lane < TOP
    bad |= tl.max((used & outside(w)).to(tl.int32), 0)
    tl.store(weights + r * TOP + lane, snapped(w), mask=used)
    if bad > 0:
        tl.store(faults + r, 1)


def routed(
    scores: torch.Tensor,
    router: Router,
    bias: torch.Tensor | None,
    mask: torch.Tensor | None,
    faults: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices int32 [rows, k] ascending, and weights [rows, k]."""
    rows, experts = scores.shape
    top, tau = router.top_k, router.tau
    indices = torch.empty((rows, top), dtype=torch.int32, device=scores.device)
    weights = torch.empty((rows, top), dtype=torch.float32, device=scores.device)
    launch(
        route, (rows,), scores, scores if bias is None else bias, scores if mask is None else mask,
        indices, weights, faults, experts, float(F32(tau or 0)),
        float(F32(router.margin or 0)), float(F32(router.denominator_floor)),
        float(F32(router.routed_scaling)),
        KIND=KINDS.index(router.kind), TOP=top, BIAS=bias is not None, MASK=mask is not None,
        GROUPS=router.groups, SIZE=experts // router.groups, KEPT=router.kept_groups,
        TOP2=router.group_score == "top2", TAU=tau is not None, RENORMALISE=router.renormalise,
        SCALED=router.routed_scaling != 1, EP=max(LANES, pow2(experts)), GP=pow2(router.groups),
    )  # fmt: skip
    return indices, weights
