"""Elementwise functions of the contract: float32 add, multiply, divide and integer bit operations.

Every operation is rounded once, in the order the docstrings write it; nothing is contracted. None
of these functions snaps: `activation` and `soft_cap`, which end a primitive, do. `NAME_MAX_ULP` is
the largest error a result has in units in the last place of the exact value, over the whole domain.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cortiq.domains import Real
from cortiq.errors import UnsupportedError
from cortiq.numerics.contract import F32, Flags, Floats, snap

EXP_MAX_ULP = 1.0
EXP2_FRACTION_MAX_ULP = 1.25
SIGMOID_MAX_ULP = 3.0
SILU_MAX_ULP = 4.0
TANH_MAX_ULP = 1.75
LOG_MAX_ULP = 1.0
LOG1P_MAX_ULP = 1.5
SOFTPLUS_MAX_ULP = 2.25
SOFT_CAP = Real(2.0**-40, 2.0**49)
"""The cap of `soft_cap`."""
GELU_TANH_MAX_ERROR = 3 * 2.0**-24
"""Largest |error| of `gelu_tanh` divided by |x|."""
GELU_MAX_ERROR = 4 * 2.0**-24
"""Largest |error| of `gelu` divided by |x|."""
EXPONENTIAL_MAX_ULP = 1.75


def _constants(*values: float) -> tuple[np.float32, ...]:
    """Round each coefficient to float32 once."""
    return tuple(F32(value) for value in values)


EXP_LOWEST = F32(-80.0)
"""`exp` clamps its argument here: e⁻⁸⁰ is still a normal float32, so nothing underflows."""
LOG2_E = F32(1.44269504)
LN2_HIGH = F32(0.693359375)
"""The first 9 bits of ln 2, so that k·LN2_HIGH is exact for the k that `exp` and `log` meet."""
LN2_LOW = F32(-2.12194440e-4)
EXP_POLYNOMIAL = _constants(
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
EXP2_POLYNOMIAL = _constants(
    1.5353362e-4, 1.3398874e-3, 9.6184373e-3, 5.5503324e-2, 2.4022648e-1, 6.9314718e-1, 1.0
)
TANH_SMALL = F32(0.625)
"""Below this magnitude `tanh` is an odd polynomial, since 1 − E would cancel."""
TANH_POLYNOMIAL = _constants(-0.00570497848, 0.0206390787, -0.0537397116, 0.133314416, -0.333332807)
SQRT_HALF_BITS = np.int32(0x3F3504F3)
LOG_POLYNOMIAL = _constants(0.298723131, 0.399775207, 0.666667759)
GELU_CUBIC = F32(0.044715)
GELU_SCALE = F32(0.7978846)
"""√(2/π), rounded."""
GELU_CLAMP = F32(16.0)
"""Beyond ±16 the argument of GELU's σ is clamped by `exp` anyway; clamping x keeps x³ finite."""
ROOT_FLOOR = F32(1e-6)
"""Magnitudes below it count as this to `signed_root`."""
TAIL_SCALE = F32(0.39)
TAIL_POLYNOMIAL = _constants(
    0.0538464143, -0.258241403, 0.37516483, -0.0166327644, 0.194435738, 0.151427195
)
"""Φ(−a)·e^(a²/2) as t times a polynomial in t = 1/(1 + TAIL_SCALE·a), to 1e-8."""


def horner(x: Floats, coefficients: tuple[np.float32, ...]) -> Floats:
    """Evaluate a polynomial, highest power first: y = c0; y = RN(RN(y·x) + c) for each c."""
    y = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        y = y * x + coefficient
    return y


def exp(x: Floats) -> Floats:
    """Return e^x for x ≤ 0, by Cody–Waite reduction; x < −80 gives exp(−80).

    x = max(x, −80); k = rint(x·LOG2_E); r = x − k·LN2_HIGH; r = r − k·LN2_LOW;
    y = horner(r, EXP_POLYNOMIAL); y = y·(r·r); y = y + r; y = y + 1; then k is added to the
    exponent bits of y. Error at most `EXP_MAX_ULP`.
    """
    x = np.maximum(np.asarray(x, F32), EXP_LOWEST)
    k = np.rint(x * LOG2_E)
    r = x - k * LN2_HIGH
    r = r - k * LN2_LOW
    y = horner(r, EXP_POLYNOMIAL) * (r * r)
    y = y + r
    y = y + F32(1)
    return (y.view(np.int32) + (k.astype(np.int32) << np.int32(23))).view(F32)


def exponential(x: Floats) -> Floats:
    """Return e^x of either sign: e = exp(−|x|); x > 0 ? RN(1/e) : e. Error: `EXPONENTIAL_MAX_ULP`.

    Beyond ±80 it stays at e^±80, which `snap` makes +0 or a fault.
    """
    x = np.asarray(x, F32)
    e = exp(-np.abs(x))
    return np.where(x > 0, F32(1) / e, e)


def exp2_fraction(f: Floats) -> Floats:
    """Return 2^f for |f| ≤ ½: horner(f, EXP2_POLYNOMIAL). Error at most `EXP2_FRACTION_MAX_ULP`."""
    return horner(np.asarray(f, F32), EXP2_POLYNOMIAL)


def sigmoid(x: Floats) -> Floats:
    """Return σ(x): e = exp(−|x|); r = RN(1/(1 + e)); x ≥ 0 ? r : RN(e·r).

    Error at most `SIGMOID_MAX_ULP` for |x| ≤ 80; below −80 it stays at σ(−80).
    """
    x = np.asarray(x, F32)
    e = exp(-np.abs(x))
    r = F32(1) / (F32(1) + e)
    return np.where(x >= 0, r, e * r)


def silu(x: Floats) -> Floats:
    """Return x·σ(x). Error at most `SILU_MAX_ULP` for |x| ≤ 80."""
    x = np.asarray(x, F32)
    return x * sigmoid(x)


def gelu_tanh(x: Floats) -> Floats:
    """Return GELU by its tanh formula, ½x(1 + tanh u), written as x·σ(2u).

    v = clamp(x, ±16); u = RN(GELU_SCALE·RN(v + RN(GELU_CUBIC·RN(RN(v·v)·v)))); x·σ(u + u).
    |error| at most `GELU_TANH_MAX_ERROR`·|x|.
    """
    x = np.asarray(x, F32)
    v = np.minimum(np.maximum(x, -GELU_CLAMP), GELU_CLAMP)
    u = GELU_SCALE * (v + GELU_CUBIC * ((v * v) * v))
    return x * sigmoid(u + u)


def gelu(x: Floats) -> Floats:
    """Return GELU, x·Φ(x) with Φ the normal distribution (½x(1 + erf(x/√2))).

    a = min(|x|, 16); t = RN(1/RN(1 + RN(TAIL_SCALE·a))); p = RN(horner(t, TAIL_POLYNOMIAL)·t);
    r = RN(exp(RN(−0.5·RN(a·a)))·p), which is Φ(−a); RN(x·(x ≥ 0 ? RN(1 − r) : r)). |error| at most
    `GELU_MAX_ERROR`·|x|.
    """
    x = np.asarray(x, F32)
    a = np.minimum(np.abs(x), GELU_CLAMP)
    t = F32(1) / (F32(1) + TAIL_SCALE * a)
    tail = exp(F32(-0.5) * (a * a)) * (horner(t, TAIL_POLYNOMIAL) * t)
    return x * np.where(x >= 0, F32(1) - tail, tail)


def tanh(x: Floats) -> Floats:
    """Return the hyperbolic tangent; error at most `TANH_MAX_ULP`.

    |x| < 0.625: z = x·x; RN(RN(RN(horner(z, TANH_POLYNOMIAL)·z)·x) + x). Otherwise E = exp(−2|x|);
    RN((1 − E)/(1 + E)) with the sign of x.
    """
    x = np.asarray(x, F32)
    magnitude = np.abs(x)
    z = np.minimum(magnitude, TANH_SMALL) * np.minimum(magnitude, TANH_SMALL)
    small = (horner(z, TANH_POLYNOMIAL) * z) * x + x
    e = exp(F32(-2) * magnitude)
    large = (F32(1) - e) / (F32(1) + e)
    return np.where(magnitude < TANH_SMALL, small, np.where(x < 0, -large, large))


def log(x: Floats) -> Floats:
    """Return the natural logarithm of a positive normal x; error at most `LOG_MAX_ULP`.

    k = (bits(x) − SQRT_HALF_BITS) >> 23, so that m = x·2^−k is in [√½, √2); f = m − 1;
    s = RN(f/(2 + f)); z = s·s; R = RN(z·horner(z, LOG_POLYNOMIAL)); h = RN(RN(0.5·f)·f);
    RN(k·LN2_HIGH + (f − (h − RN(RN(s·RN(h + R)) + RN(k·LN2_LOW))))), k as float32.
    """
    bits = np.ascontiguousarray(x, F32).view(np.int32)
    shift = (bits - SQRT_HALF_BITS) >> np.int32(23)
    f = (bits - (shift << np.int32(23))).view(F32) - F32(1)
    k = shift.astype(F32)
    s = f / (F32(2) + f)
    z = s * s
    remainder = z * horner(z, LOG_POLYNOMIAL)
    half_square = (F32(0.5) * f) * f
    correction = half_square - (s * (half_square + remainder) + k * LN2_LOW)
    return k * LN2_HIGH + (f - correction)


def log1p(y: Floats) -> Floats:
    """Return ln(1 + y) for −½ ≤ y ≤ 1; error at most `LOG1P_MAX_ULP`.

    u = RN(1 + y); c = y − (u − 1), exact: what the rounding of u lost; RN(log(u) + RN(c/u)).
    """
    y = np.asarray(y, F32)
    u = F32(1) + y
    return log(u) + (y - (u - F32(1))) / u


def softplus(x: Floats) -> Floats:
    """Return ln(1 + e^x): RN(max(x, 0) + log1p(exp(−|x|))). Error: `SOFTPLUS_MAX_ULP`, x ≥ −80."""
    x = np.asarray(x, F32)
    return relu(x) + log1p(exp(-np.abs(x)))


def relu(x: Floats) -> Floats:
    """Return x > 0 ? x : +0, exact."""
    x = np.asarray(x, F32)
    return np.where(x > 0, x, F32(0))


def relu2(x: Floats) -> Floats:
    """Return the squared ReLU: r = relu(x); RN(r·r)."""
    r = relu(x)
    return r * r


def signed_root(x: Floats) -> Floats:
    """Return the root of the magnitude with the sign: r = RN(√max(|x|, ROOT_FLOOR)); x > 0 ? r :
    x < 0 ? −r : +0.
    """
    x = np.asarray(x, F32)
    r = np.sqrt(np.maximum(np.abs(x), ROOT_FLOOR))
    return np.where(x > 0, r, np.where(x < 0, -r, F32(0)))


ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "silu": silu,
    "gelu_tanh": gelu_tanh,
    "gelu": gelu,
    "exp": exponential,
    "sigmoid": sigmoid,
    "tanh": tanh,
    "softplus": softplus,
    "relu": relu,
    "relu2": relu2,
    "signed_root": signed_root,
}
"""The kinds `activation` knows."""


def activation(x: Floats, kind: str, faults: Flags | None = None) -> Floats:
    """Compute the primitive snap(ACTIVATIONS[kind](x)).

    Parameters
    ----------
    x : float32 [rows, ...], canonical.
    kind : a key of `ACTIVATIONS`.
    faults : bool [rows], see `snap`.

    Raises
    ------
    UnsupportedError : `kind` is not in the table.
    """
    if kind not in ACTIVATIONS:
        hint = f"supported: {', '.join(ACTIVATIONS)}"
        raise UnsupportedError(f"no activation is called {kind!r}", where="activation", hint=hint)
    return snap(ACTIVATIONS[kind](x), faults)


def soft_cap(x: Floats, cap: float, faults: Flags | None = None) -> Floats:
    """Compute the primitive snap(RN(C·tanh(RN(x·RN(1/C))))), C = RN(cap) and 1/C from the host.

    Raises
    ------
    UnsupportedError : C is outside [2⁻⁴⁰, 2⁴⁹].
    """
    check_soft_cap(cap)
    bound = F32(cap)
    return snap(bound * tanh(np.asarray(x, F32) * (F32(1) / bound)), faults)


def check_soft_cap(cap: float) -> None:
    """Raise the errors of `soft_cap`."""
    if not SOFT_CAP.admits(cap):
        raise UnsupportedError(f"a soft cap of {cap}; it is {SOFT_CAP.text()}", where="soft_cap")


def add(a: Floats, b: Floats, faults: Flags | None = None) -> Floats:
    """Compute snap(RN(a + b)), a primitive; shapes broadcast, `faults` has the result's rows."""
    return snap(np.asarray(a, F32) + np.asarray(b, F32), faults)


def multiply(a: Floats, b: Floats, faults: Flags | None = None) -> Floats:
    """Compute snap(RN(a·b)), a primitive; shapes broadcast, `faults` has the result's rows."""
    return snap(np.asarray(a, F32) * np.asarray(b, F32), faults)


def scale(a: Floats, factor: float, faults: Flags | None = None) -> Floats:
    """Compute the primitive snap(RN(a·RN(factor))), the factor rounded to float32 on the host."""
    return snap(np.asarray(a, F32) * F32(factor), faults)
