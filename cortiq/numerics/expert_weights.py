"""Weights of the experts that a router has chosen: steps 3 to 5 of `route.route`."""

from __future__ import annotations

import numpy as np

from cortiq.numerics.contract import F32, Flags, Floats, Ints
from cortiq.numerics.scalar import exp
from cortiq.numerics.sums import canonical_sum


def mixed(scores: Floats, indices: Ints, admitted: Flags | None, margin: float) -> Floats:
    """Weigh the chosen experts as Phi-3.5-MoE's SparseMixer does when it does not train.

    Of a chosen expert c with the score m those j take part that are admitted, come no earlier in
    order (a lower score, or an equal one and no lower index), and have
    RN(m − s) ≤ RN(RN(margin)·max(|s|, m)). p = exp(RN(s − m)) of these, +0 of others, by select;
    w = RN(1/canonical_sum(p)), +0 where c is not admitted.

    Source: Liu et al., "GRIN: GRadient-INformed MoE" (arXiv 2409.12136), whose quotient
    (m − s)/max(|s|, m) is here a product.

    Parameters
    ----------
    scores : float32 [rows, experts]; indices : int32 [rows, top_k].
    admitted : bool [rows, experts]; None for all.
    """
    place, allowed = np.arange(scores.shape[-1]), True if admitted is None else admitted
    weights = np.zeros(indices.shape, F32)
    for column in range(indices.shape[-1]):
        index = indices[..., column, None]
        m = np.take_along_axis(scores, index, axis=-1)
        behind = (scores < m) | ((scores == m) & (place >= index))
        near = m - scores <= F32(margin) * np.maximum(np.abs(scores), m)
        part = behind & near & allowed
        p = np.where(part, exp(np.where(part, scores - m, F32(0))), F32(0))
        total = canonical_sum(p)
        weights[..., column] = np.divide(F32(1), np.where(total > 0, total, F32(1)))
    return weights


def trimmed(weights: Floats, keys: Floats, tau: float) -> Floats:
    """Keep the weights of the shortest prefix that holds τ of them; the others are +0, by select.

    T = RN(τ·Σw), the sum from +0 in ascending index order. Expert c stays if T is 0, or the sum of
    the weights of the experts before it (a larger key, or an equal one and a lower index), from +0
    in ascending index order too, is below T. Sums of more terms are never smaller, so that what
    stays is a prefix.

    Parameters
    ----------
    weights, keys : float32 [rows, k] of the chosen experts, in ascending index order.
    """
    columns = range(weights.shape[-1])
    total, before = np.zeros(weights.shape[:-1], F32), np.zeros(weights.shape, F32)
    for d in columns:
        total = total + weights[..., d]
        ahead = keys[..., d, None] > keys
        ahead[..., d + 1 :] |= keys[..., d, None] == keys[..., d + 1 :]
        before = np.where(ahead, before + weights[..., d, None], before)
    enough = (F32(tau) * total)[..., None]
    return np.where((enough == 0) | (before < enough), weights, F32(0))


def renormalised(weights: Floats, floor: float) -> Floats:
    """Compute step 5 of `route`."""
    total = np.zeros(weights.shape[:-1], F32)
    for column in range(weights.shape[-1]):
        total = total + weights[..., column]
    total = (total + F32(floor))[..., None]
    empty = total == 0
    return np.where(empty, F32(0), weights / np.where(empty, F32(1), total))
