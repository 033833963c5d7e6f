"""Scales of least weighted error for encodings of four bits, and rows of codes chosen elsewhere.

What the original engine's encoders do is fixed to the byte, but a file may hold any codes: with
weights for the columns' squared errors, a group's scale is that of least squares for codes near to
one of several steps, and may be negative, which gives the side with one code more to either sign.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from cortiq.formats.cmf.dtypes import GROUP
from cortiq.formats.cmf.encode import Survey, pack_nibbles, pack_widths, with_fixed
from cortiq.formats.cmf.ladder_codes import WantedScales, fitted_ladders
from cortiq.formats.cmf.payloads import Bytes
from cortiq.formats.cmf.scalars import F32, Floats, half_bits, rounded_half, split_groups

FITTED = ("q4_block", "q4_tiled", "q4tp", "vbit", "vbit_ro")
FINER = (1.0, 1.05, 1.15, 1.3)
"""Parts of the step at which the largest value of a group has the last code."""


class FittedRows(NamedTuple):
    """Rows under scales; codes of theirs mean code·scale + low.

    Attributes
    ----------
    scale, low : of the group of every column, [n, K]. largest : code of each row, [n].
    pack : codes, uint8 [n, K], to parts as `encode_rows` returns them.
    """

    scale: Floats
    low: Floats
    largest: Floats
    pack: Callable[[Bytes], list[Bytes]]


def fit_rows(name: str, values: Floats, weights: Floats, found: Survey, start: int) -> FittedRows:
    """Return rows from number `start` on of an encoding of `FITTED`, under the scales found.

    Parameters
    ----------
    weights : of the squared error of every column, [K].
    """
    widths = np.full(len(values), 4, np.int32)
    least = np.full(len(values), -8, F32)
    if found.widths is not None:
        widths = found.widths[start : start + len(values)].astype(np.int32)
        least = F32(1) - (1 << (widths - 1)).astype(F32)
    largest = ((1 << widths) - 1).astype(F32)
    groups = values.shape[1] // GROUP
    low, high = np.repeat(least, groups), np.repeat(least + largest, groups)
    weight = np.tile(weights.reshape(-1, GROUP), (len(values), 1))
    scale = _scales(split_groups(values), weight, low, high, signed=name != "q4tp")
    scale = scale.reshape(len(values), groups)
    rest: list[Bytes] = []
    if name == "q4tp":
        scale, rest = fitted_ladders(values, WantedScales(scale, weights))

    def pack(codes: Bytes) -> list[Bytes]:
        if name == "q4tp":
            return [pack_nibbles(codes.reshape(-1, GROUP)).reshape(-1), *rest]
        halves = half_bits(scale).view(np.uint8)
        if found.widths is not None:
            return with_fixed([halves.reshape(-1), pack_widths(codes, widths)], found, start)
        parts = [pack_nibbles(codes.reshape(-1, GROUP)), halves.reshape(-1, 2)]
        if name == "q4_tiled":
            parts = [np.concatenate(parts[::-1], axis=1)]
        return [part.reshape(-1) for part in parts]

    wide = np.repeat(scale, GROUP, axis=1)
    return FittedRows(wide, wide * least[:, None], largest, pack)


def _scales(x: Floats, weights: Floats, least: Floats, most: Floats, signed: bool) -> Floats:
    """Return the f16 scale of least weighted error found for each group: [n] of [n, 32].

    Parameters
    ----------
    least, most : codes of each group, [n]. signed : whether a scale may be negative.
    """
    low, high = x.min(axis=1), x.max(axis=1)
    extreme = np.where(-low >= high, low, high)
    end = np.where(-least > most, least, most)
    if not signed:
        end = np.where(extreme < 0, least, most)
    best, chosen = np.full(len(x), np.inf, F32), np.zeros(len(x), F32)
    for finer in FINER:
        scale = rounded_half(extreme / (end * F32(finer)))
        for _ in range(2):
            codes = _nearest(x, scale, least, most)
            off = codes * scale[:, None] - x
            error = np.einsum("ij,ij->i", off * off, weights)
            better = error < best
            best, chosen = np.where(better, error, best), np.where(better, scale, chosen)
            weighed = codes * weights
            whole = np.einsum("ij,ij->i", weighed, codes)
            found = np.einsum("ij,ij->i", weighed, x) / np.where(whole > 0, whole, F32(1))
            scale = rounded_half(found)
    return chosen


def _nearest(x: Floats, scale: Floats, least: Floats, most: Floats) -> Floats:
    """Return the codes of groups [n, 32] under scales [n], 0 where the scale is."""
    inverse = np.where(scale != 0, F32(1) / np.where(scale != 0, scale, F32(1)), F32(0))
    return np.clip(np.rint(x * inverse[:, None]), least[:, None], most[:, None])
