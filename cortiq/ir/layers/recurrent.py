"""Building blocks of mixers with a recurrent state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from cortiq.domains import OneOf
from cortiq.ir import ops
from cortiq.ir.graph import Scope, Value

KEY_EPS = 1e-6
"""Added to the squares of queries and keys of delta nets before their root."""


def parts(scope: Scope, joint: Value, **widths: int) -> dict[str, Value]:
    """Return consecutive slices of the last axis, by name."""
    found, start = {}, 0
    for name, width in widths.items():
        found[name] = scope.add(ops.Slice(start, start + width), joint, name=name)
        start += width
    return found


def shaped(scope: Scope, x: Value, name: str, *shape: int) -> Value:
    """Reshape a value."""
    return scope.add(ops.Reshape(shape), x, name=name)


def convolved(scope: Scope, x: Value, kernel: int, activation: str, biased: bool = False) -> Value:
    """Return activation(conv(x)) with the roles `conv` and `conv_bias`, and the slot `ring`."""
    weights = {"weight": "conv"} | ({"bias": "conv_bias"} if biased else {})
    conv = ops.CausalConv(x.type.shape[0], kernel, biased)
    y = scope.add(conv, x, name="conv", weights=weights, slots={"ring": "ring"})
    return scope.add(ops.Activation(activation), y, name="conv.activation")


def unit_rows(scope: Scope, q: Value, k: Value, heads: int, dim: int) -> tuple[Value, Value]:
    """Return queries and keys of a delta net: unit rows a head, queries times dim^(−1/2)."""
    norm = ops.L2Norm(dim, KEY_EPS)
    q, k = (
        scope.add(norm, shaped(scope, x, f"{n}.heads", heads, dim), name=f"{n}.norm")
        for n, x in (("q", q), ("k", k))
    )
    return scope.add(ops.Scale(dim**-0.5), q, name="q.scaled"), k


DECAYS: Mapping[str, tuple[str, str]] = {
    "log": ("A_log", "negative_exp"),
    "plain": ("A", "negative"),
}
"""Forms of the decay A < 0 of a recurrent layer in files: log(−A), or A itself. The role of the
weight, and the form of the gain."""


DecayForm = Annotated[str, OneOf(DECAYS)]


def decay(scope: Scope, step: Value, count: int, form: str, per: str = "value") -> Value:
    """Return exp(A · step), with A a number for each of `count` heads or values."""
    role, gain = DECAYS[form]
    op = ops.Gain(count, per, gain)
    log = scope.add(op, step, name="log_decay", weights={"weight": role})
    return scope.add(ops.Activation("exp"), log, name="decay")


def gated_rows(scope: Scope, y: Value, z: Value, eps: float, function: str) -> Value:
    """Return the RMSNorm of every head, times function(z), as one row."""
    heads, dim = y.type.shape
    norm = ops.RMSNorm(dim, eps)
    y = scope.add(norm, y, name="rule.norm", weights={"weight": "norm"})
    y = shaped(scope, y, "rule.merged", heads * dim)
    z = scope.add(ops.Activation(function), z, name="z.activation")
    return scope.add(ops.Multiply(), y, z, name="rule.gated")
