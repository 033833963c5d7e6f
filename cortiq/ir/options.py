"""Domains that several operators' options have, from the ranges of `cortiq.numerics`."""

from __future__ import annotations

from typing import Annotated

from cortiq.domains import OneOf, Real, Relation
from cortiq.numerics import norms, scalar, scaling, scores
from cortiq.numerics.rope import PAIRINGS

Constant = Annotated[float, scaling.CONSTANT]
"""Factors, shifts and bounds of values."""

Positive = Annotated[float, Real(2.0**-40, 2.0**50, below=True)]
"""A bound of magnitudes."""

Negative = Annotated[float, Real(-(2.0**50), -(2.0**-40), above=True)]
"""A bound of the logarithms of decays."""

Epsilon = Annotated[float, norms.EPSILON]
"""The term that a norm adds under its root."""

Cap = Annotated[float, scalar.SOFT_CAP]
"""The cap of a soft cap."""

ScoreCap = Annotated[float, scores.SOFT_CAP]
"""The soft cap of attention scores."""

ScoreScale = Annotated[float, scores.SCALE]
"""The factor on q·k."""

Slope = Annotated[float, scores.SLOPE]
"""The amount that scores lose with every position between a key and the query."""

SLOPES = Relation(
    ("slopes", "heads"), "every head has a slope, or none has",
    lambda op: len(op.slopes) in (0, op.heads),
)  # fmt: skip

Function = Annotated[str, OneOf(scalar.ACTIVATIONS)]
"""An activation."""

Pairing = Annotated[str, OneOf(PAIRINGS)]
"""Pairs of a head's values that turn together."""
