"""Float32 arithmetic of the contract in MLX: every operation rounded once, in a written order.

MLX runs one kernel an operation as long as `mx.compile` stays away, so nothing is contracted. What
is avoided: its sums, means and norms (their order is their own), `rsqrt`, `reciprocal`, fused
operations, and its transcendental functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple, SupportsFloat

from cortiq.numerics import contract, quantise, scalar
from cortiq_mlx import bodies, custom
from cortiq_mlx.library import mx

MAGNITUDE = int(contract.MAGNITUDE_BITS)
SMALLEST = int(contract.SMALLEST_BITS)
LARGEST = int(contract.LARGEST_BITS)
LARGEST_Q = quantise.LARGEST_CODE
SMALL = 1 << 12
"""Values of an array beside which constants are held in its own shape."""


class Rows(NamedTuple):
    """Quantised rows x ≈ q·2^e: q int16 [..., K], e int32 [...]."""

    q: mx.array
    e: mx.array

    @property
    def shape(self) -> tuple[int, ...]:
        """That of q."""
        return tuple(self.q.shape)


class Faults:
    """The largest magnitude, as bits, that a value of each row had where it was snapped.

    Attributes
    ----------
    rows : how many. peaks : int32 [rows, 1], one of each snap.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.peaks: list[mx.array] = []

    def see(self, bits: mx.array) -> None:
        """Note bits of magnitudes [rows, ...]."""
        if bits.ndim > 2:
            bits = bits.reshape(self.rows, -1)
        self.peaks.append(bits.max(axis=-1, keepdims=True) if bits.ndim > 1 else bits[:, None])

    def seen(self) -> mx.array:
        """The largest of each row, int32 [rows]; something was snapped."""
        return mx.concatenate(self.peaks, axis=1).max(axis=1)

    def see_some(self, peak: mx.array, concerned: mx.array) -> None:
        """Note those of some rows: bool [rows]."""
        self.see(mx.where(concerned, peak, 0))


@lru_cache(maxsize=1 << 11)
def _held(value: float, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    constant = mx.full(shape, value, dtype)
    mx.eval(constant)
    return constant


def fixed(value: float, x: mx.array) -> Any:
    """A constant beside x: held in x's shape if that is small, so that no node has to spread it.

    A decode step is thousands of small operations, and what they cost is mostly their nodes.
    """
    return _held(value, tuple(x.shape), x.dtype) if x.size <= SMALL else value


def magnitude_bits(x: mx.array) -> mx.array:
    """Bits of |x| as int32."""
    return mx.abs(x).view(mx.int32)


def snap(y: mx.array, faults: Faults) -> mx.array:
    """Make y [rows, ...] canonical; `faults` sees the magnitudes of each row."""
    bits = magnitude_bits(y)
    faults.see(bits)
    # One unsigned comparison: below 2⁻⁴⁰ the difference wraps to a large word.
    above = (bits - fixed(SMALLEST, bits)).view(mx.uint32)
    return mx.where(above < fixed(LARGEST - SMALLEST, above), y, fixed(0.0, y))


def exp2_int(n: mx.array) -> mx.array:
    """2ⁿ of int32 n, −126 ≤ n ≤ 127, built from bits."""
    return ((n + fixed(127, n)) << fixed(23, n)).view(mx.float32)


def canonical_sum(x: mx.array) -> mx.array:
    """Sum over the last axis, which stays, in the contract's order: 256 lanes, then halves."""
    missing = -x.shape[-1] % contract.LANES
    if missing:
        x = mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])
    lanes, *more = mx.split(x, x.shape[-1] // contract.LANES, axis=-1)
    for part in more:
        lanes = lanes + part
    while lanes.shape[-1] > 1:
        low, high = mx.split(lanes, 2, axis=-1)
        lanes = low + high
    return lanes


def canonical_mean(x: mx.array) -> mx.array:
    """The sum times RN(1/n), which the host computes."""
    total = canonical_sum(x)
    return total * fixed(float(contract.F32(1) / contract.F32(x.shape[-1])), total)


def inverse(x: mx.array) -> mx.array:
    """RN(1/x)."""
    return fixed(1.0, x) / x


def inverse_root(x: mx.array) -> mx.array:
    """RN(1/RN(√x))."""
    return inverse(mx.sqrt(x))


def horner(x: mx.array, coefficients: Iterable[SupportsFloat]) -> mx.array:
    """A polynomial, highest power first."""
    first, second, *rest = (float(c) for c in coefficients)
    y = x * fixed(first, x) + fixed(second, x)
    for coefficient in rest:
        y = y * x + fixed(coefficient, x)
    return y


def exp(x: mx.array) -> mx.array:
    """e^x for x ≤ 0; see `cortiq.numerics.scalar.exp`."""
    x = mx.maximum(x, fixed(float(scalar.EXP_LOWEST), x))
    k = mx.round(x * fixed(float(scalar.LOG2_E), x))
    r = x - k * fixed(float(scalar.LN2_HIGH), x)
    r = r - k * fixed(float(scalar.LN2_LOW), x)
    y = horner(r, scalar.EXP_POLYNOMIAL) * (r * r)
    y = (y + r) + fixed(1.0, x)
    power = k.astype(mx.int32)
    return (y.view(mx.int32) + (power << fixed(23, power))).view(mx.float32)


def exponential(x: mx.array) -> mx.array:
    """e^x of either sign."""
    e = exp(-mx.abs(x))
    return mx.where(x > 0.0, inverse(e), e)


def sigmoid(x: mx.array) -> mx.array:
    """σ(x)."""
    e = exp(-mx.abs(x))
    r = inverse(e + fixed(1.0, e))
    return mx.where(x >= fixed(0.0, x), r, e * r)


def silu(x: mx.array) -> mx.array:
    """x·σ(x)."""
    return x * sigmoid(x)


def gelu_tanh(x: mx.array) -> mx.array:
    """x·σ(2u); see `cortiq.numerics.scalar.gelu_tanh`."""
    bound = float(scalar.GELU_CLAMP)
    v = mx.minimum(mx.maximum(x, -bound), bound)
    cube = ((v * v) * v) * float(scalar.GELU_CUBIC)
    u = (v + cube) * float(scalar.GELU_SCALE)
    return x * sigmoid(u + u)


def gelu(x: mx.array) -> mx.array:
    """x·Φ(x); see `cortiq.numerics.scalar.gelu`."""
    a = mx.minimum(mx.abs(x), float(scalar.GELU_CLAMP))
    t = inverse(a * float(scalar.TAIL_SCALE) + 1.0)
    tail = exp((a * a) * -0.5) * (horner(t, scalar.TAIL_POLYNOMIAL) * t)
    return x * mx.where(x >= 0.0, 1.0 - tail, tail)


def tanh(x: mx.array) -> mx.array:
    """An odd polynomial below 0.625, else by exp."""
    magnitude = mx.abs(x)
    near = mx.minimum(magnitude, float(scalar.TANH_SMALL))
    z = near * near
    small = (horner(z, scalar.TANH_POLYNOMIAL) * z) * x + x
    e = exp(magnitude * -2.0)
    large = (1.0 - e) / (e + 1.0)
    big = mx.where(x < 0.0, -large, large)
    return mx.where(magnitude < float(scalar.TANH_SMALL), small, big)


def log(x: mx.array) -> mx.array:
    """ln x of a positive normal x; see `cortiq.numerics.scalar.log`."""
    bits = x.view(mx.int32)
    shift = (bits - int(scalar.SQRT_HALF_BITS)) >> 23
    f = (bits - (shift << 23)).view(mx.float32) - 1.0
    k = shift.astype(mx.float32)
    s = f / (f + 2.0)
    z = s * s
    rest = z * horner(z, scalar.LOG_POLYNOMIAL)
    half_square = (f * 0.5) * f
    correction = half_square - (s * (half_square + rest) + k * float(scalar.LN2_LOW))
    return k * float(scalar.LN2_HIGH) + (f - correction)


def log1p(y: mx.array) -> mx.array:
    """ln(1 + y), with what the rounding of 1 + y lost."""
    u = y + 1.0
    return log(u) + (y - (u - 1.0)) / u


def softplus(x: mx.array) -> mx.array:
    """ln(1 + e^x)."""
    return relu(x) + log1p(exp(-mx.abs(x)))


def relu(x: mx.array) -> mx.array:
    """x > 0 ? x : +0."""
    return mx.where(x > 0.0, x, 0.0)


def relu2(x: mx.array) -> mx.array:
    """Squared ReLU."""
    return relu(x) * relu(x)


ACTIVATIONS: dict[str, Callable[[mx.array], mx.array]] = {
    "silu": silu,
    "gelu_tanh": gelu_tanh,
    "sigmoid": sigmoid,
    "tanh": tanh,
    "softplus": softplus,
    "relu": relu,
    "relu2": relu2,
    "gelu": gelu,
    "exp": exponential,
}


def soft_cap(x: mx.array, cap: float) -> mx.array:
    """C·tanh(x·RN(1/C))."""
    bound = contract.F32(cap)
    return tanh(x * float(contract.F32(1) / bound)) * float(bound)


def quantised(x: mx.array) -> Rows:
    """Rows (last axis) to 16-bit integers and an exponent; `cortiq.numerics.quantise_rows`."""
    if custom.active(bodies.QUANTISE):
        return Rows(*custom.quantise(x))
    m = magnitude_bits(x).max(axis=-1, keepdims=True)
    # A row below 2⁻⁴⁰ is all zeros, and gets the exponent of the smallest row that is not.
    top = (mx.maximum(m, fixed(SMALLEST, m)) + fixed(0x20000, m)) >> fixed(23, m)
    scale = ((fixed(141 + 127, top) - top) << fixed(23, m)).view(mx.float32)
    return Rows(mx.round(x * scale).astype(mx.int16), (top - fixed(141, top)).squeeze(-1))


def descending(x: mx.array) -> mx.array:
    """Integers in [0, 2³²), int64, that order as −x does; x canonical or in ±2⁶⁰, without a −0."""
    bits = x.view(mx.int32)
    ascending = bits ^ ((bits >> 31) & MAGNITUDE)
    return MAGNITUDE - ascending.astype(mx.int64)
