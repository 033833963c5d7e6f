"""Elementwise primitives: one kernel; a function of the value, an operand and two constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton.language as tl

from cortiq_triton import scalar
from cortiq_triton.language import INTERPRETED, Tensor, ceil_div, device, kernel, launch, pow2
from cortiq_triton.scalar import outside, snapped

BLOCK = 1 << 16 if INTERPRETED else 1024
NOTHING, SAME, LAST, HEAD, ONE, OUTER, EXPERT = range(7)
"""Which element of the operand meets element i: none; i; that of its place in the last axis; of its
head; the only one; one of each row of the last axis; that of its expert's row.
"""


@device
def add(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """x + y."""
    return x + y


@device
def multiply(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """x·y."""
    return x * y


@device
def scale(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """x·a."""
    return x * a


@device
def shift(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """x + a."""
    return x + a


@device
def bounded(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """x between a and b, by compares."""
    x = tl.where(x < a, a, x)
    return tl.where(x > b, b, x)


@device
def soft_cap(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """a·tanh(x·b), b = RN(1/a)."""
    return a * scalar.tanh(x * b)


@device
def admit(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """x as it is; the kernel snaps it."""
    return x


@device
def sigmoid(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """σ(x)."""
    return scalar.sigmoid(x)


@device
def silu(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """x·σ(x)."""
    return scalar.silu(x)


@device
def gelu_tanh(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """GELU by tanh."""
    return scalar.gelu_tanh(x)


@device
def gelu(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """GELU by erf."""
    return scalar.gelu(x)


@device
def tanh(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """tanh x."""
    return scalar.tanh(x)


@device
def softplus(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """ln(1 + e^x)."""
    return scalar.softplus(x)


@device
def relu(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """max(x, 0)."""
    return scalar.relu(x)


@device
def relu2(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Squared ReLU."""
    return scalar.relu2(x)


@device
def signed_root(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The root of the magnitude, with the sign."""
    return scalar.signed_root(x)


@device
def exponential(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """e^x."""
    return scalar.exponential(x)


ACTIVATIONS: Mapping[str, Callable[..., Any]] = {
    "silu": silu,
    "gelu_tanh": gelu_tanh,
    "gelu": gelu,
    "sigmoid": sigmoid,
    "tanh": tanh,
    "softplus": softplus,
    "relu": relu,
    "relu2": relu2,
    "signed_root": signed_root,
    "exp": exponential,
}
"""Activations by the names that `Op.options` has for them."""


@kernel
def wise(
    x: Tensor, y: Tensor, index: Tensor, out: Tensor, faults: Tensor, count: Tensor, row: Tensor,
    inner: Tensor, heads: Tensor, a: Tensor, b: Tensor, FUNCTION: tl.constexpr,
    MODE: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """out [count] = snap(FUNCTION(x, y, a, b)); `row` elements share a fault flag.

    `inner` is the width of the last axis, `heads` the number of such rows in one row of the batch.
    """
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < count
    value = tl.load(x + i, mask=inside, other=0.0)
    operand = value
    if MODE == 1:
        operand = tl.load(y + i, mask=inside, other=0.0)
    elif MODE == 2:
        operand = tl.load(y + i % inner, mask=inside, other=0.0)
    elif MODE == 3:
        operand = tl.load(y + i // inner % heads, mask=inside, other=0.0)
    elif MODE == 4:
        operand = tl.load(y + i * 0, mask=inside, other=0.0)
    elif MODE == 5:
        operand = tl.load(y + i // inner, mask=inside, other=0.0)
    elif MODE == 6:
        expert = tl.load(index + i // inner, mask=inside, other=0).to(tl.int64)
        operand = tl.load(y + expert * heads + i % inner % heads, mask=inside, other=0.0)
    result = FUNCTION(value, operand, a, b)
    tl.store(out + i, snapped(result), mask=inside)
    fault = inside & outside(result)
    tl.store(faults + i // row, 1, mask=fault)


def apply(
    function: Callable[..., Any],
    x: torch.Tensor,
    faults: torch.Tensor,
    *,
    y: torch.Tensor | None = None,
    mode: int = NOTHING,
    index: torch.Tensor | None = None,
    heads: int = 1,
    a: float = 0.0,
    b: float = 0.0,
) -> torch.Tensor:
    """Snap(function(x, y, a, b)) of x [rows, ...]; a row with a fault sets its flag.

    Parameters
    ----------
    heads : for HEAD the heads of a row; for EXPERT the width of y's rows (1 for one number each).
    """
    out = torch.empty_like(x)
    count, inner = x.numel(), x.shape[-1] if x.ndim > 1 else 1
    if not count:
        return out
    block = min(BLOCK, pow2(count)) if INTERPRETED else BLOCK
    launch(
        wise, (ceil_div(count, block),), x, x if y is None else y, x if index is None else index,
        out, faults, count, count // len(x), inner, heads, a, b,
        FUNCTION=function, MODE=mode, BLOCK=block,
    )  # fmt: skip
    return out
