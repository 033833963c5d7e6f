"""Floats to four or five bits: blocks of Q4_K, Q4_1, Q4_0, Q5_0 whose least error a search finds.

A block of 32 is code·scale + low, with codes 0 … 15. Steps a little finer or coarser than the
block's range are tried; for the codes of each, scale and low are those of least squares. Q4_K keeps
both as integers of six bits under two f16 numbers of 256 columns: integers one beside the nearest
are tried too, then the f16 numbers of least squares. Everything is float32 in a written order, so
that the same floats give the same bytes on every machine. Where f16 has the scale, an error is 0 or
at least 2⁻⁶³: no square is subnormal, and flushing to zero changes no choice that is seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from cortiq.numerics.blockquants import BLOCK
from cortiq.numerics.contract import F32, Floats
from cortiq.numerics.four_bit_packing import nibbles_of, pack_q4_k
from cortiq.numerics.kquants import BLOCK as WIDE
from cortiq.numerics.sums import canonical_sum
from cortiq.numerics.unpacked_weights import Bytes, half_to_float

FINER = (-1.0, -0.5, 0.0, 0.5)
"""Additions to the 15 steps of a block's range that are tried; `NEIGHBOURS`: to its integers."""
LARGEST_CODE, LARGEST_PART, SUBS = F32(15), F32(63), WIDE // BLOCK
NEIGHBOURS = tuple((a, b) for a in (0, -1, 1) for b in (0, -1, 1))


class LeastSquares(NamedTuple):
    """Scale and low of blocks, and the sum of squared errors: float32 [...]."""

    scale: Floats
    low: Floats
    error: Floats

    def better(self, other: LeastSquares) -> LeastSquares:
        """Return the other where its error is smaller."""
        smaller = other.error < self.error
        return LeastSquares(*(np.where(smaller, b, a) for a, b in zip(self, other, strict=True)))


def _ratio(a: Floats, b: Floats) -> Floats:
    """Return RN(a/b), and +0 where b is not positive."""
    return np.where(b > 0, a / np.where(b > 0, b, F32(1)), F32(0))


def _codes(x: Floats, scale: Floats, low: Floats) -> Floats:
    """Return clip(rint(RN(RN(x − low)·RN(1/scale))), 0, 15) of blocks [..., 32]."""
    inverse = _ratio(np.ones_like(scale), scale)
    steps = np.rint((x - low[..., None]) * inverse[..., None])
    return np.minimum(np.maximum(steps, F32(0)), LARGEST_CODE)


def _error(x: Floats, codes: Floats, scale: Floats, low: Floats) -> Floats:
    off = (codes * scale[..., None] + low[..., None]) - x
    return canonical_sum(off * off)


def _fitted(x: Floats, codes: Floats, negative: bool) -> LeastSquares:
    """Return scale and low of least squares for these codes; with `negative`, low at most 0.

    Codes that are all one have no slope: low is the mean if they are 0, else scale is all.
    """
    count = F32(x.shape[-1])
    c, cc = canonical_sum(codes), canonical_sum(codes * codes)
    t, ct = canonical_sum(x), canonical_sum(codes * x)
    spread = count * cc - c * c
    flat = spread <= 0
    scale = np.where(flat, _ratio(ct, cc), _ratio(count * ct - c * t, spread))
    mean = np.where(cc > 0, F32(0), t * (F32(1) / count))
    low = np.where(flat, mean, _ratio(t * cc - c * ct, spread))
    if negative:
        scale = np.where(low > 0, _ratio(ct, cc), scale)
        low = np.minimum(low, F32(0))
    scale = np.maximum(scale, F32(0))
    return LeastSquares(scale, low, _error(x, codes, scale, low))


def fit(x: Floats, negative: bool) -> LeastSquares:
    """Return the best scale and low found for blocks, float32 [..., 32]."""
    low, high = x.min(axis=-1), x.max(axis=-1)
    if negative:
        low = np.minimum(low, F32(0))
    best: LeastSquares | None = None
    for finer in FINER:
        step = (high - low) * (F32(1) / (LARGEST_CODE + F32(finer)))
        found = _fitted(x, _codes(x, step, low), negative)
        best = found if best is None else best.better(found)
    assert best is not None
    return best


def _half(values: Floats) -> Bytes:
    """Return f16 numbers as byte pairs: uint8 [..., 2]."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values.astype("<f2"))[..., None].view(np.uint8)


def _as_half(values: Floats) -> Floats:
    """Return numbers rounded to f16, but for those that have none."""
    halves = half_to_float(_half(values))[..., 0]
    return np.where(np.isfinite(halves), halves, values)


class NarrowBlocks:
    """Blocks of Q4_1 for values [n, 32].

    Attributes
    ----------
    scale, low : what a code is multiplied by and what is added, float32 [n, 1].
    """

    largest = LARGEST_CODE

    def __init__(self, values: Floats) -> None:
        self._x = x = values
        best: LeastSquares | None = None
        found = fit(x, negative=False)
        for _ in range(2):
            scale, low = _as_half(found.scale), _as_half(found.low)
            codes = _codes(x, scale, low)
            rounded = LeastSquares(scale, low, _error(x, codes, scale, low))
            best = rounded if best is None else best.better(rounded)
            found = _fitted(x, codes, negative=False)
        assert best is not None
        self.scale, self.low = best.scale[:, None], best.low[:, None]

    def codes(self) -> Floats:
        """Return the nearest codes, float32 [n, 32]."""
        return _codes(self._x, self.scale[:, 0], self.low[:, 0])

    def raw(self, codes: Floats) -> Bytes:
        """Return blocks with these codes: uint8 [n, 20]."""
        halves = [_half(part[:, 0]) for part in (self.scale, self.low)]
        return np.concatenate([*halves, nibbles_of(codes, BLOCK // 2)], axis=1)


class WideBlocks:
    """Blocks of Q4_K for values [n, 256].

    Attributes
    ----------
    scale, low : what a code of a block of 32 is multiplied by, and what is added, float32 [n, 8].
    """

    largest = LARGEST_CODE

    def __init__(self, values: Floats) -> None:
        self._x = values.reshape(-1, SUBS, BLOCK)
        found = fit(self._x, negative=True)
        self._d = _as_half(found.scale.max(axis=-1) * (F32(1) / LARGEST_PART))
        self._dmin = _as_half((-found.low).max(axis=-1) * (F32(1) / LARGEST_PART))
        self._scales = _integers(found.scale, self._d)
        self._minima = _integers(-found.low, self._dmin)
        self._try_neighbours()
        self._fit_halves()
        self.scale, self.low = self._floats(self._d, self._dmin, self._scales, self._minima)

    def codes(self) -> Floats:
        """Return the nearest codes, float32 [n, 256]."""
        parts = self._floats(self._d, self._dmin, self._scales, self._minima)
        return _codes(self._x, *parts).reshape(len(self._x), -1)

    def raw(self, codes: Floats) -> Bytes:
        """Return blocks with these codes: uint8 [n, 144]."""
        halves = [_half(part) for part in (self._d, self._dmin)]
        parts = [part.astype(np.uint8) for part in (self._scales, self._minima)]
        return pack_q4_k(halves, parts, codes)

    @staticmethod
    def _floats(d: Floats, dmin: Floats, scales: Floats, minima: Floats) -> tuple[Floats, Floats]:
        return d[:, None] * scales, -(dmin[:, None] * minima)

    def _error_of(self, *parts: Floats) -> Floats:
        scale, low = self._floats(*parts)
        return _error(self._x, _codes(self._x, scale, low), scale, low)

    def _try_neighbours(self) -> None:
        """Take for each block the integers with the least error, of those beside the nearest."""
        best: LeastSquares | None = None
        for a, b in NEIGHBOURS:
            scales, minima = (
                np.minimum(np.maximum(part + F32(step), F32(0)), LARGEST_PART)
                for part, step in ((self._scales, a), (self._minima, b))
            )
            error = self._error_of(self._d, self._dmin, scales, minima)
            found = LeastSquares(scales, minima, error)
            best = found if best is None else best.better(found)
        assert best is not None
        self._scales, self._minima = best.scale, best.low

    def _fit_halves(self) -> None:
        """Take d and dmin of least squares for these codes, where that lowers the error."""
        n = len(self._x)
        a = self.codes() * np.repeat(self._scales, BLOCK, axis=1)
        b, x = np.repeat(-self._minima, BLOCK, axis=1), self._x.reshape(n, -1)
        pairs = ((a, a), (a, b), (b, b), (a, x), (b, x))
        aa, ab, bb, ax, bx = (canonical_sum(p * q) for p, q in pairs)
        spread = aa * bb - ab * ab
        d = np.where(spread > 0, _ratio(ax * bb - bx * ab, spread), _ratio(ax, aa))
        dmin = _ratio(bx * aa - ax * ab, spread)
        d, dmin = (_as_half(np.maximum(part, F32(0))) for part in (d, dmin))
        old, new = (
            canonical_sum(self._error_of(*pair, self._scales, self._minima))
            for pair in ((self._d, self._dmin), (d, dmin))
        )
        better = new < old
        self._d, self._dmin = np.where(better, d, self._d), np.where(better, dmin, self._dmin)


def _integers(values: Floats, unit: Floats) -> Floats:
    """Return the integers from 0 to 63 that come nearest to values [n, 8] in units [n]."""
    steps = np.rint(_ratio(values, np.broadcast_to(unit[:, None], values.shape)))
    return np.minimum(steps, LARGEST_PART)


class SignedBlocks:
    """Blocks of Q5_0 for values [n, 32]: (code − 16)·scale, codes 0 … 31, a scale of either sign.

    Attributes
    ----------
    scale, low : what a code is multiplied by and what is added, −middle·scale: float32 [n, 1].
    """

    middle, largest = F32(16), F32(31)

    def __init__(self, values: Floats) -> None:
        self._x = x = values
        low, high = x.min(axis=-1), x.max(axis=-1)
        extreme = np.where(-low >= high, low, high)
        found = self._fitted(self._codes(extreme * (F32(-1) / self.middle)))
        for finer in FINER:
            step = extreme * (F32(-1) / (self.middle + F32(finer)))
            found = found.better(self._fitted(self._codes(step)))
        best: LeastSquares | None = None
        for _ in range(2):
            scale = _as_half(found.scale)
            rounded = self._of_scale(scale, self._codes(scale))
            best = rounded if best is None else best.better(rounded)
            found = self._fitted(self._codes(scale))
        assert best is not None
        self.scale, self.low = best.scale[:, None], best.low[:, None]

    def _codes(self, scale: Floats) -> Floats:
        """Return clip(rint(RN(x·RN(1/scale))), −m, m − 1) + m, m the middle, which is that of 0."""
        inverse = np.where(scale != 0, F32(1) / np.where(scale != 0, scale, F32(1)), F32(0))
        steps = np.rint(self._x * inverse[:, None])
        return np.minimum(np.maximum(steps, -self.middle), self.middle - F32(1)) + self.middle

    def _of_scale(self, scale: Floats, codes: Floats) -> LeastSquares:
        low = -self.middle * scale
        return LeastSquares(scale, low, _error(self._x, codes, scale, low))

    def _fitted(self, codes: Floats) -> LeastSquares:
        """Return the scale of least squares for these codes."""
        steps = codes - self.middle
        scale = _ratio(canonical_sum(steps * self._x), canonical_sum(steps * steps))
        return self._of_scale(scale, codes)

    def codes(self) -> Floats:
        """Return the nearest codes, float32 [n, 32]."""
        return self._codes(self.scale[:, 0])

    def raw(self, codes: Floats) -> Bytes:
        """Return blocks with these codes: uint8 [n, 22]."""
        whole = codes.astype(np.uint8)
        fifth = np.packbits(whole >> 4, axis=1, bitorder="little")
        nibbles = nibbles_of((whole & 15).astype(F32), BLOCK // 2)
        return np.concatenate([_half(self.scale[:, 0]), fifth, nibbles], axis=1)


class SignedNibbles(SignedBlocks):
    """Blocks of Q4_0: as those of Q5_0, (code − 8)·scale, codes 0 … 15."""

    middle, largest = F32(8), LARGEST_CODE

    def raw(self, codes: Floats) -> Bytes:
        """Return blocks with these codes: uint8 [n, 18]."""
        return np.concatenate([_half(self.scale[:, 0]), nibbles_of(codes, BLOCK // 2)], axis=1)


BLOCKS: Mapping[str, tuple[int, type[NarrowBlocks | WideBlocks | SignedBlocks]]] = {
    "Q4_K": (WIDE, WideBlocks),
    "Q4_1": (BLOCK, NarrowBlocks),
    "Q4_0": (BLOCK, SignedNibbles),
    "Q5_0": (BLOCK, SignedBlocks),
}
"""Columns of a block, and what computes it."""


def four_bit_rows(layout: str, values: Floats) -> Bytes:
    """Return rows [n, K] of whole blocks in a layout, uint8 [n, bytes of a row].

    Numbers beyond f16 become infinities, which whoever reads the weight refuses.
    """
    columns, blocks = BLOCKS[layout]
    found = blocks(values.reshape(-1, columns))
    return found.raw(found.codes()).reshape(len(values), -1)
