"""Slopes of heads: how fast scores fall with distance (ALiBi, arXiv 2108.12409), and how fast
lightning attention forgets (MiniMax-01, arXiv 2501.08313).
"""

from __future__ import annotations

from decimal import Decimal, localcontext

from cortiq.numerics.rope_scaling import PRECISION

SPREAD = Decimal("0.00001")
"""Keeps rates of the last layer above 0."""


def alibi_slopes(heads: int, most: float = 8.0) -> tuple[float, ...]:
    """Return 2^(−most·k/n) for k = 1 … n, n the power of two that is not below `heads`.

    Where there are fewer heads than n, the even k come first, then the odd ones. Powers are
    computed to 60 digits, so that slopes are the same on every machine.
    """
    count = 1 << (heads - 1).bit_length()
    with localcontext(PRECISION):
        exponents = [-Decimal(most) * k / count for k in range(1, count + 1)]
        found = [float(Decimal(2) ** exponent) for exponent in exponents]
    ordered = found if count == heads else found[1::2] + found[::2]
    return tuple(ordered[:heads])


def lightning_slopes(
    heads: int, layer: int, layers: int, spread: Decimal | int = SPREAD
) -> tuple[float, float]:
    """Return the first head's rate of a layer, and the ratio from head to head.

    A head's rate is that of ALiBi, less in later layers: times 1 − layer/(layers − 1 + spread).
    """
    with localcontext(PRECISION):
        ratio = Decimal(2) ** (Decimal(-8) / heads)
        slope = ratio * (1 - Decimal(layer) / (layers - 1 + spread) + SPREAD)
    return float(slope), float(ratio)
