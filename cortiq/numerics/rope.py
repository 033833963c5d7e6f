"""Rotary position embedding: tables with the same bits on every machine, and their application.

No power, sine or cosine of a math library is used. Frequencies come from `rope_scaling`; phases are
64-bit fractions of a turn; sine and cosine are Taylor polynomials on ±⅛ turn in float64 with + and
× only, rounded once to float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Decimal, localcontext
from functools import cached_property
from math import factorial
from typing import Annotated

import numpy as np
import numpy.typing as npt

from cortiq.domains import Count, Integer, Real, Relation, Size, require
from cortiq.errors import GraphError, UnsupportedError
from cortiq.numerics import rope_scaling
from cortiq.numerics.contract import F32, Flags, Floats, snap
from cortiq.numerics.rope_scaling import PI, PRECISION, Default, Growth, Scaling

PAIRINGS = ("half", "interleaved")
MAX_DIM = 1 << 16
"""Rotary dimensions at most: a table takes work for each, and no model has a hundredth of them."""
CHUNK = 1024
"""Positions that a cached table grows by; a position's values do not depend on it."""
TABLE_MAX_ERROR = 2.0**-25 * 1.001
"""Largest |error| of a table entry of amplitude 1, positions below 2²⁰: half an ulp of a value in
[½, 1), and the float64 evaluation before it."""

EIGHTH, QUARTER = np.uint64(1 << 61), np.uint64(62)
RADIANS = float(2 * PI) * 2.0**-55
"""Radians in one unit of a phase remainder that has lost its lowest 9 bits."""
SINE_TERMS = tuple((-1) ** k / factorial(2 * k + 1) for k in range(8, -1, -1))
COSINE_TERMS = tuple((-1) ** k / factorial(2 * k) for k in range(9, -1, -1))

Doubles = npt.NDArray[np.float64]


def taylor(z: Doubles, terms: tuple[float, ...]) -> Doubles:
    """Evaluate a polynomial by Horner's rule in float64, highest power first."""
    y = np.full_like(z, terms[0])
    for term in terms[1:]:
        y = y * z + term
    return y


def turn(phase: npt.NDArray[np.uint64]) -> tuple[Floats, Floats]:
    """Return (cos, sin) of 2π·phase/2⁶⁴, rounded to float32.

    q = (phase + 2⁶¹) >> 62 is the nearest quarter turn; r = phase − q·2⁶² as a signed integer;
    x = float64(r >> 9)·RADIANS, z = x·x; sine x·Taylor(z), cosine Taylor(z); q swaps and negates.
    """
    quarter = (phase + EIGHTH) >> QUARTER
    rest = (phase - (quarter << QUARTER)).view(np.int64)
    x = (rest >> np.int64(9)).astype(np.float64) * RADIANS
    z = x * x
    sine, cosine = taylor(z, SINE_TERMS) * x, taylor(z, COSINE_TERMS)
    quarter = quarter & np.uint64(3)
    odd = (quarter & np.uint64(1)) == 1
    cos, sin = np.where(odd, sine, cosine), np.where(odd, cosine, sine)
    cos = np.where((quarter == 1) | (quarter == 2), -cos, cos)
    sin = np.where(quarter >= 2, -sin, sin)
    return cos.astype(F32), sin.astype(F32)


@dataclass(frozen=True)
class RopeTable:
    """Cosines and sines of a rotary embedding, by absolute position.

    Parameters
    ----------
    base : θ, the base of the frequencies.
    dim : rotary dimensions, even; the rest of a head passes through.
    scaling : one of the classes of `rope_scaling`.
    lag : a row at position p turns by the angles of p − lag: of the first row that an entry stands
        for.
    inverse : turns back, by the negative angles.
    """

    base: Annotated[float, Real(1, math.inf, above=True, below=True, single=False)]
    dim: Annotated[int, Integer(2, MAX_DIM, multiple=2)]
    scaling: Scaling = field(default_factory=Default)
    lag: Size = 0
    inverse: bool = False
    relations = (
        Relation(
            ("scaling", "lag"), "an amplitude that grows does so with the position itself",
            lambda table: not (table.lag and isinstance(table.scaling, Growth)),
        ),
    )  # fmt: skip

    def __repr__(self) -> str:
        """Show `lag` and `inverse` where they are set: names of cases hold the text."""
        more = f", lag={self.lag}, inverse={self.inverse}" if self.lag or self.inverse else ""
        return f"RopeTable(base={self.base}, dim={self.dim}, scaling={self.scaling}{more})"

    def __post_init__(self) -> None:
        require(self, GraphError, "rotary table")

    def check(self) -> None:
        """Raise `UnsupportedError` now, not at the first row, if the parameters define no table."""
        exact = rope_scaling.amplitude(self.scaling)
        if not Decimal(2) ** -40 <= exact < Decimal(2) ** 50 or not len(self.phase_steps):
            what = f"cosines and sines would be multiplied by {exact:.6g}"
            raise UnsupportedError(what, where="rope scaling")
        grows = self.scaling if isinstance(self.scaling, Growth) else Growth(Default(), 0.0, 1)
        if not (grows.every > 0 <= min(grows.beta, grows.ahead)):
            what = f"an amplitude grows by {grows.beta} every {grows.every} positions"
            what += f", from {-grows.ahead} on"
            raise UnsupportedError(what, where="rope scaling")

    def follows(self) -> bool:
        """Return whether the parameters define a table: whether `check` raises nothing."""
        try:
            self.check()
        except UnsupportedError:
            return False
        return True

    @cached_property
    def phase_steps(self) -> npt.NDArray[np.uint64]:
        """Turns a position, modulo 1, as round(turns·2⁶⁴): uint64 [dim/2]."""
        with localcontext(PRECISION):
            turns = [f / (2 * PI) for f in self.frequencies]
            parts = [t - t.to_integral_value(ROUND_FLOOR) for t in turns]
            steps = [int((part * 2**64).to_integral_value(ROUND_HALF_EVEN)) for part in parts]
        return np.array([step % 2**64 for step in steps], np.uint64)

    @cached_property
    def frequencies(self) -> list[Decimal]:
        """Radians a position, for each pair, to 60 digits."""
        return rope_scaling.frequencies(self.base, self.dim, self.scaling)

    @cached_property
    def amplitude(self) -> np.float32:
        """Factor of cosines and sines."""
        return F32(float(rope_scaling.amplitude(self.scaling)))

    def compute(self, positions: npt.ArrayLike) -> tuple[Floats, Floats]:
        """Return (cos, sin), float32 [n, dim/2], of the positions: snap(RN(value·amplitude)).

        With `Growth` the amplitude is RN(amplitude·(1 + beta·ln(1 + ⌊(position + ahead)/every⌋))).

        The phase is (position − lag)·phase_steps modulo 2⁶⁴; an `inverse` table's sines have the
        other sign; with amplitude 1 nothing is multiplied.
        """
        where = np.asarray(positions, np.uint64)[:, None]
        cos, sin = turn((where - np.uint64(self.lag)) * self.phase_steps)
        sin = -sin if self.inverse else sin
        amplitude = self._amplitudes(where)
        if np.any(amplitude != 1):
            cos, sin = cos * amplitude, sin * amplitude
        return snap(cos), snap(sin)

    def _amplitudes(self, where: npt.NDArray[np.uint64]) -> Floats:
        """Return the factor of each position's values, [n, 1]: one for all without `Growth`."""
        if not isinstance(self.scaling, Growth):
            return np.full((1, 1), self.amplitude, F32)
        ahead, every = np.uint64(self.scaling.ahead), np.uint64(self.scaling.every)
        steps, place = np.unique((where + ahead) // every, return_inverse=True)
        return self._grown(steps)[place].reshape(where.shape)

    def _grown(self, steps: npt.NDArray[np.uint64]) -> Floats:
        """Return RN(amplitude·growth) of each step."""
        exact = (rope_scaling.amplitude(self.scaling, int(step)) for step in steps)
        return np.array([float(value) for value in exact], F32)

    def table(self, positions: npt.ArrayLike) -> tuple[Floats, Floats]:
        """Return the values of `compute` from a table that grows by `CHUNK` positions as needed.

        Parameters
        ----------
        positions : integers [n], at least 0.
        """
        wanted = np.asarray(positions, np.int64)
        chunks, rows = np.divmod(wanted, CHUNK)
        cos = np.empty((len(wanted), self.dim // 2), F32)
        sin = np.empty_like(cos)
        for chunk in np.unique(chunks):
            here = chunks == chunk
            known = self._chunk(int(chunk))
            cos[here], sin[here] = known[0][rows[here]], known[1][rows[here]]
        return cos, sin

    @cached_property
    def _chunks(self) -> dict[int, tuple[Floats, Floats]]:
        return {}

    def _chunk(self, index: int) -> tuple[Floats, Floats]:
        if index not in self._chunks:
            self._chunks[index] = self.compute(np.arange(index * CHUNK, (index + 1) * CHUNK))
        return self._chunks[index]


@dataclass(frozen=True)
class Sections:
    """Axes of a position by pair: rotary embedding of time, height and width.

    Parameters
    ----------
    pairs : pairs of each axis.
    interleaved : axis a > 0 takes the pairs a, a + n, a + 2n, … (n axes) as long as it has any,
        axis 0 all others; otherwise the axes' pairs follow one another.

    Raises
    ------
    GraphError : an axis has no pairs, or interleaved ones do not fit.

    Source: Qwen2-VL ("multimodal rotary position embedding"); interleaved as in Qwen3-VL.
    """

    pairs: tuple[Count, ...]
    interleaved: bool = False
    relations = (
        Relation(("pairs",), "there is an axis", lambda s: bool(s.pairs)),
        Relation(
            ("pairs", "interleaved"), "interleaved axes end within all pairs", lambda s: s.fits()
        ),
    )

    def __post_init__(self) -> None:
        require(self, GraphError, "rotary sections")

    def fits(self) -> bool:
        """Return whether the axes' pairs lie within all of them."""
        reach = [axis + self.count * (n - 1) for axis, n in enumerate(self.pairs) if axis]
        return not self.interleaved or max(reach, default=0) < sum(self.pairs)

    @property
    def count(self) -> int:
        """Number of axes of a position."""
        return len(self.pairs)

    @cached_property
    def axes(self) -> npt.NDArray[np.int64]:
        """The axis of each pair."""
        if not self.interleaved:
            return np.repeat(np.arange(self.count), self.pairs)
        found = np.zeros(sum(self.pairs), np.int64)
        for axis, pairs in enumerate(self.pairs[1:], 1):
            found[axis : axis + self.count * pairs : self.count] = axis
        return found

    def table(self, table: RopeTable, positions: npt.ArrayLike) -> tuple[Floats, Floats]:
        """Return (cos, sin), float32 [n, dim/2], of positions [n, axes]: each pair from its axis's
        row.
        """
        where = np.asarray(positions, np.int64)
        rows = [table.table(where[:, axis]) for axis in range(self.count)]
        cos, sin = (np.stack(parts, axis=-1) for parts in zip(*rows, strict=True))
        picked = self.axes[None, :, None]
        return tuple(np.take_along_axis(x, picked, axis=-1)[..., 0] for x in (cos, sin))  # type: ignore[return-value]


def apply_rope(
    x: Floats, cos: Floats, sin: Floats, pairing: str = "half", faults: Flags | None = None
) -> Floats:
    """Turn the pairs (a, b) of each head by their row's angles; one primitive.

    a' = RN(RN(a·cos) − RN(b·sin)); b' = RN(RN(b·cos) + RN(a·sin)); snap. With n = dim/2 pairs,
    "half" pairs element i with i + n, "interleaved" 2i with 2i + 1; elements from 2n on pass
    through, and every element stays in its place.

    Parameters
    ----------
    x : float32 [rows, heads, width], canonical, width ≥ 2n.
    cos, sin : float32 [rows, n].
    pairing : one of `PAIRINGS`.
    faults : bool [rows], see `snap`.
    """
    if pairing not in PAIRINGS:
        raise GraphError(f"no rotary pairing is called {pairing!r}", hint=f"one of {PAIRINGS}")
    x = np.asarray(x, F32)
    pairs = cos.shape[-1]
    if 2 * pairs > x.shape[-1]:
        raise GraphError(f"{2 * pairs} rotary dimensions in heads of {x.shape[-1]}")
    half = pairing == "half"
    first = slice(0, pairs) if half else slice(0, 2 * pairs, 2)
    second = slice(pairs, 2 * pairs) if half else slice(1, 2 * pairs, 2)
    a, b = x[..., first], x[..., second]
    cos, sin = cos[:, None, :], sin[:, None, :]
    y = x.copy()
    y[..., first] = a * cos - b * sin
    y[..., second] = b * cos + a * sin
    return snap(y, faults)
