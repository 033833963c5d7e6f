"""Scalar functions of the contract in Numba; one rounding an operation, all of it float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from cortiq.numerics import scalar as contract

F32 = np.float32
LOG2_E, LN2_HIGH, LN2_LOW = contract.LOG2_E, contract.LN2_HIGH, contract.LN2_LOW
EXP, EXP2 = contract.EXP_POLYNOMIAL, contract.EXP2_POLYNOMIAL
TANH, LOG = contract.TANH_POLYNOMIAL, contract.LOG_POLYNOMIAL
TANH_SMALL, SQRT_HALF_BITS = contract.TANH_SMALL, int(contract.SQRT_HALF_BITS)
GELU_SCALE, GELU_CUBIC, GELU_CLAMP = contract.GELU_SCALE, contract.GELU_CUBIC, contract.GELU_CLAMP
MAGIC, ZERO, ONE, SMALLEST = F32(1.5 * 2**23), F32(0), F32(1), F32(2**-40)


def _bitcast(source: Any, target: Any, llvm_type: Any) -> Any:
    @intrinsic
    def cast(typingctx: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], llvm_type)

        return target(source), codegen

    return cast


float_bits = _bitcast(types.float32, types.int32, ir.IntType(32))
bits_float = _bitcast(types.int32, types.float32, ir.FloatType())


@njit
def magnitude_bits(x: Any) -> Any:
    """Bits of |x| as int32."""
    return float_bits(x) & 0x7FFFFFFF


@njit
def add(a: Any, b: Any) -> Any:
    """RN(a + b)."""
    return a + b


@njit
def multiply(a: Any, b: Any) -> Any:
    """RN(a·b)."""
    return a * b


@njit
def divide(a: Any, b: Any) -> Any:
    """RN(a/b)."""
    return a / b


@njit
def sqrt(a: Any) -> Any:
    """RN(√a)."""
    return np.sqrt(a)


@njit
def rint(a: Any) -> Any:
    """Half to even for |a| < 2²²."""
    return (a + MAGIC) - MAGIC


@njit
def to_float(i: Any) -> Any:
    """f32(i)."""
    return F32(i)


@njit
def exp2_int(n: Any) -> Any:
    """2ⁿ, −126 ≤ n ≤ 127."""
    return bits_float(np.int32((n + 127) << 23))


@njit
def horner(x: Any, terms: Any) -> Any:
    """The polynomial of x, highest power first."""
    y = terms[0]
    for term in terms[1:]:
        y = y * x + term
    return y


@njit
def exp(a: Any) -> Any:
    """e^a for a ≤ 0, clamped at −80."""
    x = max(a, F32(-80))
    k = rint(x * LOG2_E)
    r = x - k * LN2_HIGH
    r = r - k * LN2_LOW
    y = horner(r, EXP)
    y = y * (r * r)
    y = (y + r) + ONE
    return bits_float(np.int32(float_bits(y) + (np.int32(k) << 23)))


@njit
def exp2g(f: Any) -> Any:
    """2^f, |f| ≤ ½."""
    return horner(f, EXP2)


@njit
def sigmoid(x: Any) -> Any:
    """σ(x)."""
    e = exp(-abs(x))
    r = ONE / (ONE + e)
    return r if x >= ZERO else e * r


@njit
def silu(x: Any) -> Any:
    """x·σ(x)."""
    return x * sigmoid(x)


@njit
def gelu_tanh(x: Any) -> Any:
    """x·σ(2u)."""
    v = min(max(x, -GELU_CLAMP), GELU_CLAMP)
    u = GELU_SCALE * (v + GELU_CUBIC * ((v * v) * v))
    return x * sigmoid(u + u)


@njit
def tanh(x: Any) -> Any:
    """(1 − E)/(1 + E), E = exp(−2|x|); an odd polynomial below 0.625."""
    if abs(x) < TANH_SMALL:
        z = x * x
        return (horner(z, TANH) * z) * x + x
    e = exp(F32(-2) * abs(x))
    large = (ONE - e) / (ONE + e)
    return -large if x < ZERO else large


@njit
def log(x: Any) -> Any:
    """ln x for a positive normal x."""
    bits = float_bits(x)
    shift = (bits - SQRT_HALF_BITS) >> 23
    f = bits_float(np.int32(bits - (shift << 23))) - ONE
    k = F32(shift)
    s = f / (F32(2) + f)
    z = s * s
    rest = z * horner(z, LOG)
    half_square = (F32(0.5) * f) * f
    correction = half_square - (s * (half_square + rest) + k * LN2_LOW)
    return k * LN2_HIGH + (f - correction)


@njit
def log1p(y: Any) -> Any:
    """ln(1 + y), −½ ≤ y ≤ 1."""
    u = ONE + y
    return log(u) + (y - (u - ONE)) / u


@njit
def softplus(x: Any) -> Any:
    """ln(1 + e^x)."""
    return (x if x > ZERO else ZERO) + log1p(exp(-abs(x)))


@njit
def snapped(y: Any) -> Any:
    """Canonical y, for values that cannot be faults."""
    return y if abs(y) >= SMALLEST else ZERO


@njit
def round_two_planes(high: Any, low: Any) -> Any:
    """RN(high·256 + low), from int32 only."""
    carry = (low + 128) >> 8
    high, low = high + carry, low - (carry << 8)
    a = (high + 16384) >> 15
    rest = ((high - (a << 15)) << 8) + low
    return F32(a) * F32(8388608) + F32(rest)


@njit
def round_three_planes(high: Any, middle: Any, low: Any) -> Any:
    """RN(high·65536 + middle·256 + low), from int32 only."""
    carry = (low + 128) >> 8
    low, middle = low - (carry << 8), middle + carry
    carry = (middle + 128) >> 8
    middle, high = middle - (carry << 8), high + carry
    a = (high + 64) >> 7
    rest = ((high - (a << 7)) << 16) + (middle << 8) + low
    return F32(a) * F32(8388608) + F32(rest)


@njit
def round_int32(i: Any) -> Any:
    """RN(i), from exact conversions."""
    return F32(i >> 12) * F32(4096) + F32(i & 4095)
