"""Floats to four bits: blocks of Q4_K and Q4_1 with the least squares error that a search finds.

A block of 32 is code·scale + low, with codes 0 … 15. Steps a little finer or coarser than the
block's range are tried; for the codes of each, scale and low are those of least squares. Q4_K keeps
both as integers of six bits under two f16 numbers of 256 columns: integers one beside the nearest
are tried too, then the f16 numbers of least squares. Everything is float32 in a written order, on
blocks brought near 1 by a power of two, so that the same floats give the same bytes on every
machine, flushing to zero or not.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cortiq.numerics.blockquants import BLOCK
from cortiq.numerics.contract import F32, Floats, magnitude_bits, snap
from cortiq.numerics.kquants import BLOCK as WIDE
from cortiq.numerics.sums import canonical_sum
from cortiq.numerics.unpacked_weights import Bytes, half_to_float

FINER = (-1.0, -0.5, 0.0, 0.5)
"""What is added to the 15 steps of a block's range."""
LARGEST_CODE, LARGEST_PART = F32(15), F32(63)
SUBS = WIDE // BLOCK
NEIGHBOURS = tuple((a, b) for a in (0, -1, 1) for b in (0, -1, 1))
"""What is added to a block's integers."""


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
    off = snap((codes * scale[..., None] + low[..., None]) - x)
    return canonical_sum(off * off)


def _fitted(x: Floats, codes: Floats, negative: bool) -> LeastSquares:
    """Return scale and low of least squares for these codes; with `negative`, low at most 0."""
    count = F32(x.shape[-1])
    c, cc = canonical_sum(codes), canonical_sum(codes * codes)
    t, ct = canonical_sum(x), canonical_sum(codes * x)
    spread = count * cc - c * c
    scale, low = _ratio(count * ct - c * t, spread), _ratio(t * cc - c * ct, spread)
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


class _Unit:
    """Powers of two that bring the largest of each group of columns, [..., n], into [1, 2)."""

    def __init__(self, x: Floats) -> None:
        exponents = magnitude_bits(x).max(axis=-1) >> 23
        exponents = np.where(exponents == 0, np.int32(127), exponents)
        self.size = (exponents << 23).view(F32)
        self.inverse = ((np.int32(254) - exponents) << 23).view(F32)

    def half(self, values: Floats) -> Bytes:
        """Return numbers in this unit as f16 byte pairs: uint8 [..., 2]."""
        with np.errstate(over="ignore"):
            return (values * self.size).astype("<f2")[..., None].view(np.uint8)

    def as_half(self, values: Floats) -> Floats:
        """Return numbers in this unit rounded to f16, but for those that have none."""
        halves = half_to_float(self.half(values))[..., 0]
        return np.where(np.isfinite(halves), halves * self.inverse, values)


def _nibbles(codes: Floats, run: int) -> Bytes:
    """Pack codes [..., 2·run]: the first run in low nibbles, the second in high ones."""
    whole = codes.astype(np.uint8)
    return whole[..., :run] | (whole[..., run:] << np.uint8(4))


def q4_1(values: Floats) -> Bytes:
    """Return rows [n, K] of whole blocks of 32 as Q4_1, uint8 [n, K/32·20].

    A scale or low beyond f16 becomes an infinity, which whoever reads the weight refuses.
    """
    x = values.reshape(len(values), -1, BLOCK)
    unit = _Unit(x)
    x = snap(x * unit.inverse[..., None])
    best: LeastSquares | None = None
    found = fit(x, negative=False)
    for _ in range(2):
        scale, low = unit.as_half(found.scale), unit.as_half(found.low)
        codes = _codes(x, scale, low)
        rounded = LeastSquares(scale, low, _error(x, codes, scale, low))
        best = rounded if best is None else best.better(rounded)
        found = _fitted(x, codes, negative=False)
    assert best is not None
    codes = _nibbles(_codes(x, best.scale, best.low), BLOCK // 2)
    raw = np.concatenate([unit.half(best.scale), unit.half(best.low), codes], axis=-1)
    return raw.reshape(len(values), -1)


class _WideBlocks:
    """Blocks of 256: d, dmin [n], integers [n, 8], and floats to come near, [n, 8, 32] of [n, 256];
    all in a block's own unit.
    """

    def __init__(self, values: Floats) -> None:
        self.unit = _Unit(values)
        self.x = snap((values * self.unit.inverse[:, None]).reshape(-1, SUBS, BLOCK))
        found = fit(self.x, negative=True)
        self.d = self.unit.as_half(found.scale.max(axis=-1) * (F32(1) / LARGEST_PART))
        self.dmin = self.unit.as_half((-found.low).max(axis=-1) * (F32(1) / LARGEST_PART))
        self.scales = self._integers(found.scale, self.d)
        self.minima = self._integers(-found.low, self.dmin)
        self._try_neighbours()
        self._fit_halves()

    def _integers(self, values: Floats, unit: Floats) -> Floats:
        return np.minimum(np.rint(_ratio(values, np.broadcast_to(unit[:, None], values.shape))),
                          LARGEST_PART)  # fmt: skip

    def codes(self) -> Floats:
        """Return the nearest codes, float32 [n, 8, 32]."""
        return _codes(self.x, *self._floats(self.d, self.dmin, self.scales, self.minima))

    @staticmethod
    def _floats(d: Floats, dmin: Floats, scales: Floats, minima: Floats) -> tuple[Floats, Floats]:
        return d[:, None] * scales, -(dmin[:, None] * minima)

    def _error_of(self, *parts: Floats) -> Floats:
        scale, low = self._floats(*parts)
        return _error(self.x, _codes(self.x, scale, low), scale, low)

    def _try_neighbours(self) -> None:
        """Take for each block the integers with the least error, of those beside the nearest."""
        best: LeastSquares | None = None
        for a, b in NEIGHBOURS:
            pair = [np.minimum(np.maximum(part + F32(step), F32(0)), LARGEST_PART)
                    for part, step in ((self.scales, a), (self.minima, b))]  # fmt: skip
            found = LeastSquares(*pair, self._error_of(self.d, self.dmin, *pair))
            best = found if best is None else best.better(found)
        assert best is not None
        self.scales, self.minima = best.scale, best.low

    def _fit_halves(self) -> None:
        """Take d and dmin of least squares for these codes, where that lowers the error."""
        n = len(self.x)
        a = (self.codes() * self.scales[..., None]).reshape(n, -1)
        b = np.repeat(-self.minima, BLOCK, axis=1)
        x = self.x.reshape(n, -1)
        aa, ab, bb, ax, bx = (canonical_sum(p * q) for p, q in
                              ((a, a), (a, b), (b, b), (a, x), (b, x)))  # fmt: skip
        spread = aa * bb - ab * ab
        d = np.where(spread > 0, _ratio(ax * bb - bx * ab, spread), _ratio(ax, aa))
        dmin = _ratio(bx * aa - ax * ab, spread)
        d, dmin = (self.unit.as_half(np.maximum(part, F32(0))) for part in (d, dmin))
        old, new = (
            canonical_sum(self._error_of(*pair, self.scales, self.minima))
            for pair in ((self.d, self.dmin), (d, dmin))
        )
        better = new < old
        self.d, self.dmin = np.where(better, d, self.d), np.where(better, dmin, self.dmin)


def _six_bits(scales: Bytes, minima: Bytes) -> Bytes:
    """Pack eight 6-bit scales and minima [n, 8] as Q4_K does, uint8 [n, 12]."""
    early = scales[:, :4] | (scales[:, 4:] >> 4 << 6)
    late = minima[:, :4] | (minima[:, 4:] >> 4 << 6)
    return np.concatenate([early, late, scales[:, 4:] & 15 | (minima[:, 4:] & 15) << 4], axis=1)


def q4_k(values: Floats) -> Bytes:
    """Return rows [n, K] of whole blocks of 256 as Q4_K, uint8 [n, K/256·144].

    Numbers beyond f16 become infinities, which whoever reads the weight refuses.
    """
    blocks = _WideBlocks(values.reshape(-1, WIDE))
    parts = [part.astype(np.uint8) for part in (blocks.scales, blocks.minima)]
    codes = _nibbles(blocks.codes().reshape(-1, SUBS // 2, 2 * BLOCK), BLOCK)
    halves = [blocks.unit.half(blocks.d), blocks.unit.half(blocks.dmin)]
    raw = np.concatenate([*halves, _six_bits(*parts), codes.reshape(-1, WIDE // 2)], axis=1)
    return raw.reshape(len(values), -1)
