"""Scalar functions of the contract in Triton, and the kernels that map them over arrays.

Most are those of the Triton backend, whose `scalar.py` says what keeps their bits.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from cortiq_triton import scalar
from cortiq_triton.language import Tensor


def function(name: str) -> Any:
    """A scalar function by its name in `stacks.base.ELEMENTWISE`."""
    return globals().get(name) or getattr(scalar, name)


@triton.jit
def add(a: Tensor, b: Tensor) -> Tensor:
    """RN(a + b)."""
    return a + b


@triton.jit
def multiply(a: Tensor, b: Tensor) -> Tensor:
    """RN(a·b)."""
    return a * b


@triton.jit
def divide(a: Tensor, b: Tensor) -> Tensor:
    """RN(a/b)."""
    return tl.div_rn(a, b)


@triton.jit
def sqrt(a: Tensor) -> Tensor:
    """RN(√a)."""
    return tl.sqrt_rn(a)


@triton.jit
def to_float(i: Tensor) -> Tensor:
    """f32(i)."""
    return i.to(tl.float32)


@triton.jit
def round_int32(i: Tensor) -> Tensor:
    """RN(i), for devices whose own conversion is not trusted above 2²⁴."""
    return (i >> 12).to(tl.float32) * 4096.0 + (i & 4095).to(tl.float32)


@triton.jit
def map1(a: Tensor, out: Tensor, n: Tensor, FUNCTION: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """out [n] = FUNCTION(a)."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, FUNCTION(tl.load(a + i, mask=i < n, other=1)), mask=i < n)


@triton.jit
def map2(
    a: Tensor, b: Tensor, out: Tensor, n: Tensor, FUNCTION: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """out [n] = FUNCTION(a, b)."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(a + i, mask=i < n, other=1)
    y = tl.load(b + i, mask=i < n, other=1)
    tl.store(out + i, FUNCTION(x, y), mask=i < n)


@triton.jit
def map3(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    out: Tensor,
    n: Tensor,
    FUNCTION: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """out [n] = FUNCTION(a, b, c)."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(a + i, mask=i < n, other=1)
    y = tl.load(b + i, mask=i < n, other=1)
    z = tl.load(c + i, mask=i < n, other=1)
    tl.store(out + i, FUNCTION(x, y, z), mask=i < n)
