"""Float32 arithmetic of the contract over any array library: one rounding an operation, in order.

A library brings operations that round once; sums, transcendental functions and activations follow
from them here, as `cortiq.numerics` writes them out. Nothing may be contracted: a library that
compiles expressions has to be kept from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, SupportsFloat

from cortiq.backend.arrays import ArrayLibrary
from cortiq.numerics import contract, scalar
from cortiq.numerics.contract import F32

MAGNITUDE = int(contract.MAGNITUDE_BITS)
SMALLEST = int(contract.SMALLEST_BITS)
LARGEST = int(contract.LARGEST_BITS)


class Arithmetic(ArrayLibrary):
    """An array library with the operations that the shared kernels are made of.

    By default they are the module's functions with NumPy's names; a library overrides what is
    called otherwise, or rounds otherwise, there.

    Operators (+, *, /, comparisons, &, |, ^, >>, <<) are the arrays' own; those of float32 round
    once, to nearest even. They may flush subnormal numbers to zero: no result depends on it.
    `cortiq.backend.self_test.check_arithmetic` looks whether a device's do.

    A number that an operator meets takes the array's type (`constant`, where it needs to be made).
    """

    def bits(self, x: Any) -> Any:
        """Return the bits of float32 x as int32."""
        return x.view(self.dtype("i32"))

    def from_bits(self, n: Any) -> Any:
        """Return int32 n as the bits of float32."""
        return n.view(self.dtype("f32"))

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        """Return a where the condition holds, else b; one of them may be a number."""
        return self.module.where(condition, a, b)

    def magnitude(self, x: Any) -> Any:
        """Return |x|."""
        return self.module.abs(x)

    def clamp(self, x: Any, low: float | None, high: float | None) -> Any:
        """Return x, no lower and no higher than these."""
        x = x if low is None else self.module.maximum(x, self.constant(low, x))
        return x if high is None else self.module.minimum(x, self.constant(high, x))

    def rounded(self, x: Any) -> Any:
        """Return x rounded to integers, half to even."""
        return self.module.round(x)

    def root(self, x: Any) -> Any:
        """Return RN(√x)."""
        return self.module.sqrt(x)

    def quotient(self, a: Any, b: Any) -> Any:
        """Return RN(a/b) of arrays, also with b one number a row.

        A compiler may multiply by 1/b instead: XLA does, where b is broadcast.
        """
        return a / b

    def inverse(self, x: Any) -> Any:
        """Return RN(1/x)."""
        return self.constant(1.0, x) / x

    def highest(self, x: Any) -> Any:
        """Return the largest value of the last axis, which stays."""
        return self.module.max(x, axis=-1, keepdims=True)

    def padded(self, x: Any, before: int, after: int, axis: int = -1, fill: float = 0) -> Any:
        """Return x with so many entries of one value before and behind an axis."""
        widths = [(0, 0)] * x.ndim
        widths[axis] = before, after
        return self.module.pad(x, widths, constant_values=fill)

    def split(self, x: Any, widths: Sequence[int], axis: int = -1) -> Sequence[Any]:
        """Return parts of these widths along an axis."""
        return self.module.split(x, [*accumulate(widths)][:-1], axis=axis)

    def stack(self, arrays: Sequence[Any], axis: int = 0) -> Any:
        """Return the arrays beside one another along a new axis."""
        return self.module.stack([*arrays], axis)

    def repeat(self, x: Any, count: int, axis: int = 0) -> Any:
        """Return x with each entry of an axis so many times."""
        return self.module.repeat(x, count, axis=axis)

    def counted(self, count: int) -> Any:
        """Return 0, 1, …, int32."""
        return self.module.arange(count, dtype=self.dtype("i32"))

    def wide(self, n: Any) -> Any:
        """Return integers as int64."""
        return self.cast(n, "i64")

    def ascending(self, n: Any) -> Any:
        """Return int64 n with the last axis in ascending order."""
        return self.module.sort(n, axis=-1)

    def take_along(self, x: Any, index: Any) -> Any:
        """Return the values of the last axis at these places, int32, of the other axes' shape."""
        return self.module.take_along_axis(x, index, axis=-1)

    def spread(self, x: Any, shape: Sequence[int]) -> Any:
        """Return x in a larger shape."""
        return self.module.broadcast_to(x, tuple(shape))

    def magnitude_bits(self, x: Any) -> Any:
        """Return the bits of |x|, int32."""
        return self.bits(x) & MAGNITUDE

    def snap(self, x: Any, faults: Any) -> Any:
        """Make x [rows, ...] canonical; flag rows with a value outside the domain in `faults`."""
        bits = self.magnitude_bits(x)
        outside = bits >= LARGEST
        faults |= outside.reshape(len(x), -1).any(1)
        return self.where((bits < SMALLEST) | outside, self.constant(0.0, x), x)

    def quantised(self, x: Any) -> Any:
        """Return rows (last axis) as integers and exponents; `cortiq.numerics.quantise`."""
        # A row below 2⁻⁴⁰ is all zeros, and gets the exponent of the smallest row that is not.
        m = self.clamp(self.highest(self.magnitude_bits(x)), SMALLEST, None)
        top = (m + self.constant(0x20000, m)) >> self.constant(23, m)
        scale = self.from_bits((self.constant(141 + 127, top) - top) << self.constant(23, m))
        q = self.cast(self.rounded(x * scale), self.row_type)
        return self.rows(q, (top - self.constant(141, top))[..., 0])

    def constant(self, value: float, x: Any) -> Any:
        """Return a number that an array is combined with; x says of which shape and type."""
        return value

    def exp2_int(self, n: Any) -> Any:
        """Return 2ⁿ of int32 n, −126 ≤ n ≤ 127, built from bits."""
        return self.from_bits((n + self.constant(127, n)) << self.constant(23, n))

    def canonical_sum(self, x: Any) -> Any:
        """Add up the last axis, which stays, in the contract's order: 256 lanes, then halves."""
        missing = -x.shape[-1] % contract.LANES
        x = self.padded(x, 0, missing) if missing else x
        lanes, *more = self.split(x, [contract.LANES] * (x.shape[-1] // contract.LANES))
        for part in more:
            lanes = lanes + part
        while lanes.shape[-1] > 1:
            low, high = self.split(lanes, [lanes.shape[-1] // 2] * 2)
            lanes = low + high
        return lanes

    def canonical_mean(self, x: Any) -> Any:
        """Return the sum times RN(1/n), which the host computes."""
        total = self.canonical_sum(x)
        return total * self.constant(float(F32(1) / F32(x.shape[-1])), total)

    def inverse_root(self, x: Any) -> Any:
        """Return RN(1/RN(√x))."""
        return self.inverse(self.root(x))

    def horner(self, x: Any, coefficients: Iterable[SupportsFloat]) -> Any:
        """Return a polynomial, highest power first."""
        first, second, *rest = (float(c) for c in coefficients)
        y = x * self.constant(first, x) + self.constant(second, x)
        for coefficient in rest:
            y = y * x + self.constant(coefficient, x)
        return y

    def exp(self, x: Any) -> Any:
        """Return e^x for x ≤ 0; see `cortiq.numerics.scalar.exp`."""
        x = self.clamp(x, float(scalar.EXP_LOWEST), None)
        k = self.rounded(x * self.constant(float(scalar.LOG2_E), x))
        r = x - k * self.constant(float(scalar.LN2_HIGH), x)
        r = r - k * self.constant(float(scalar.LN2_LOW), x)
        y = self.horner(r, scalar.EXP_POLYNOMIAL) * (r * r)
        y = (y + r) + self.constant(1.0, x)
        power = self.cast(k, "i32")
        return self.from_bits(self.bits(y) + (power << self.constant(23, power)))

    def exponential(self, x: Any) -> Any:
        """Return e^x of either sign."""
        e = self.exp(-self.magnitude(x))
        return self.where(x > 0.0, self.inverse(e), e)

    def sigmoid(self, x: Any) -> Any:
        """Return σ(x)."""
        e = self.exp(-self.magnitude(x))
        r = self.inverse(e + self.constant(1.0, e))
        return self.where(x >= self.constant(0.0, x), r, e * r)

    def silu(self, x: Any) -> Any:
        """Return x·σ(x)."""
        return x * self.sigmoid(x)

    def gelu_tanh(self, x: Any) -> Any:
        """Return x·σ(2u); see `cortiq.numerics.scalar.gelu_tanh`."""
        bound = float(scalar.GELU_CLAMP)
        v = self.clamp(x, -bound, bound)
        cube = ((v * v) * v) * float(scalar.GELU_CUBIC)
        u = (v + cube) * float(scalar.GELU_SCALE)
        return x * self.sigmoid(u + u)

    def gelu(self, x: Any) -> Any:
        """Return x·Φ(x); see `cortiq.numerics.scalar.gelu`."""
        a = self.clamp(self.magnitude(x), None, float(scalar.GELU_CLAMP))
        t = self.inverse(a * float(scalar.TAIL_SCALE) + 1.0)
        tail = self.exp((a * a) * -0.5) * (self.horner(t, scalar.TAIL_POLYNOMIAL) * t)
        return x * self.where(x >= 0.0, 1.0 - tail, tail)

    def tanh(self, x: Any) -> Any:
        """Return tanh x: an odd polynomial below 0.625, else by exp."""
        magnitude = self.magnitude(x)
        near = self.clamp(magnitude, None, float(scalar.TANH_SMALL))
        z = near * near
        small = (self.horner(z, scalar.TANH_POLYNOMIAL) * z) * x + x
        e = self.exp(magnitude * -2.0)
        large = self.quotient(1.0 - e, e + 1.0)
        big = self.where(x < 0.0, -large, large)
        return self.where(magnitude < float(scalar.TANH_SMALL), small, big)

    def log(self, x: Any) -> Any:
        """Return ln x of a positive normal x; see `cortiq.numerics.scalar.log`."""
        bits = self.bits(x)
        shift = (bits - int(scalar.SQRT_HALF_BITS)) >> 23
        f = self.from_bits(bits - (shift << 23)) - 1.0
        k = self.cast(shift, "f32")
        s = self.quotient(f, f + 2.0)
        z = s * s
        rest = z * self.horner(z, scalar.LOG_POLYNOMIAL)
        half_square = (f * 0.5) * f
        correction = half_square - (s * (half_square + rest) + k * float(scalar.LN2_LOW))
        return k * float(scalar.LN2_HIGH) + (f - correction)

    def log1p(self, y: Any) -> Any:
        """Return ln(1 + y), with what the rounding of 1 + y lost."""
        u = y + 1.0
        return self.log(u) + self.quotient(y - (u - 1.0), u)

    def softplus(self, x: Any) -> Any:
        """Return ln(1 + e^x)."""
        return self.relu(x) + self.log1p(self.exp(-self.magnitude(x)))

    def relu(self, x: Any) -> Any:
        """Return x > 0 ? x : +0."""
        return self.where(x > 0.0, x, 0.0)

    def relu2(self, x: Any) -> Any:
        """Return the squared ReLU."""
        return self.relu(x) * self.relu(x)

    def signed_root(self, x: Any) -> Any:
        """Return the root of the magnitude, above a floor, with the sign of x."""
        size, floor = self.magnitude(x), float(scalar.ROOT_FLOOR)
        root = self.root(self.where(size < floor, floor, size))
        return self.where(x > 0.0, root, self.where(x < 0.0, -root, 0.0))

    def activation(self, function: str, x: Any) -> Any:
        """Return one of the scalar functions of x."""
        return getattr(self, ACTIVATIONS[function])(x)

    def soft_cap(self, x: Any, cap: float) -> Any:
        """Return C·tanh(x·RN(1/C))."""
        bound = F32(cap)
        return self.tanh(x * float(F32(1) / bound)) * float(bound)

    def descending(self, x: Any) -> Any:
        """Return integers in [0, 2³²), int64, that order as −x does; x has no −0."""
        bits = self.bits(x)
        return MAGNITUDE - self.wide(bits ^ ((bits >> 31) & MAGNITUDE))


ACTIVATIONS: Mapping[str, str] = {
    "silu": "silu",
    "gelu_tanh": "gelu_tanh",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "softplus": "softplus",
    "relu": "relu",
    "relu2": "relu2",
    "signed_root": "signed_root",
    "gelu": "gelu",
    "exp": "exponential",
}
"""The method of each scalar function."""
