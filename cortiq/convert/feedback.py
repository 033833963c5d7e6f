"""Error feedback: columns become codes in order, and those behind make up for what is lost.

What a matrix W [N, K] loses on rows with second moments H is the trace of (W − Q)·H·(W − Q)ᵀ.
Column k of Q is the code nearest to what column k has become by then; its error, over the diagonal
of the upper Cholesky factor of H⁻¹, is taken off the columns behind it by that factor's row. Source
of the method: Frantar and others, GPTQ (2022), arXiv 2210.17323. Rows that lose less with the
nearest codes of all columns keep those: rows of a file that has four bits already lose nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cortiq.convert.scratch import ScratchArrays, panels
from cortiq.numerics.contract import F32, Floats
from cortiq.numerics.dequantise import dequantise_codes
from cortiq.numerics.four_bits import BLOCKS, four_bit_rows
from cortiq.numerics.layouts import LAYOUTS, Weight, raw_fields
from cortiq.numerics.unpacked_weights import Bytes, fold

DAMPING = 0.01
"""Part of the mean of H's diagonal that is added to it."""


def inverse_factor(moments: npt.NDArray[np.float32], scratch: ScratchArrays) -> Floats:
    """Return the upper Cholesky factor of the damped moments' inverse: float32 [K, K].

    A column that no row reaches has a diagonal of zero, and gets 1. With H = R·Rᵀ and R upper
    triangular, the factor is R⁻¹; both are made in place, a panel of columns at a time.
    """
    size = len(moments)
    h, factor = scratch.zeros((size, size), np.float64), scratch.zeros((size, size), F32)
    for cut in panels(size):
        h[cut] = moments[cut]
    diagonal = np.diagonal(h)
    dead = diagonal <= 0
    damping = DAMPING * float(diagonal.mean()) if not dead.all() else 1.0
    h[np.diag_indices(size)] += np.where(dead, 1.0, damping)
    _factorise(h)
    _invert(h)
    for cut in panels(size):
        factor[cut] = h[cut]
    return factor


def _factorise(h: npt.NDArray[np.float64]) -> None:
    """Replace a symmetric matrix by the upper triangular R with H = R·Rᵀ."""
    for cut in reversed(list(panels(len(h)))):
        own = np.linalg.cholesky(h[cut, cut][::-1, ::-1])[::-1, ::-1]
        above = np.linalg.solve(own, h[: cut.start, cut].T).T
        h[cut, cut], h[: cut.start, cut], h[cut, : cut.start] = own, above, 0
        for rows in panels(cut.start):
            h[rows, : cut.start] -= above[rows] @ above.T


def _invert(r: npt.NDArray[np.float64]) -> None:
    """Replace an upper triangular matrix by its inverse."""
    for cut in panels(len(r)):
        own = np.triu(np.linalg.inv(r[cut, cut]))
        above = r[: cut.start, : cut.start] @ r[: cut.start, cut]
        r[: cut.start, cut], r[cut, cut] = -(above @ own), own


class Feedback(NamedTuple):
    """Second moments of the rows that a matrix meets, and their `inverse_factor`."""

    moments: Floats
    factor: Floats


def feedback_of(moments: Floats, scratch: ScratchArrays) -> Feedback:
    """Return what codes are chosen by."""
    return Feedback(moments, inverse_factor(moments, scratch))


def best_rows(layout: str, values: Floats, feedback: Feedback) -> Bytes:
    """Return rows [n, K] of whole blocks in a layout of `four_bits`, each with the codes that lose
    less: uint8 [n, bytes of a row].
    """
    found = [four_bit_rows(layout, values), rows_with_feedback(layout, values, feedback.factor)]
    plain, fed = (_loss(layout, values, raw, feedback.moments) for raw in found)
    return np.where((fed < plain)[:, None], found[1], found[0])


def _loss(layout: str, values: Floats, raw: Bytes, moments: Floats) -> Floats:
    """Return what the products of each row lose: float32 [n]."""
    weight = Weight.from_bytes(LAYOUTS[layout], raw, values.shape)
    error = values - dequantise_codes(fold(raw_fields(weight)), np.zeros(len(values), np.bool_))
    return np.einsum("ij,ij->i", error @ moments, error)


def rows_with_feedback(layout: str, values: Floats, factor: Floats) -> Bytes:
    """Return rows [n, K] with errors fed back: uint8 [n, bytes of a row]."""
    columns, blocks = BLOCKS[layout]
    left = values.copy()
    found = []
    for start in range(0, values.shape[1], columns):
        stop = start + columns
        block = blocks(np.ascontiguousarray(left[:, start:stop]))
        scale, low = (np.repeat(p, columns // p.shape[1], axis=1) for p in (block.scale, block.low))
        part = factor[start:stop, start:stop]
        codes, errors = _codes(left[:, start:stop], scale, low, part, block.largest)
        left[:, stop:] -= errors @ factor[start:stop, stop:]
        found.append(block.raw(codes))
    return np.concatenate(found, axis=1)


def _codes(
    values: Floats, scale: Floats, low: Floats, factor: Floats, largest: np.float32
) -> tuple[Floats, Floats]:
    """Return the codes of a block's columns, and their errors over the factor's diagonal."""
    left, codes, errors = values.copy(), np.empty_like(values), np.empty_like(values)
    for k in range(values.shape[1]):
        x, d = left[:, k], scale[:, k]
        steps = np.rint((x - low[:, k]) / np.where(d != 0, d, F32(1)))
        codes[:, k] = np.where(d != 0, np.clip(steps, F32(0), largest), F32(0))
        errors[:, k] = (x - (codes[:, k] * d + low[:, k])) / factor[k, k]
        left[:, k + 1 :] -= errors[:, k, None] * factor[k, k + 1 :]
    return codes, errors
