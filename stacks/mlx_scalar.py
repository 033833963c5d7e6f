"""Scalar functions of the contract on MLX arrays; one kernel, hence one rounding, an operation."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from cortiq.numerics import scalar as contract

SMALLEST = 2.0**-40
LOG2_E, LN2_HIGH, LN2_LOW, GELU_SCALE, GELU_CUBIC = map(
    float,
    (
        contract.LOG2_E,
        contract.LN2_HIGH,
        contract.LN2_LOW,
        contract.GELU_SCALE,
        contract.GELU_CUBIC,
    ),
)
SQRT_HALF_BITS = int(contract.SQRT_HALF_BITS)


def magnitude_bits(x: mx.array) -> mx.array:
    """Bits of |x| as int32."""
    return x.view(mx.int32) & 0x7FFFFFFF


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


def exp2_int(n: mx.array) -> mx.array:
    """2ⁿ, −126 ≤ n ≤ 127."""
    return ((n + 127) << 23).view(mx.float32)


def horner(x: mx.array, terms: tuple[np.float32, ...]) -> mx.array:
    """The polynomial of x, highest power first."""
    y = mx.full(x.shape, float(terms[0]))
    for term in terms[1:]:
        y = y * x + float(term)
    return y


def exp(a: mx.array) -> mx.array:
    """e^a for a ≤ 0, clamped at −80."""
    x = mx.maximum(a, -80.0)
    k = mx.round(x * LOG2_E)
    r = x - k * LN2_HIGH
    r = r - k * LN2_LOW
    y = horner(r, contract.EXP_POLYNOMIAL) * (r * r)
    y = (y + r) + 1.0
    return (y.view(mx.int32) + (k.astype(mx.int32) << 23)).view(mx.float32)


def exp2g(f: mx.array) -> mx.array:
    """2^f, |f| ≤ ½."""
    return horner(f, contract.EXP2_POLYNOMIAL)


def sigmoid(x: mx.array) -> mx.array:
    """σ(x)."""
    e = exp(-mx.abs(x))
    r = 1.0 / (1.0 + e)
    return mx.where(x >= 0.0, r, e * r)


def silu(x: mx.array) -> mx.array:
    """x·σ(x)."""
    return x * sigmoid(x)


def gelu_tanh(x: mx.array) -> mx.array:
    """x·σ(2u)."""
    v = mx.minimum(mx.maximum(x, -16.0), 16.0)
    u = (v + ((v * v) * v) * GELU_CUBIC) * GELU_SCALE
    return x * sigmoid(u + u)


def tanh(x: mx.array) -> mx.array:
    """(1 − E)/(1 + E), E = exp(−2|x|); an odd polynomial below 0.625."""
    size = mx.abs(x)
    bounded = mx.minimum(size, 0.625)
    z = bounded * bounded
    small = (horner(z, contract.TANH_POLYNOMIAL) * z) * x + x
    e = exp(size * -2.0)
    large = (1.0 - e) / (1.0 + e)
    return mx.where(size < 0.625, small, mx.where(x < 0.0, -large, large))


def log(x: mx.array) -> mx.array:
    """ln x for a positive normal x."""
    bits = x.view(mx.int32)
    shift = (bits - SQRT_HALF_BITS) >> 23
    f = (bits - (shift << 23)).view(mx.float32) - 1.0
    k = shift.astype(mx.float32)
    s = f / (f + 2.0)
    z = s * s
    rest = z * horner(z, contract.LOG_POLYNOMIAL)
    half_square = (f * 0.5) * f
    correction = half_square - (s * (half_square + rest) + k * LN2_LOW)
    return k * LN2_HIGH + (f - correction)


def log1p(y: mx.array) -> mx.array:
    """ln(1 + y), −½ ≤ y ≤ 1."""
    u = y + 1.0
    return log(u) + (y - (u - 1.0)) / u


def softplus(x: mx.array) -> mx.array:
    """ln(1 + e^x)."""
    return mx.where(x > 0.0, x, 0.0) + log1p(exp(-mx.abs(x)))


def snapped(y: mx.array) -> mx.array:
    """Canonical y, for values that cannot be faults."""
    return mx.where(mx.abs(y) >= SMALLEST, y, 0.0)


def round_two_planes(high: mx.array, low: mx.array) -> mx.array:
    """RN(high·256 + low), from int32 only."""
    carry = (low + 128) >> 8
    high, low = high + carry, low - (carry << 8)
    a = (high + 16384) >> 15
    rest = ((high - (a << 15)) << 8) + low
    return a.astype(mx.float32) * 8388608.0 + rest.astype(mx.float32)


def round_three_planes(high: mx.array, middle: mx.array, low: mx.array) -> mx.array:
    """RN(high·65536 + middle·256 + low), from int32 only."""
    carry = (low + 128) >> 8
    low, middle = low - (carry << 8), middle + carry
    carry = (middle + 128) >> 8
    middle, high = middle - (carry << 8), high + carry
    a = (high + 64) >> 7
    rest = ((high - (a << 7)) << 16) + (middle << 8) + low
    return a.astype(mx.float32) * 8388608.0 + rest.astype(mx.float32)


def round_int32(i: mx.array) -> mx.array:
    """RN(i), for devices whose own conversion is not trusted above 2²⁴."""
    return (i >> 12).astype(mx.float32) * 4096.0 + (i & 4095).astype(mx.float32)
