"""Encoders of q4tp and q2tp: a ladder of 32 scales for a row, and a rung of it for every group."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cortiq.formats.cmf.dtypes import GROUP
from cortiq.formats.cmf.payloads import Bytes
from cortiq.formats.cmf.powers import ladders, log2_table
from cortiq.formats.cmf.scalars import F32, Floats, floored, half_bits, rounded_half, split_groups

TOPS = tuple(F32(part) for part in (1.0, 0.9, 0.8, 0.7))
"""Parts of the span of a row's scales that q2tp's ladders are tried over."""
BUMPS = 64
Halves = npt.NDArray[np.uint16]


class WantedScales(NamedTuple):
    """Scales that groups would have without a ladder, [n, groups], and the weight of the squared
    error of every column, [K].
    """

    scale: Floats
    weights: Floats


class _Rows:
    """Rows whose ladders are sought.

    Attributes
    ----------
    tiles : groups, one a column: [32, n·groups]. logs, dead : [n, groups].
    low, high : ends of the logarithms of a row's live groups.
    """

    def __init__(self, values: Floats, four_bits: bool, wanted: WantedScales | None = None) -> None:
        self.four_bits = four_bits
        self.groups = values.shape[1] // GROUP
        self.steps = 31 if four_bits else 30
        groups = split_groups(values)
        self.tiles = np.ascontiguousarray(groups.T)
        largest = np.abs(groups).max(axis=1).reshape(-1, self.groups)
        self.dead = largest == 0
        scale = floored(largest / F32(7 if four_bits else 1.5) if wanted is None else wanted.scale)
        self._weights = None if wanted is None else wanted.weights.reshape(-1, GROUP).T
        self.logs = log2_table()[half_bits(scale)]
        low = np.where(self.dead, F32(np.inf), self.logs).min(axis=1)
        high = np.where(self.dead, F32(-np.inf), self.logs).max(axis=1)
        empty = self.dead.all(axis=1)
        low, self.high = (np.where(empty, self.logs[:, 0], end) for end in (low, high))
        self.low_bits = half_bits(low)
        self.low = rounded_half(low)

    def parameters(self, top: Floats) -> Halves:
        """Return lo and step of ladders that reach these tops: uint16 [n, 2]."""
        span = np.maximum(top - self.low, F32(0))
        step = half_bits(span / F32(self.steps))
        for _ in range(BUMPS):
            size = step.view("<f2").astype(F32)
            short = ~((size > 0) & (self.low + F32(self.steps) * size >= top))
            if not short.any():
                break
            step = step + short.astype(np.uint16)
        return np.stack([self.low_bits, step], axis=1)

    def nominal(self, parameters: Halves) -> npt.NDArray[np.intp]:
        """Return the rung nearest to each group's logarithm: [n, groups]."""
        step = parameters[:, 1:].copy().view("<f2").astype(F32)
        with np.errstate(divide="ignore", invalid="ignore"):
            rung = np.clip(np.rint((self.logs - self.low[:, None]) / step), 0, self.steps)
        first = 0 if self.four_bits else 1
        rung = np.where(step > 0, rung, 0).astype(np.intp) + first
        return np.where(self.dead, 0, rung)

    def codes(self, scale: Floats) -> Floats:
        """Return the codes of all groups under a scale each: [32, n·groups]; scales above 0."""
        inverse = F32(1) / scale
        if self.four_bits:
            return np.clip(np.rint(self.tiles * inverse), F32(-8), F32(7))
        return np.clip(np.rint(self.tiles * inverse + F32(1.5)), F32(0), F32(3))

    def errors(self, ladder: Floats, rung: npt.NDArray[np.intp]) -> Floats:
        """Return the sum of squared errors of every group on a rung: [n, groups]."""
        scale = np.take_along_axis(ladder, rung, axis=1).reshape(-1)
        usable = scale > 0
        scale = np.where(usable, scale, F32(1))
        middle = F32(0 if self.four_bits else 1.5)
        total = np.zeros(len(scale), F32)
        with np.errstate(over="ignore"):
            for at, (tile, code) in enumerate(zip(self.tiles, self.codes(scale), strict=True)):
                error = tile - (code - middle) * scale
                square = error * error
                if self._weights is not None:
                    square = square * np.tile(self._weights[at], len(rung))
                total = total + square
        return np.where(usable, total, F32(np.inf)).reshape(rung.shape)

    def search(
        self, ladder: Floats, nominal: npt.NDArray[np.intp], above: int
    ) -> tuple[npt.NDArray[np.intp], Floats]:
        """Return the rung of least error from two below the nominal one on, and the error."""
        least, most = (0, 31) if self.four_bits else (1, 31)
        best = np.full(nominal.shape, np.inf, F32)
        chosen = nominal.copy()
        for offset in range(-2, above + 1):
            rung = nominal + offset
            inside = (rung >= least) & (rung <= most)
            error = self.errors(ladder, np.clip(rung, least, most))
            better = inside & (error < best)
            best, chosen = np.where(better, error, best), np.where(better, rung, chosen)
        return np.where(self.dead, 0, chosen), best


def _best_tops(rows: _Rows) -> Floats:
    """Return the top of each row's ladder on which it loses least; the first of several."""
    best, chosen = np.full(len(rows.low), np.inf, F32), rows.high.copy()
    for part in TOPS:
        top = rows.low + (rows.high - rows.low) * part
        parameters = rows.parameters(top)
        ladder = ladders(parameters, zero_first=True)
        _, errors = rows.search(ladder, np.maximum(rows.nominal(parameters), 1), above=2)
        total = np.zeros(len(top), F32)
        for column in np.where(rows.dead, F32(0), errors).T:
            total = total + column
        better = (total < best) & (rows.high > rows.low)
        best, chosen = np.where(better, total, best), np.where(better, top, chosen)
    return chosen


def ladder_rows(values: Floats, four_bits: bool) -> list[Bytes]:
    """Return rows in q4tp, or in q2tp: codes, parameters of ladders, packed rungs."""
    rows = _Rows(values, four_bits)
    parameters = rows.parameters(rows.high if four_bits else _best_tops(rows))
    ladder = ladders(parameters, zero_first=not four_bits)
    rung, _ = rows.search(ladder, rows.nominal(parameters), above=1)
    scale = np.take_along_axis(ladder, rung, axis=1).reshape(-1)
    live = scale > 0
    codes = rows.codes(np.where(live, scale, F32(1)))
    if four_bits:
        nibbles = (np.where(live, codes, F32(0)) + F32(8)).astype(np.uint8)
        packed = (nibbles[0::2] | nibbles[1::2] << 4).T
    else:
        twos = np.where(live, codes, F32(2)).astype(np.uint8)
        packed = (twos[0::4] | twos[1::4] << 2 | twos[2::4] << 4 | twos[3::4] << 6).T
    return [np.ascontiguousarray(packed).reshape(-1), *_ladder_parts(parameters, rung)]


def fitted_ladders(values: Floats, wanted: WantedScales) -> tuple[Floats, list[Bytes]]:
    """Return the scale of every group of rows in q4tp, [n, groups], 0 of one without a usable one,
    and the parts of the tensor behind its codes.
    """
    rows = _Rows(values, True, wanted)
    parameters = rows.parameters(rows.high)
    ladder = ladders(parameters)
    rung, _ = rows.search(ladder, rows.nominal(parameters), above=2)
    return np.take_along_axis(ladder, rung, axis=1), _ladder_parts(parameters, rung)


def _ladder_parts(parameters: Halves, rung: npt.NDArray[np.intp]) -> list[Bytes]:
    return [parameters.astype("<u2").view(np.uint8).reshape(-1), _packed_rungs(rung)]


def _packed_rungs(rung: npt.NDArray[np.intp]) -> Bytes:
    """Return five bits a group, the lowest first, rows of whole bytes."""
    bits = np.unpackbits(rung.astype(np.uint8)[..., None], axis=2, bitorder="little")[..., :5]
    return np.packbits(bits.reshape(len(rung), -1), axis=1, bitorder="little").reshape(-1)
