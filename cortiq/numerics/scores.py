"""Scores of queries against keys, in base 2, and weights 2^s as fraction and exponent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cortiq.domains import Real
from cortiq.errors import UnsupportedError
from cortiq.numerics.contract import F32, Floats, Ints, exp2_int, round_to_f32
from cortiq.numerics.quantise import Quantised
from cortiq.numerics.scalar import exp2_fraction, tanh

LOG2_E = 1.4426950408889634
"""log₂ e in float64; RN of it where float32 is needed."""
LOG2_E_F32 = F32(LOG2_E)
SCORE_LIMIT = F32(16384.0)
"""Scores are clamped here, inside the range where rint and the exponents are exact."""
SCALE = Real(2.0**-40, 2.0**8)
"""The factor on q·k."""
SOFT_CAP = Real(1.0, 8192.0)
"""The cap of scores."""
SLOPE = Real(2.0**-40, 2.0**8, zero=True)
"""The amount that a head's scores lose with every position between a key and the query."""


class ScoreConstants(NamedTuple):
    """Host constants of a layer: `factor` c, `cap` C (0: none) and `inverse_cap` RN(1/C)."""

    factor: np.float32
    cap: np.float32 = F32(0)
    inverse_cap: np.float32 = F32(0)


def scoring(scale: float, soft_cap: float | None = None) -> ScoreConstants:
    """Return a layer's constants: c = RN(scale·log₂ e), the product in float64; with a cap, c =
    RN(scale).

    Raises
    ------
    UnsupportedError : the scale or the cap is outside `SCALE` or `SOFT_CAP`.
    """
    if not SCALE.admits(scale):
        raise UnsupportedError(f"a softmax scale of {scale}; it is {SCALE.text()}")
    if soft_cap is None:
        return ScoreConstants(F32(scale * LOG2_E))
    if not SOFT_CAP.admits(soft_cap):
        raise UnsupportedError(f"a soft cap of {soft_cap}; it is {SOFT_CAP.text()}")
    cap = F32(soft_cap)
    return ScoreConstants(F32(scale), cap, F32(1) / cap)


def steepness(slopes: Sequence[float]) -> Floats:
    """Return m = RN(slope·log₂ e) of each head, the product in float64."""
    return np.array([slope * LOG2_E for slope in slopes], F32)


def distance_bias(steep: Floats, keys: npt.NDArray[np.integer], own: int) -> Floats:
    """Return RN(m·f32(j − own)) of heads [heads] and keys at positions j: float32 [heads, keys]."""
    return steep[:, None] * (keys - own).astype(F32)


def score(
    q: Quantised, keys: Quantised, constants: ScoreConstants, bias: Floats | None = None
) -> Floats:
    """Return base-2 scores of queries against keys, float32 [heads, keys], clamped to ±16384.

    s = RN(RN(I)·c)·2^(eq+ek), I = Σ q·k the exact integer; with a soft cap C then
    s = RN(RN(C·tanh(RN(s·RN(1/C))))·RN(log₂ e)); with a bias then s = RN(s + bias).

    Parameters
    ----------
    q : rows [heads, Dk]; keys : rows [keys, Dk]. bias : `distance_bias`, or None.
    """
    dot = q.q.astype(np.int64) @ keys.q.astype(np.int64).T
    s = (round_to_f32(dot) * constants.factor) * exp2_int(q.e[:, None] + keys.e)
    if constants.cap:
        s = (constants.cap * tanh(s * constants.inverse_cap)) * LOG2_E_F32
    if bias is not None:
        s = s + bias
    return np.minimum(np.maximum(s, -SCORE_LIMIT), SCORE_LIMIT)


def split_score(s: Floats) -> tuple[Floats, Ints]:
    """Split 2^s = g·2^κ: κ = rint(s), g = exp2_fraction(s − κ)."""
    whole = np.rint(s)
    return exp2_fraction(s - whole), whole.astype(np.int32)
