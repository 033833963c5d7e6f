"""λ of differential attention, by which the second softmax is multiplied, of a layer's vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Context, Decimal

from cortiq.numerics.contract import Floats
from cortiq.numerics.scaling import differential_gain

LAMBDAS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
"""Vectors whose products, as exponents, make λ."""
SECOND: Mapping[str, str] = {"second": "lambda"}
"""The role of −λ, and what stands for it in names."""


def initial(layer: int) -> float:
    """Return what λ has by itself: 0.8 − 0.6·e^(−0.3·layer), in decimals."""
    context = Context(prec=40)
    falling = context.exp(context.multiply(Decimal("-0.3"), Decimal(layer)))
    return float(context.subtract(Decimal("0.8"), context.multiply(Decimal("0.6"), falling)))


def subtracted(vectors: Sequence[Floats], layer: int, name: str) -> Floats:
    """Return −λ of a layer."""
    return differential_gain(vectors, initial(layer), name)
