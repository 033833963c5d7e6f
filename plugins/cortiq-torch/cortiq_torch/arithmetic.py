"""Float32 arithmetic of the contract in torch: every operation rounded once, in a written order.

Eager torch computes what is written, one operation at a time, so nothing is contracted here. What
is avoided: its sums, means and norms (their order is their own), `addcmul`, `lerp` and other fused
operations, `rsqrt`, and its transcendental functions. Square roots are taken in float64, whose
result rounds to the right float32 whatever library computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, SupportsFloat

import torch
from torch import Tensor

from cortiq.numerics import contract, quantise, scalar

MAGNITUDE = int(contract.MAGNITUDE_BITS)
SMALLEST = int(contract.SMALLEST_BITS)
LARGEST = int(contract.LARGEST_BITS)


class Rows(NamedTuple):
    """Quantised rows x ≈ q·2^e: q float64 [..., K], which holds integers, and e int32 [...]."""

    q: Tensor
    e: Tensor


def magnitude_bits(x: Tensor) -> Tensor:
    """Bits of |x|, int32."""
    return x.view(torch.int32) & MAGNITUDE


def snap(y: Tensor, faults: Tensor) -> Tensor:
    """Make y [rows, ...] canonical; rows with a value outside the domain are flagged in place."""
    bits = magnitude_bits(y)
    outside = bits >= LARGEST
    faults |= outside.reshape(len(y), -1).any(dim=1)
    return torch.where((bits < SMALLEST) | outside, 0.0, y)


def exp2_int(n: Tensor) -> Tensor:
    """2ⁿ of int32 n, built from bits."""
    return ((n + 127) << 23).view(torch.float32)


def canonical_sum(x: Tensor) -> Tensor:
    """Sum over the last axis in the contract's order: 256 lanes, then halves."""
    padded = torch.nn.functional.pad(x, (0, -x.shape[-1] % contract.LANES))
    lanes = torch.zeros_like(padded[..., : contract.LANES])
    for part in padded.split(contract.LANES, dim=-1):
        lanes = lanes + part
    while lanes.shape[-1] > 1:
        low, high = lanes.chunk(2, dim=-1)
        lanes = low + high
    return lanes[..., 0]


def canonical_mean(x: Tensor) -> Tensor:
    """The sum times RN(1/n), which the host computes."""
    return canonical_sum(x) * float(contract.F32(1) / contract.F32(x.shape[-1]))


def inverse(x: Tensor) -> Tensor:
    """RN(1/x). (A division by a Python number becomes a product on CUDA.)"""
    return torch.ones_like(x) / x


def inverse_root(x: Tensor) -> Tensor:
    """RN(1/RN(√x))."""
    return inverse(x.double().sqrt().float())


def horner(x: Tensor, coefficients: Iterable[SupportsFloat]) -> Tensor:
    """A polynomial, highest power first."""
    first, *rest = (float(c) for c in coefficients)
    y = torch.full_like(x, first)
    for coefficient in rest:
        y = y * x
        y = y + coefficient
    return y


def exp(x: Tensor) -> Tensor:
    """e^x for x ≤ 0; see `cortiq.numerics.scalar.exp`."""
    x = x.clamp(min=float(scalar.EXP_LOWEST))
    k = (x * float(scalar.LOG2_E)).round()
    r = x - k * float(scalar.LN2_HIGH)
    r = r - k * float(scalar.LN2_LOW)
    y = horner(r, scalar.EXP_POLYNOMIAL) * (r * r)
    y = (y + r) + 1.0
    return (y.view(torch.int32) + (k.int() << 23)).view(torch.float32)


def exponential(x: Tensor) -> Tensor:
    """e^x of either sign."""
    e = exp(-x.abs())
    return torch.where(x > 0, inverse(e), e)


def sigmoid(x: Tensor) -> Tensor:
    """σ(x)."""
    e = exp(-x.abs())
    r = inverse(e + 1.0)
    return torch.where(x >= 0, r, e * r)


def silu(x: Tensor) -> Tensor:
    """x·σ(x)."""
    return x * sigmoid(x)


def gelu_tanh(x: Tensor) -> Tensor:
    """x·σ(2u); see `cortiq.numerics.scalar.gelu_tanh`."""
    bound = float(scalar.GELU_CLAMP)
    v = x.clamp(-bound, bound)
    cube = ((v * v) * v) * float(scalar.GELU_CUBIC)
    u = (v + cube) * float(scalar.GELU_SCALE)
    return x * sigmoid(u + u)


def gelu(x: Tensor) -> Tensor:
    """x·Φ(x); see `cortiq.numerics.scalar.gelu`."""
    a = x.abs().clamp(max=float(scalar.GELU_CLAMP))
    t = inverse(a * float(scalar.TAIL_SCALE) + 1.0)
    tail = exp((a * a) * -0.5) * (horner(t, scalar.TAIL_POLYNOMIAL) * t)
    return x * torch.where(x >= 0, 1.0 - tail, tail)


def tanh(x: Tensor) -> Tensor:
    """An odd polynomial below 0.625, else by exp."""
    magnitude = x.abs()
    near = magnitude.clamp(max=float(scalar.TANH_SMALL))
    z = near * near
    small = (horner(z, scalar.TANH_POLYNOMIAL) * z) * x + x
    e = exp(magnitude * -2.0)
    large = (1.0 - e) / (e + 1.0)
    return torch.where(magnitude < scalar.TANH_SMALL, small, torch.where(x < 0, -large, large))


def log(x: Tensor) -> Tensor:
    """ln x of a positive normal x; see `cortiq.numerics.scalar.log`."""
    bits = x.view(torch.int32)
    shift = (bits - int(scalar.SQRT_HALF_BITS)) >> 23
    f = (bits - (shift << 23)).view(torch.float32) - 1.0
    k = shift.float()
    s = f / (f + 2.0)
    z = s * s
    rest = z * horner(z, scalar.LOG_POLYNOMIAL)
    half_square = (f * 0.5) * f
    correction = half_square - (s * (half_square + rest) + k * float(scalar.LN2_LOW))
    return k * float(scalar.LN2_HIGH) + (f - correction)


def log1p(y: Tensor) -> Tensor:
    """ln(1 + y), with what the rounding of 1 + y lost."""
    u = y + 1.0
    return log(u) + (y - (u - 1.0)) / u


def softplus(x: Tensor) -> Tensor:
    """ln(1 + e^x)."""
    return relu(x) + log1p(exp(-x.abs()))


def relu(x: Tensor) -> Tensor:
    """x > 0 ? x : +0."""
    return torch.where(x > 0, x, 0.0)


def relu2(x: Tensor) -> Tensor:
    """Squared ReLU."""
    return relu(x) * relu(x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
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


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """C·tanh(x·RN(1/C))."""
    bound = contract.F32(cap)
    return tanh(x * float(contract.F32(1) / bound)) * float(bound)


def quantised(x: Tensor) -> Rows:
    """Rows (last axis) to 16-bit integers and an exponent; `cortiq.numerics.quantise_rows`."""
    m = magnitude_bits(x).amax(dim=-1)
    empty = m < SMALLEST
    e = torch.where(empty, quantise.ZERO_ROW_EXPONENT, ((m + 0x20000) >> 23) - 141).int()
    q = (x * exp2_int(-e)[..., None]).round()
    return Rows(torch.where(empty[..., None], 0.0, q).double(), e)
