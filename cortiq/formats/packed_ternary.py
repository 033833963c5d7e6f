"""Ternary matrices of BitNet: packed codes, or floats that stand for codes (`online`).

Packed, a row of bytes has the codes of four rows of the matrix, a quarter of its height apart, the
first one lowest; an element is scale·(code − 1). Of floats w a matrix has one scale, the mean of
all |w|, and codes rint(w / scale) within ±1; the scale is rounded to the floats' type, as a folder
of packed codes has it. Source: transformers (`integrations/bitnet.py`), arXiv 2402.17764.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from math import prod

import numpy as np

from cortiq.formats.integer_rows import IntegerRows
from cortiq.formats.packed_codes import FLOAT_TYPES, Bytes, Doubles, StoredNumbers
from cortiq.formats.packed_integers import _group
from cortiq.formats.packed_tensors import PackedModule, PackedTensor
from cortiq.formats.quantisation import Quantisation

EACH = 4
"""Rows of a matrix whose codes share a row of bytes."""
MIDDLE = 8
"""Code of 0 in a layout of 4 bits."""
DIVIDES, ONLINE = "bitlinear", "online"
"""What divides a product by the scale in place of multiplying it; floats that stand for codes."""
LEAST = np.float32(1e-5)
"""The smallest scale."""
TALL = 256
"""Rows that are summed at a time."""
LOWEST = 160
"""Added to exponents of float32 numbers, so that none is negative."""


def is_ternary(module: PackedModule) -> bool:
    """Return whether a module's bytes have one scale: other packings have one a row at least."""
    return prod(module.folder.tensors[module.full("weight_scale")].shape) == 1


def ternary(module: PackedModule, how: Quantisation) -> PackedTensor:
    """Read `weight`, U8 [N/4, K], with `weight_scale`."""
    packed = module.array("weight", "U8")
    if packed.ndim != 2:
        module.fail(f"is {list(packed.shape)}, which is no matrix")
    quarter, columns = packed.shape
    scale = float(module.scales("weight_scale", *FLOAT_TYPES).reshape(-1)[:][0])
    if not 0 < abs(scale) < np.inf:
        module.fail(f"has a weight_scale of {scale}")
    factor = 1 / scale if how.codes == DIVIDES else scale

    def codes(start: int, stop: int) -> Bytes:
        row = np.arange(start, stop)
        shift = (2 * (row // quarter)).astype(np.uint8)[:, None]
        return (packed[row % quarter] >> shift & 3) + np.uint8(MIDDLE - 1)

    return _matrix(module, (EACH * quarter, columns), codes, lambda: factor)


def ternary_floats(module: PackedModule, how: Quantisation) -> PackedTensor:
    """Read `weight` in floats, whose codes and scale follow from it when rows are asked for."""
    stored = module.scales("weight", *FLOAT_TYPES)

    @cache
    def steepness() -> np.float32:
        mean = np.float32(_mean_magnitude(module, stored))
        return np.float32(1) / max(mean, LEAST)

    def codes(start: int, stop: int) -> Bytes:
        whole = np.rint(stored[start:stop].astype(np.float32) * steepness())
        return (np.clip(whole, -1, 1) + MIDDLE).astype(np.uint8)

    kind = stored.kind
    return _matrix(module, stored.shape, codes, lambda: _rounded(np.float32(1) / steepness(), kind))


def _matrix(
    module: PackedModule,
    shape: tuple[int, ...],
    codes: Callable[[int, int], Bytes],
    factor: Callable[[], float],
) -> PackedTensor:
    """Return the matrix of these codes, all of which have one factor."""
    group = _group(module, shape[1], 1)

    def scale(start: int, stop: int) -> Doubles:
        return np.full((stop - start, 1), factor())

    rows = IntegerRows(4, shape[1], group, codes, scale, None)
    return module.made(shape, rows.layout, rows.rows)


def _mean_magnitude(module: PackedModule, stored: StoredNumbers) -> float:
    """Return the mean of all magnitudes: the exact sum, divided and rounded once."""
    total = Fraction(0)
    for start in range(0, stored.shape[0], TALL):
        some = np.abs(stored[start : start + TALL])
        if not np.isfinite(some).all():
            module.fail("has numbers that are not finite")
        mantissa, exponent = np.frexp(some.reshape(-1))
        sums = np.bincount(exponent + LOWEST, np.ldexp(mantissa, 24))  # of integers: exact
        for power, n in enumerate(sums):
            total += int(n) * Fraction(2) ** (power - LOWEST - 24)
    return float(total / max(1, stored.size))


def _rounded(value: np.float32, kind: str) -> float:
    """Return a number rounded to a type of the file."""
    if kind == "F16":
        return float(np.float16(value))
    if kind == "F32":
        return float(value)
    bits = int(value.view(np.uint32))
    return float(np.uint32((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32))
