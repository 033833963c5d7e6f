"""Sums, convolutions and weights of experts that are taken in another order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cortiq.backend import Top
from cortiq.backend.answers import ON_HOST
from cortiq.backend.walk import Call
from cortiq.ir import Op, ops
from cortiq.numerics import matmul, norms, recurrent, route, sampling, scalar
from cortiq.numerics.contract import F32, LANES, Flags, Floats, snap
from cortiq.numerics.sums import canonical_sum
from cortiq_conformance.faults.folds import (
    Fold,
    ReplacedFunction,
    in_order,
    in_pairs,
    with_replaced,
)
from cortiq_conformance.faults.kernels import Kernel, Wrong
from cortiq_reference.kernels import KERNELS

Sum = Callable[..., Floats]


def _chunks(x: Floats, axis: int) -> list[Floats]:
    """Return the terms of a sum's lanes in order: [..., 256] each, zero past the end."""
    x = np.moveaxis(np.asarray(x, F32), axis, -1)
    missing = np.zeros((*x.shape[:-1], -x.shape[-1] % LANES), F32)
    whole = np.concatenate([x, missing], axis=-1)
    return np.split(whole, whole.shape[-1] // LANES, axis=-1)


def lanes(fold: Fold) -> Sum:
    """Return a `canonical_sum` whose lanes add their terms in another order."""
    return lambda x, axis=-1: canonical_sum(fold(np.add, _chunks(x, axis)))


def neighbours(x: Floats, axis: int = -1) -> Floats:
    """Return a `canonical_sum` whose lanes are added two neighbours at a time."""
    total = in_order(np.add, _chunks(x, axis))
    while total.shape[-1] > 1:
        total = total[..., ::2] + total[..., 1::2]
    return total[..., 0]


def _mean(total: Sum) -> Callable[[Floats], Floats]:
    return lambda x: total(x) * (F32(1) / F32(x.shape[-1]))


def one_after_the_other(x: Floats, axis: int = -1) -> Floats:
    """Sum floats from left to right."""
    return np.take(np.cumsum(x, axis=axis, dtype=F32), -1, axis=axis)


SUMMING: dict[type[Op], Any] = {
    ops.RMSNorm: norms,
    ops.LayerNorm: norms,
    ops.L2Norm: norms,
    ops.Softmax: route,
    ops.Route: route,
    ops.MatMul: matmul,
    ops.DeltaRule: recurrent,
    ops.DiagonalDeltaRule: recurrent,
    ops.StateSpace: recurrent,
}
"""The module whose canonical sum an operator takes."""


def summed(kind: type[Op], total: Sum) -> Kernel:
    """Return an operator's kernel with another canonical sum."""
    module = SUMMING[kind]
    parts = [ReplacedFunction(module, "canonical_sum", total)]
    if module is norms:
        parts.append(ReplacedFunction(norms, "canonical_mean", _mean(total)))
    return with_replaced(KERNELS[kind], *parts)


def all_summed(total: Sum) -> Wrong:
    """Return every operator with another canonical sum."""
    return {kind: summed(kind, total) for kind in SUMMING}


def top_summed(total: Sum) -> Callable[[Any, Any, int], Any]:
    """Return the answer to `Top` with another canonical sum."""
    return with_replaced(ON_HOST[Top], ReplacedFunction(sampling, "canonical_sum", total))


def conv(fold: Fold) -> Kernel:
    """Return a convolution whose taps and bias are added in another order."""

    def wrong(
        history: Floats,
        x: Floats,
        weight: Floats,
        bias: Floats | None = None,
        faults: Flags | None = None,
    ) -> Floats:
        padded = np.concatenate([history, x])
        terms = [weight[:, t] * padded[t : t + len(x)] for t in range(weight.shape[1])]
        terms += [] if bias is None else [np.broadcast_to(bias, x.shape)]
        return snap(fold(np.add, terms), faults)

    return with_replaced(KERNELS[ops.CausalConv], ReplacedFunction(recurrent, "causal_conv", wrong))


def combined(fold: Fold) -> Kernel:
    """Return the outputs of experts added in another order."""

    def wrong(call: Call, weights: Floats, outputs: Floats) -> Floats:
        terms = [weights[:, i, None] * outputs[:, i] for i in range(outputs.shape[1])]
        return snap(fold(np.add, terms), call.faults)

    return wrong


def renormalised(fold: Fold) -> Kernel:
    """Return the weights of experts divided by a sum that is taken in another order."""

    def wrong(weights: Floats, floor: float) -> Floats:
        total = (fold(np.add, list(np.moveaxis(weights, -1, 0))) + F32(floor))[..., None]
        empty = total == 0
        return np.where(empty, F32(0), weights / np.where(empty, F32(1), total))

    return with_replaced(KERNELS[ops.Route], ReplacedFunction(route, "renormalised", wrong))


def trimmed(fold: Fold) -> Kernel:
    """Return a prefix of the chosen experts whose weight is summed in another order."""

    def wrong(weights: Floats, keys: Floats, tau: float) -> Floats:
        columns = range(weights.shape[-1])
        terms = []
        for d in columns:
            ahead = keys[..., d, None] > keys
            ahead[..., d + 1 :] |= keys[..., d, None] == keys[..., d + 1 :]
            terms.append(np.where(ahead, weights[..., d, None], F32(0)))
        before = fold(np.add, terms)
        enough = (F32(tau) * fold(np.add, [weights[..., d] for d in columns]))[..., None]
        return np.where((enough == 0) | (before < enough), weights, F32(0))

    return with_replaced(KERNELS[ops.Route], ReplacedFunction(route, "trimmed", wrong))


def by_score(call: Call, scores: Floats) -> Any:
    """Return the softmax of the chosen experts summed in the order of their scores."""

    def wrong(
        x: Floats, allowed: Flags | bool | None = None, faults: Flags | None = None
    ) -> Floats:
        order = np.argsort(-x, axis=-1, kind="stable")
        there = np.broadcast_to(True if allowed is None else allowed, x.shape)
        sorted_, kept = (np.take_along_axis(a, order, axis=-1) for a in (x, there))
        out = np.zeros(x.shape, F32)
        np.put_along_axis(out, order, right(sorted_, kept, faults), axis=-1)
        return out

    right = route.softmax
    if call.op.router.kind != "softmax_topk":
        return KERNELS[ops.Route](call, scores)
    return with_replaced(KERNELS[ops.Route], ReplacedFunction(route, "softmax", wrong))(
        call, scores
    )


def polynomial(fold: Fold) -> Kernel:
    """Return activations whose polynomials add their terms in another order than Horner's."""

    def wrong(x: Floats, coefficients: tuple[np.float32, ...]) -> Floats:
        power, terms = np.ones_like(x), []
        for coefficient in coefficients[::-1]:
            terms.append(coefficient * power)
            power = power * x
        return fold(np.add, terms[::-1])

    return with_replaced(KERNELS[ops.Activation], ReplacedFunction(scalar, "horner", wrong))


WRONG_SUMS: dict[str, Wrong] = {
    "reordered canonical_sum": all_summed(one_after_the_other),
    "lanes added neighbour by neighbour": all_summed(neighbours),
    "powers added one by one": {ops.Activation: polynomial(in_order)},
    "powers added in pairs": {ops.Activation: polynomial(in_pairs)},
    "a softmax of the chosen by their scores": {ops.Route: by_score},
}
"""Wrong kernels by fault."""
