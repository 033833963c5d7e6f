"""Scalar functions of the contract on MLX arrays; one kernel, hence one rounding, an operation.

Most are those of the MLX backend.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from cortiq.numerics import scalar as contract
from cortiq_mlx import arithmetic, exact
from cortiq_mlx.arithmetic import horner

SMALLEST = 2.0**-40


def add(a: mx.array, b: mx.array) -> mx.array:
    """RN(a + b)."""
    return a + b


def multiply(a: mx.array, b: mx.array) -> mx.array:
    """RN(a·b)."""
    return a * b


def divide(a: mx.array, b: mx.array) -> mx.array:
    """RN(a/b)."""
    return a / b


def sqrt(a: mx.array) -> mx.array:
    """RN(√a)."""
    return mx.sqrt(a)


def rint(a: mx.array) -> mx.array:
    """Half to even."""
    return mx.round(a) + 0.0


def to_float(i: mx.array) -> mx.array:
    """f32(i)."""
    return i.astype(mx.float32)


def exp2g(f: mx.array) -> mx.array:
    """2^f, |f| ≤ ½."""
    return horner(f, contract.EXP2_POLYNOMIAL)


def snapped(y: mx.array) -> mx.array:
    """Canonical y, for values that cannot be faults."""
    return mx.where(mx.abs(y) >= SMALLEST, y, 0.0)


FUNCTIONS: dict[str, Callable[..., mx.array]] = {
    **{f.__name__: f for f in (add, multiply, divide, sqrt, rint, to_float, exp2g)},
    **{name: getattr(arithmetic, name) for name in ("exp", "log", "sigmoid", "tanh", "softplus")},
    "silu": arithmetic.silu,
    "gelu_tanh": arithmetic.gelu_tanh,
    "round_two_planes": exact.portable_two_planes,
    "round_three_planes": exact.portable_three_planes,
    "round_int32": exact.portable_int32,
}
"""By their names in `stacks.base.ELEMENTWISE`."""
