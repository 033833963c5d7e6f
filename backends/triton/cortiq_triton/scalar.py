"""Scalar functions of the contract. Every float operation rounds once: division and square root
are `div_rn` and `sqrt_rn` (`/` and `tl.sqrt` are approximate on GPUs), and no float meets `tl.sum`
over more than two.
"""

from __future__ import annotations

import triton.language as tl

from cortiq.numerics import scalar as contract
from cortiq_triton.language import INTERPRETED, Tensor, constant, device, exact

LOG2_E = constant(float(contract.LOG2_E))
LN2_HIGH = constant(float(contract.LN2_HIGH))
LN2_LOW = constant(float(contract.LN2_LOW))
EXP, EXP_TERMS = exact(contract.EXP_POLYNOMIAL), constant(len(contract.EXP_POLYNOMIAL))
EXP2, EXP2_TERMS = exact(contract.EXP2_POLYNOMIAL), constant(len(contract.EXP2_POLYNOMIAL))
TANH, TANH_TERMS = exact(contract.TANH_POLYNOMIAL), constant(len(contract.TANH_POLYNOMIAL))
LOG, LOG_TERMS = exact(contract.LOG_POLYNOMIAL), constant(len(contract.LOG_POLYNOMIAL))
GELU_SCALE = constant(float(contract.GELU_SCALE))
GELU_CUBIC = constant(float(contract.GELU_CUBIC))
TAIL, TAIL_TERMS = exact(contract.TAIL_POLYNOMIAL), constant(len(contract.TAIL_POLYNOMIAL))
TAIL_SCALE = constant(float(contract.TAIL_SCALE))
ROOT_FLOOR = constant(float(contract.ROOT_FLOOR))
SQRT_HALF_BITS = constant(int(contract.SQRT_HALF_BITS))
SMALLEST = constant(2.0**-40)
SMALLEST_BITS = constant((127 - 40) << 23)
LARGEST_BITS = constant((127 + 50) << 23)


@device
def magnitude_bits(x: Tensor) -> Tensor:
    """Bits of |x| as int32."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@device
def outside(y: Tensor) -> Tensor:
    """Whether a value is a fault: infinite, NaN, or 2⁵⁰ and more."""
    return magnitude_bits(y) >= LARGEST_BITS


@device
def snapped(y: Tensor) -> Tensor:
    """Canonical y: +0 below 2⁻⁴⁰, and for what is a fault."""
    bits = magnitude_bits(y)
    return tl.where((bits >= SMALLEST_BITS) & (bits < LARGEST_BITS), y, 0.0)


@device
def inverse(x: Tensor) -> Tensor:
    """RN(1/x)."""
    return tl.div_rn(tl.full(x.shape, 1.0, tl.float32), x)


@device
def inverse_by_steps(x: Tensor) -> Tensor:
    """RN(1/x) for 1 ≤ x ≤ 2: an approximation and a Newton step, exact for all of them, which the
    self test of a device makes sure of. A division has a branch for each element besides.
    """
    return tl.inline_asm_elementwise(
        """{
        // exact
        .reg .f32 y, rest;
        rcp.approx.ftz.f32 y, $1;
        neg.f32 rest, $1;
        fma.rn.f32 rest, rest, y, 0f3F800000;
        fma.rn.f32 $0, y, rest, y;
        }""",
        "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1,
    )  # fmt: skip


inverse_of_normal = inverse if INTERPRETED else inverse_by_steps
"""RN(1/x) for 1 ≤ x ≤ 2."""


@device
def inverse_root(x: Tensor) -> Tensor:
    """RN(1/RN(√x))."""
    return inverse(tl.sqrt_rn(x))


@device
def rint(a: Tensor) -> Tensor:
    """Half to even for |a| < 2²²: adding 1.5·2²³ leaves no bits below one."""
    return (a + 12582912.0) - 12582912.0


@device
def rounded(a: Tensor) -> Tensor:
    """rint(a) as int32: what is added for that leaves it in the lowest bits."""
    return (a + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000


@device
def exp2_int(n: Tensor) -> Tensor:
    """2ⁿ, −126 ≤ n ≤ 127."""
    return ((n + 127) << 23).to(tl.float32, bitcast=True)


@device
def horner(x: Tensor, terms: tl.constexpr, count: tl.constexpr) -> Tensor:
    """The polynomial of x, highest power first."""
    y = tl.full(x.shape, 1.0, tl.float32) * terms[0]
    for i in tl.static_range(1, count):
        y = y * x + terms[i]
    return y


@device
def exp(a: Tensor) -> Tensor:
    """e^a for a ≤ 0, clamped at −80."""
    x = tl.maximum(a, -80.0)
    moved = x * LOG2_E + 12582912.0
    k = moved - 12582912.0  # rint, whose lowest nine bits `moved` ends in
    r = x - k * LN2_HIGH
    r = r - k * LN2_LOW
    y = horner(r, EXP, EXP_TERMS)
    y = y * (r * r)
    y = (y + r) + 1.0
    power = moved.to(tl.int32, bitcast=True) << 23
    return (y.to(tl.int32, bitcast=True) + power).to(tl.float32, bitcast=True)


@device
def exp2g(f: Tensor) -> Tensor:
    """2^f, |f| ≤ ½."""
    return horner(f, EXP2, EXP2_TERMS)


@device
def sigmoid(x: Tensor) -> Tensor:
    """σ(x)."""
    e = exp(-tl.abs(x))
    r = inverse_of_normal(1.0 + e)
    return tl.where(x >= 0.0, r, e * r)


@device
def silu(x: Tensor) -> Tensor:
    """x·σ(x)."""
    return x * sigmoid(x)


@device
def gelu_tanh(x: Tensor) -> Tensor:
    """x·σ(2u)."""
    v = tl.minimum(tl.maximum(x, -16.0), 16.0)
    u = GELU_SCALE * (v + GELU_CUBIC * ((v * v) * v))
    return x * sigmoid(u + u)


@device
def tanh(x: Tensor) -> Tensor:
    """(1 − E)/(1 + E), E = exp(−2|x|); an odd polynomial below 0.625."""
    size = tl.abs(x)
    bounded = tl.minimum(size, 0.625)
    z = bounded * bounded
    small = (horner(z, TANH, TANH_TERMS) * z) * x + x
    e = exp(-2.0 * size)
    large = tl.div_rn(1.0 - e, 1.0 + e)
    return tl.where(size < 0.625, small, tl.where(x < 0.0, -large, large))


@device
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


@device
def log1p(y: Tensor) -> Tensor:
    """ln(1 + y), −½ ≤ y ≤ 1."""
    u = 1.0 + y
    return log(u) + tl.div_rn(y - (u - 1.0), u)


@device
def exponential(x: Tensor) -> Tensor:
    """e^x of either sign."""
    e = exp(-tl.abs(x))
    return tl.where(x > 0.0, inverse(e), e)


@device
def gelu(x: Tensor) -> Tensor:
    """x·Φ(x)."""
    a = tl.minimum(tl.abs(x), 16.0)
    t = inverse(1.0 + TAIL_SCALE * a)
    tail = exp(-0.5 * (a * a)) * (horner(t, TAIL, TAIL_TERMS) * t)
    return x * tl.where(x >= 0.0, 1.0 - tail, tail)


@device
def relu(x: Tensor) -> Tensor:
    """x > 0 ? x : +0."""
    return tl.where(x > 0.0, x, 0.0)


@device
def relu2(x: Tensor) -> Tensor:
    """Squared ReLU."""
    return relu(x) * relu(x)


@device
def signed_root(x: Tensor) -> Tensor:
    """√max(|x|, 10⁻⁶) with the sign of x; +0 of 0."""
    r = tl.sqrt_rn(tl.maximum(tl.abs(x), ROOT_FLOOR))
    return tl.where(x > 0.0, r, tl.where(x < 0.0, -r, 0.0))


@device
def softplus(x: Tensor) -> Tensor:
    """ln(1 + e^x)."""
    return tl.where(x > 0.0, x, 0.0) + log1p(exp(-tl.abs(x)))


@device
def beside_magic_emulated(x: Tensor) -> Tensor:
    """Bits of 2²³ + the lower half of x."""
    return (x & 0xFFFF) | 0x4B000000


@device
def beside_magic_instruction(x: Tensor) -> Tensor:
    """Bits of 2²³ + the lower half of x, by one choice of bytes."""
    return tl.inline_asm_elementwise(
        "prmt.b32 $0, $1, 0x4B000000, 0x7610;", "=r,r", [x], dtype=tl.int32, is_pure=True, pack=1
    )


beside_magic = beside_magic_emulated if INTERPRETED else beside_magic_instruction


@device
def round_two_planes(high: Tensor, low: Tensor) -> Tensor:
    """RN(high·256 + low), |high| < 2³⁰, rounded once: both summands of the last sum are exact.

    The number is a·2¹⁶ + rest, 0 ≤ rest < 2¹⁶, of which bits of floats are made:
    (1.5·2²³ + a)·2¹⁶ and 2²³ + rest, whose constants the first subtraction takes away. The number's
    lowest bits are those of a product and sum that may overflow.
    """
    rest = beside_magic(high * 256 + low)
    a = ((high + (low >> 8)) >> 8) + 0x53400000
    return (a.to(tl.float32, bitcast=True) - 824642109440.0) + rest.to(tl.float32, bitcast=True)


@device
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


@device
def fold(lanes: Tensor, ROWS: tl.constexpr) -> Tensor:
    """Lane i += lane i+h for h = 128, 64, …, 1 of lanes [ROWS, 256]: [ROWS, 1].

    A sum over an axis of two is one addition, by threads that hold both or by a shuffle. One row's
    sum leaves as a scalar, whose layout no other tensor is made to follow.
    """
    for step in tl.static_range(7):
        lanes = tl.sum(tl.reshape(lanes, (ROWS, 2, 128 >> step)), 1)
    if ROWS == 1:
        return tl.full((1, 1), 0.0, tl.float32) + tl.sum(tl.reshape(lanes, (2,)), 0)
    return tl.sum(lanes, 1)[:, None]


@device
def split_planes(q: Tensor) -> tuple[Tensor, Tensor]:
    """An integer as two int8 planes, q = 256·high + low."""
    high = (q + 128) >> 8
    return high.to(tl.int8), (q - (high << 8)).to(tl.int8)
