"""Scalar functions of the contract in Triton, and the two kernels that map them over arrays.

Every float operation rounds once: launches pass `enable_fp_fusion=False`, division and square root
are `div_rn` and `sqrt_rn` (`/` and `tl.sqrt` are approximate on GPUs), and no float meets `tl.sum`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import triton
import triton.language as tl

from cortiq.numerics import scalar as contract


def exact(values: Iterable[Any]) -> tl.constexpr:
    """Float32 constants as a compile-time tuple; as Python floats they are the same numbers."""
    return tl.constexpr(tuple(map(float, values)))


Tensor: TypeAlias = tl.tensor
LOG2_E = tl.constexpr(float(contract.LOG2_E))
LN2_HIGH = tl.constexpr(float(contract.LN2_HIGH))
LN2_LOW = tl.constexpr(float(contract.LN2_LOW))
EXP, EXP_TERMS = exact(contract.EXP_POLYNOMIAL), tl.constexpr(len(contract.EXP_POLYNOMIAL))
EXP2, EXP2_TERMS = exact(contract.EXP2_POLYNOMIAL), tl.constexpr(len(contract.EXP2_POLYNOMIAL))
TANH, TANH_TERMS = exact(contract.TANH_POLYNOMIAL), tl.constexpr(len(contract.TANH_POLYNOMIAL))
LOG, LOG_TERMS = exact(contract.LOG_POLYNOMIAL), tl.constexpr(len(contract.LOG_POLYNOMIAL))
GELU_SCALE = tl.constexpr(float(contract.GELU_SCALE))
GELU_CUBIC = tl.constexpr(float(contract.GELU_CUBIC))
SQRT_HALF_BITS = tl.constexpr(int(contract.SQRT_HALF_BITS))
SMALLEST = tl.constexpr(2.0**-40)


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
def rint(a: Tensor) -> Tensor:
    """Half to even for |a| < 2²²: adding 1.5·2²³ leaves no bits below one."""
    return (a + 12582912.0) - 12582912.0


@triton.jit
def to_float(i: Tensor) -> Tensor:
    """f32(i)."""
    return i.to(tl.float32)


@triton.jit
def exp2_int(n: Tensor) -> Tensor:
    """2ⁿ, −126 ≤ n ≤ 127."""
    return ((n + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def horner(x: Tensor, terms: tl.constexpr, count: tl.constexpr) -> Tensor:
    """The polynomial of x, highest power first."""
    y = tl.zeros_like(x) + terms[0]
    for i in tl.static_range(1, count):
        y = y * x + terms[i]
    return y


@triton.jit
def exp(a: Tensor) -> Tensor:
    """e^a for a ≤ 0, clamped at −80."""
    x = tl.maximum(a, -80.0)
    k = rint(x * LOG2_E)
    r = x - k * LN2_HIGH
    r = r - k * LN2_LOW
    y = horner(r, EXP, EXP_TERMS)
    y = y * (r * r)
    y = (y + r) + 1.0
    return (y.to(tl.int32, bitcast=True) + (k.to(tl.int32) << 23)).to(tl.float32, bitcast=True)


@triton.jit
def exp2g(f: Tensor) -> Tensor:
    """2^f, |f| ≤ ½."""
    return horner(f, EXP2, EXP2_TERMS)


@triton.jit
def sigmoid(x: Tensor) -> Tensor:
    """σ(x)."""
    e = exp(-tl.abs(x))
    r = tl.div_rn(tl.zeros_like(x) + 1.0, 1.0 + e)
    return tl.where(x >= 0.0, r, e * r)


@triton.jit
def silu(x: Tensor) -> Tensor:
    """x·σ(x)."""
    return x * sigmoid(x)


@triton.jit
def gelu_tanh(x: Tensor) -> Tensor:
    """x·σ(2u)."""
    v = tl.minimum(tl.maximum(x, -16.0), 16.0)
    u = GELU_SCALE * (v + GELU_CUBIC * ((v * v) * v))
    return x * sigmoid(u + u)


@triton.jit
def tanh(x: Tensor) -> Tensor:
    """(1 − E)/(1 + E), E = exp(−2|x|); an odd polynomial below 0.625."""
    size = tl.abs(x)
    bounded = tl.minimum(size, 0.625)
    z = bounded * bounded
    small = (horner(z, TANH, TANH_TERMS) * z) * x + x
    e = exp(-2.0 * size)
    large = tl.div_rn(1.0 - e, 1.0 + e)
    return tl.where(size < 0.625, small, tl.where(x < 0.0, -large, large))


@triton.jit
def log(x: Tensor) -> Tensor:
    """ln x for a positive normal x."""
    bits = x.to(tl.int32, bitcast=True)
    shift = (bits - SQRT_HALF_BITS) >> 23
    f = (bits - (shift << 23)).to(tl.float32, bitcast=True) - 1.0
    k = shift.to(tl.float32)
    s = tl.div_rn(f, 2.0 + f)
    z = s * s
    rest = z * horner(z, LOG, LOG_TERMS)
    half_square = (0.5 * f) * f
    correction = half_square - (s * (half_square + rest) + k * LN2_LOW)
    return k * LN2_HIGH + (f - correction)


@triton.jit
def log1p(y: Tensor) -> Tensor:
    """ln(1 + y), −½ ≤ y ≤ 1."""
    u = 1.0 + y
    return log(u) + tl.div_rn(y - (u - 1.0), u)


@triton.jit
def softplus(x: Tensor) -> Tensor:
    """ln(1 + e^x)."""
    return tl.where(x > 0.0, x, 0.0) + log1p(exp(-tl.abs(x)))


@triton.jit
def snapped(y: Tensor) -> Tensor:
    """Canonical y, for values that cannot be faults."""
    return tl.where(tl.abs(y) >= SMALLEST, y, 0.0)


@triton.jit
def round_two_planes(high: Tensor, low: Tensor) -> Tensor:
    """RN(high·256 + low): both parts of the result's sum are exact, so it rounds once."""
    carry = (low + 128) >> 8
    high += carry
    low -= carry << 8
    a = (high + 16384) >> 15
    rest = ((high - (a << 15)) << 8) + low
    return a.to(tl.float32) * 8388608.0 + rest.to(tl.float32)


@triton.jit
def round_three_planes(high: Tensor, middle: Tensor, low: Tensor) -> Tensor:
    """RN(high·65536 + middle·256 + low)."""
    carry = (low + 128) >> 8
    low -= carry << 8
    middle += carry
    carry = (middle + 128) >> 8
    middle -= carry << 8
    high += carry
    a = (high + 64) >> 7
    rest = ((high - (a << 7)) << 16) + (middle << 8) + low
    return a.to(tl.float32) * 8388608.0 + rest.to(tl.float32)


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
