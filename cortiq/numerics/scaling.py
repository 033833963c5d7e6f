"""Constants and gains formed on the host, and the primitives that shift and bound values.

A gain itself is `scalar.multiply`: RN(x·g).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cortiq.domains import Real
from cortiq.errors import FormatError, UnsupportedError
from cortiq.numerics.contract import (
    F32,
    LARGEST_EXPONENT,
    SMALLEST_EXPONENT,
    Flags,
    Floats,
    OutOfDomainError,
    snap,
)
from cortiq.numerics.scalar import activation, add, exponential, multiply, scale
from cortiq.numerics.sums import canonical_sum

CONSTANT = Real(
    2.0**SMALLEST_EXPONENT, 2.0**LARGEST_EXPONENT, below=True, signed=True, zero=True
)  # fmt: skip
"""A constant that values are multiplied by, moved by or bounded by: canonical."""
GAIN_FORMS = (
    "plain", "exp", "negative_exp", "negative", "softplus", "square", "magnitude",
)  # fmt: skip


def gain(w: Floats, form: str = "plain", name: str = "weight") -> Floats:
    """Form a weight's gains once on the host: w, snap(exponential(w)), −that, snap(w) of a w that
    must not be above 0, softplus(w), snap(RN(w·w)), or snap(|w|).

    Raises
    ------
    FormatError : a gain would be 2⁵⁰ or more, or is above 0 and must not; the weight is named.
    UnsupportedError : no form has this name.
    """
    check_gain_form(form)
    if form == "plain":
        return w
    if form == "softplus":
        return activation(snap(w), "softplus")
    if form == "magnitude":
        return snap(np.abs(w))
    if form == "negative":
        if not (w <= 0).all():
            what = f"holds the decay {float(w.max())}, a number that must not be above 0"
            raise FormatError(what, where=name)
        return snap(w)
    try:
        formed = snap(multiply(w, w) if form == "square" else exponential(w))
    except OutOfDomainError:
        made = "number whose square" if form == "square" else "logarithm whose exponential"
        raise FormatError(f"holds a {made} is 2^50 or more", where=name) from None
    return snap(-formed) if form == "negative_exp" else formed


def differential_gain(vectors: Sequence[Floats], initial: float, name: str = "weight") -> Floats:
    """Form −λ of differential attention once on the host, [1].

    λ = RN(RN(e₁ − e₂) + RN(initial)), eᵢ = gain(snap(canonical_sum(RN(qᵢ·kᵢ))), "exp") of the
    vectors q₁, k₁, q₂, k₂, each snapped; every step is snapped.

    Raises
    ------
    FormatError : as `gain`; the weight is named.
    """
    q1, k1, q2, k2 = (snap(vector) for vector in vectors)
    sums = [snap(canonical_sum(multiply(q, k))).reshape(1) for q, k in ((q1, k1), (q2, k2))]
    first, second = (gain(total, "exp", name) for total in sums)
    return scale(shift(add(first, scale(second, -1.0)), initial), -1.0)


def check_gain_form(form: str) -> None:
    """Raise the error of `gain` for an unknown form."""
    if form not in GAIN_FORMS:
        hint = f"forms: {', '.join(GAIN_FORMS)}"
        raise UnsupportedError(f"a gain has no form {form!r}", where="gain", hint=hint)


def shift(x: Floats, amount: float, faults: Flags | None = None) -> Floats:
    """Compute the primitive snap(RN(x + RN(amount))), the amount rounded to float32 on the host."""
    check_bounds(amount)
    return snap(np.asarray(x, F32) + F32(amount), faults)


def clamp(x: Floats, low: float | None, high: float | None) -> Floats:
    """Clamp, a primitive: x < RN(low) ? RN(low) : x, then x > RN(high) ? RN(high) : x; no faults.

    Parameters
    ----------
    x : float32, canonical.
    low, high : the bounds; None for none.

    Raises
    ------
    UnsupportedError : as `check_bounds`.
    """
    check_bounds(low, high)
    y = np.asarray(x, F32)
    if low is not None:
        y = np.where(y < F32(low), F32(low), y)
    if high is not None:
        y = np.where(y > F32(high), F32(high), y)
    return y


def check_bounds(*numbers: float | None) -> None:
    """Raise `UnsupportedError` unless the numbers ascend and each is 0 or canonical."""
    known = [number for number in numbers if number is not None]
    for number in known:
        if not CONSTANT.admits(number):
            hint = f"it is {CONSTANT.text()}"
            raise UnsupportedError(f"the constant {number} is out of range", hint=hint)
    if known != sorted(known):
        raise UnsupportedError(f"the bounds {known} do not ascend", where="clamp")
