"""Scales of groups as small on the device as files have them.

Our layouts of other programs' codes have a float32 scale, perhaps a minimum, for every 32 columns.
Of those one is held for each group of equal ones, as f16 or bfloat16 where that is exact. Scales of
16 columns that are E4M3 numbers e times, or over, one float of a matrix (NVFP4) are held as E4M3
bytes, with two floats a and b of the row: the scale is RN(e·(a + b)). a has so few bits that e·a is
exact, so that a fused multiplication and addition rounds once. All of these are found from the
scales, and every scale is checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cortiq.numerics.contract import F32, Floats
from cortiq.numerics.groupquants import E4M3_VALUES
from cortiq.numerics.layouts import Weight
from cortiq.numerics.unpacked_weights import Bytes

F32S, HALVES, UPPER, E4M3S = range(4)
"""Layouts of scales: float32; f16 bits; the upper half of float32; E4M3 bytes, with factors."""
SHARES = (8, 4, 2)
"""Blocks that may share a scale, the most first."""
LARGEST_BYTE = 126
RAISED = 120
"""A byte's bits as those of a float32 number's exponent and mantissa are 2^−RAISED of it; a and b
are 2^RAISED of what they are named for."""
ROOM = 2.0 ** (127 - RAISED)
UPPER_BITS = 20
"""Bits of a: with the four of an E4M3 number, what a float32 number has."""
SLACK = 2.0**-21
"""Bound on the error of a quotient of scales beside that of their bytes: each is rounded once."""
SAMPLE = 64


class Held(NamedTuple):
    """Blocks that share a scale, and how scales and minima lie."""

    share: int = 1
    forms: tuple[int, int] = (F32S, F32S)


def _fields(weight: Weight, step: int) -> Iterator[list[Floats]]:
    """Yield the scales, and minima, of some rows: float32 [n, blocks]."""
    layout, raw, size = weight.layout, weight.parts["raw"], weight.layout.block_bytes
    for start in range(0, len(raw), step):
        blocks = raw[start : start + step].reshape(-1, raw.shape[1] // size, size)
        yield [
            np.ascontiguousarray(blocks[..., at : at + 4]).view("<f4")[..., 0]
            for at in layout.scales_at
        ]


def _shared(values: Floats, share: int) -> bool:
    """Whether runs of so many blocks have one scale each; the last run may be shorter."""
    first = np.repeat(values[:, ::share], share, axis=1)[:, : values.shape[1]]
    return bool((first.view(np.int32) == values.view(np.int32)).all())


def _form_of(values: Floats) -> set[int]:
    """The ways in which all of these values may lie."""
    bits = values.view(np.int32)
    found = {F32S}
    with np.errstate(over="ignore", invalid="ignore"):
        halves = values.astype(np.float16).astype(F32)
    if (halves.view(np.int32) == bits).all():
        found.add(HALVES)
    if not (bits & 0xFFFF).any():
        found.add(UPPER)
    return found


def held(weight: Weight, step: int) -> Held:
    """Return how the scales of a weight with float32 scales for 32 columns lie.

    Parameters
    ----------
    step : rows that are looked at together.
    """
    shares, forms = set(SHARES), [{F32S, HALVES, UPPER} for _ in range(2)]
    for fields in _fields(weight, step):
        shares = {s for s in shares if all(_shared(values, s) for values in fields)}
        for i, values in enumerate(fields):
            forms[i] &= _form_of(values)
    least = [HALVES if HALVES in f else UPPER if UPPER in f else F32S for f in forms]
    second = least[1] if len(weight.layout.scales_at) > 1 else F32S
    return Held(max(shares, default=1), (least[0], second))


def in_form(values: Floats, form: int) -> np.ndarray:
    """Return values as they lie; their form holds them."""
    if form == HALVES:
        return values.astype(np.float16).view(np.int16)
    if form == UPPER:
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values


def _unit(scales: Floats) -> float | None:
    """Return a number of which these scales are E4M3 numbers, nearly, or None."""
    distinct = np.unique(scales[scales > 0]).astype(np.float64)
    if not len(distinct):
        return 1.0
    for byte in range(LARGEST_BYTE, 0, -1):
        unit = distinct[-1] / float(E4M3_VALUES[byte])
        steps = distinct / unit
        near = E4M3_VALUES[_nearest(steps)].astype(np.float64)
        if (np.abs(steps - near) <= SLACK * steps).all():
            return float(unit)
    return None


def _nearest(steps: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
    """Return the bytes of the E4M3 numbers, in units of 2⁻⁹, at or next to these."""
    whole = np.minimum(np.rint(steps), E4M3_VALUES[LARGEST_BYTE]).astype(np.float32)
    bits = (whole.view(np.int32) + (1 << 19)) >> 20
    return np.where(whole < 8, whole, np.minimum(bits - (129 << 3), LARGEST_BYTE)).astype(np.int64)


def _factors(scales: Floats, unit: float) -> Floats | None:
    """Return a and b of rows that have these E4M3 numbers of this unit, nearly: the middle of what
    rounds to each of their scales, in two parts; None if nothing does.
    """
    distinct = np.unique(scales[scales > 0])
    wide = distinct.astype(np.float64)
    codes = E4M3_VALUES[_nearest(wide * (1 / unit))]
    with np.errstate(divide="ignore"):
        low = (wide + np.nextafter(distinct, F32(0))) / 2 / codes
        high = (wide + np.nextafter(distinct, F32(np.inf))) / 2 / codes
    middle = (low.max() + high.min()) / 2 * 2.0**9 if len(distinct) else 1.0
    if not 2.0**-64 < middle < ROOM:
        return None
    exponent = UPPER_BITS - np.frexp(middle)[1]
    a = np.ldexp(np.floor(np.ldexp(middle, exponent)), -exponent)
    return np.ldexp(np.array([a, middle - a]), RAISED).astype(F32)


def _rows_of(scales: Floats, unit: float, factors: Floats) -> tuple[Bytes, npt.NDArray[np.bool_]]:
    """Return bytes, and which rows these and the factors give exactly."""
    found = _nearest(scales * F32(1 / unit))
    a, b = np.ldexp(factors.astype(np.float64), -RAISED - 9)
    numbers = E4M3_VALUES[found].astype(np.float64)
    back = (numbers * a + numbers * b).astype(F32)  # 48 bits: both operations are exact
    return found.astype(np.uint8), (back == scales).all(axis=1)


def e4m3_scales(scales: Floats) -> tuple[Bytes, Floats] | None:
    """Return E4M3 bytes of scales [N, blocks], and factors [N, 2]; None where there are none.

    Rows that follow one another share a unit as long as it fits: a stack of experts has several.
    """
    if (scales < 0).any() or not np.isfinite(scales).all():
        return None
    found: list[tuple[Bytes, Floats]] = []
    start = 0
    while start < len(scales):
        run = _run(scales[start:])
        if not run:
            return None
        found += run
        start += sum(len(codes) for codes, _ in run)
    return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))  # type: ignore[return-value]


def _run(scales: Floats) -> list[tuple[Bytes, Floats]]:
    """Return bytes and factors of the rows at the beginning that share a unit; perhaps of none.

    Pieces that double find the end of a run without a look at all the rows behind it.
    """
    for sample in (SAMPLE, 1):
        unit = _unit(scales[:sample])
        factors = None if unit is None else _factors(scales[:sample], unit)
        found: list[tuple[Bytes, Floats]] = []
        start, size = 0, SAMPLE
        while unit is not None and factors is not None and start < len(scales):
            codes, fits = _rows_of(scales[start : start + size], unit, factors)
            count = len(fits) if fits.all() else int(fits.argmin())
            if count:
                found.append((codes[:count], np.broadcast_to(factors, (count, 2))))
            if count < len(fits):
                break
            start, size = start + count, 2 * size
        if found:
            return found
    return []
