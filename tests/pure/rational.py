"""Rounding and exp2 in rational arithmetic: an oracle that shares no float operation with us."""

from __future__ import annotations

from fractions import Fraction

EXP2_COEFFICIENTS = (
    "1.5353362e-4", "1.3398874e-3", "9.6184373e-3", "5.5503324e-2", "2.4022648e-1", "6.9314718e-1",
    "1",
)  # fmt: skip


def rounded(value: Fraction) -> Fraction:
    """A rational number to 24 significant bits, half to even, by integers only."""
    if not value:
        return value
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length() - 24
    while abs(value) >= Fraction(2) ** (exponent + 24):
        exponent += 1
    return round(value / Fraction(2) ** exponent) * Fraction(2) ** exponent


def exact(x) -> Fraction:
    """The value of a float32."""
    return Fraction(float(x))


def exp2_fraction(f: Fraction) -> Fraction:
    """The contract's polynomial for 2^f, each operation rounded."""
    y = Fraction(0)
    for coefficient in EXP2_COEFFICIENTS:
        y = rounded(rounded(y * f) + rounded(Fraction(coefficient)))
    return y
