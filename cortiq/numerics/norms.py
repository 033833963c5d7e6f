"""Normalisations over the last axis; each is one primitive, ending with snap."""

from __future__ import annotations

import numpy as np

from cortiq.domains import Real
from cortiq.errors import UnsupportedError
from cortiq.numerics.contract import F32, LARGEST_EXPONENT, SMALLEST_EXPONENT, Flags, Floats, snap
from cortiq.numerics.sums import canonical_mean, canonical_sum

EPSILON = Real(2.0**SMALLEST_EXPONENT, 2.0**LARGEST_EXPONENT, below=True)
"""The eps of a norm: a smaller one would let 1/sqrt leave the canonical domain."""
RMS_NORM_MAX_ERROR = 2.0**-20
"""Largest |error| of `rms_norm` and `l2_norm` relative to the result, for rows up to 2¹⁸ long."""
LAYER_NORM_MAX_ERROR = 2.0**-21
"""Largest |error| of `layer_norm` divided by (max|row|·r + 1)·|w| + |b|, r as in its formula."""


def checked_epsilon(eps: float) -> np.float32:
    """Return eps rounded to float32.

    Raises
    ------
    UnsupportedError : eps is below 2⁻⁴⁰, or 2⁵⁰ or more.
    """
    if not EPSILON.admits(eps):
        hint = f"a norm's eps is {EPSILON.text()} (2^-40 is 9.1e-13)"
        raise UnsupportedError(f"eps = {eps} is out of range", where="norm", hint=hint)
    return F32(eps)


def offset_weight(w: Floats, offset: float) -> Floats:
    """Return snap(RN(w + RN(offset))): the weight of files that store w for a factor (offset + w).

    It is formed once, when the weight is loaded.
    """
    return snap(np.asarray(w, F32) + F32(offset))


def inverse_root(x: Floats) -> Floats:
    """Return RN(1/RN(sqrt(x))), as a column for rows of the last axis."""
    return np.divide(F32(1), np.sqrt(x))[..., None]


def rms_norm(x: Floats, weight: Floats | None, eps: float, faults: Flags | None = None) -> Floats:
    """Compute x/√(mean(x²) + eps)·w.

    S = canonical_sum(RN(x·x)); r = RN(1/RN(sqrt(RN(RN(S·RN(1/n)) + eps)))); snap(RN(RN(x·r)·w)),
    without a weight snap(RN(x·r)). Error at most `RMS_NORM_MAX_ERROR`.

    Parameters
    ----------
    x : float32 [rows, ..., n], canonical.
    weight : float32 [n], canonical; the whole factor (see `offset_weight`).
    eps : at least 2⁻⁴⁰.
    faults : bool [rows], see `snap`.
    """
    x = np.asarray(x, F32)
    y = x * inverse_root(canonical_mean(x * x) + checked_epsilon(eps))
    return snap(y if weight is None else y * weight, faults)


def layer_norm(
    x: Floats,
    weight: Floats | None,
    bias: Floats | None,
    eps: float,
    faults: Flags | None = None,
) -> Floats:
    """Compute (x − mean(x))/√(variance(x) + eps)·w + b.

    m = canonical_mean(x); c = snap(RN(x − m)); S = canonical_sum(RN(c·c));
    r = RN(1/RN(sqrt(RN(RN(S·RN(1/n)) + eps)))); snap(RN(RN(RN(c·r)·w) + b)), without a bias
    snap(RN(RN(c·r)·w)), without either snap(RN(c·r)). The variance is that of the centred values,
    never E[x²] − m². Error at most `LAYER_NORM_MAX_ERROR`.

    Parameters
    ----------
    x : float32 [rows, ..., n], canonical.
    weight, bias : float32 [n], canonical.
    eps : at least 2⁻⁴⁰.
    faults : bool [rows], see `snap`; a centred value that leaves the domain is a fault too.
    """
    x = np.asarray(x, F32)
    centred = snap(x - canonical_mean(x)[..., None], faults)
    variance = canonical_mean(centred * centred)
    y = centred * inverse_root(variance + checked_epsilon(eps))
    y = y if weight is None else y * weight
    return snap(y if bias is None else y + bias, faults)


def l2_norm(x: Floats, eps: float, faults: Flags | None = None) -> Floats:
    """Compute x/√(Σx² + eps): r = RN(1/RN(sqrt(RN(S + eps)))), S as in `rms_norm`; snap(RN(x·r)).

    Parameters
    ----------
    x : float32 [rows, ..., n], canonical.
    eps : at least 2⁻⁴⁰.
    faults : bool [rows], see `snap`.
    """
    x = np.asarray(x, F32)
    return snap(x * inverse_root(canonical_sum(x * x) + checked_epsilon(eps)), faults)
