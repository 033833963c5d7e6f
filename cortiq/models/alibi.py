"""Slopes of ALiBi: how fast scores of each head fall with distance (arXiv 2108.12409)."""

from __future__ import annotations

from decimal import Decimal, localcontext

from cortiq.numerics.rope_scaling import PRECISION


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
