"""2^x and log2(x) of f16 numbers, correctly rounded to float32: the tables that ladders use.

Libraries differ in the last bit, so a table is taken only if its SHA-256 is the one written here;
where a library's float64 functions give another, the table is computed with 40 decimal digits.
"""

from __future__ import annotations

import hashlib
from decimal import Context, Decimal
from functools import lru_cache

import numpy as np
import numpy.typing as npt

EXP2_SHA256 = "3295f39ab35b43c130c24fbef4d0babfbf1150eac236b7125da734c5d3eb2f54"
LOG2_SHA256 = "0311c8befecae5a6c89a44a953d2fd946784d71e16d46ec12cdfbd291bf39f8c"
LEAST, MOST = -126, 128
"""Exponents x, MOST itself not among them, whose 2^x is a normal float32."""
PRECISION = Context(prec=40)

Floats = npt.NDArray[np.float32]


def _halves() -> npt.NDArray[np.float64]:
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float64)


def _exact(function: str, x: float) -> float:
    """Return 2^x or log2(x) of one number, rounded from 40 digits."""
    number, two = Decimal(x), PRECISION.ln(Decimal(2))
    if function == "exp2":
        return float(PRECISION.exp(PRECISION.multiply(number, two)))
    return float(PRECISION.divide(PRECISION.ln(number), two))


def _table(function: str, wanted: str) -> Floats:
    halves = _halves()
    if function == "exp2":
        inside = (halves >= LEAST) & (halves < MOST)
    else:
        inside = np.isfinite(halves) & (halves > 0)
    values = np.zeros(1 << 16)
    values[inside] = getattr(np, function)(halves[inside])
    table = values.astype("<f4")
    if hashlib.sha256(table.tobytes()).hexdigest() != wanted:
        values[inside] = [_exact(function, x) for x in halves[inside].tolist()]
        table = values.astype("<f4")
    if hashlib.sha256(table.tobytes()).hexdigest() != wanted:
        raise AssertionError(f"the table of {function} is not the one that files are made with")
    return table.astype(np.float32)


@lru_cache(maxsize=1)
def exp2_table() -> Floats:
    """Return 2^x by the bits of x as f16, +0 outside −126 ≤ x < 128: float32 [65536]."""
    return _table("exp2", EXP2_SHA256)


@lru_cache(maxsize=1)
def log2_table() -> Floats:
    """Return log2(x) by the bits of x as f16, 0 unless x is positive: float32 [65536]."""
    return _table("log2", LOG2_SHA256)


def ladders(parameters: npt.NDArray[np.uint16], zero_first: bool = False) -> Floats:
    """Return the 32 scales of every row: float32 [rows, 32].

    The first is 2^lo; each next one is the one before times 2^step, rounded: this product is the
    definition.

    Parameters
    ----------
    parameters : bits of lo and step of each row, uint16 [rows, 2].
    zero_first : whether the first is +0 and the others follow one behind (q2tp).
    """
    table = exp2_table()
    low, ratio = table[parameters[:, 0]], table[parameters[:, 1]]
    rungs = np.zeros((len(parameters), 32), np.float32)
    first = int(zero_first)
    rungs[:, first] = low
    with np.errstate(over="ignore"):
        for rung in range(first + 1, 32):
            rungs[:, rung] = rungs[:, rung - 1] * ratio
    return rungs
