"""Numbers as the original engine's encoders round and add them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cortiq.formats.cmf.dtypes import GROUP

F32 = np.float32
Floats = npt.NDArray[np.float32]
TINY = F32(2.0**-14)
"""The smallest normal f16: the least scale."""


def half_bits(values: Floats) -> npt.NDArray[np.uint16]:
    """Return the bits of float32 numbers as f16: nearest, ties to even, but ties of subnormal
    numbers away from zero; beyond the largest an infinity.
    """
    with np.errstate(over="ignore"):
        bits = values.astype("<f2").view("<u2")
    size = np.abs(values)
    small = size < TINY
    if small.any():
        units = np.floor(size[small].astype(np.float64) * 2.0**24 + 0.5).astype(np.uint16)
        bits[small] = bits[small] & np.uint16(0x8000) | units
    return bits


def rounded_half(values: Floats) -> Floats:
    """Return float32 numbers rounded to f16."""
    return half_bits(values).view("<f2").astype(F32)


def floored(values: Floats) -> Floats:
    """Return scales: rounded to f16, and at least its smallest normal number."""
    return np.maximum(rounded_half(values), TINY)


def left_sum(values: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """Return the sums of rows, added from left to right: [n] of [n, K], of the same type."""
    total = np.zeros(len(values), values.dtype)
    for column in np.ascontiguousarray(values.T):
        total = total + column
    return total


def split_groups(values: Floats) -> Floats:
    """Return rows [n, C] as their groups, [n·C/32, 32]."""
    return values.reshape(-1, GROUP)
