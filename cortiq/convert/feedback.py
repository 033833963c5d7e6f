"""Error feedback: columns become codes in order, and those behind make up for what is lost.

What a matrix W [N, K] loses on rows with second moments H is the trace of (W − Q)·H·(W − Q)ᵀ.
Scales are chosen first. Then the columns get codes, those of the largest second moments first:
column k of Q is the code nearest to what column k has become by then; its error, over the diagonal
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
from cortiq.numerics.four_bits import BLOCKS
from cortiq.numerics.unpacked_weights import Bytes

DAMPING = 0.01
"""Part of the mean of H's diagonal that is added to it."""
FED_PANEL = 64
"""Columns whose errors reach those behind them together."""


def inverse_factor(
    moments: npt.NDArray[np.float32], scratch: ScratchArrays, order: npt.NDArray[np.intp]
) -> Floats:
    """Return the upper Cholesky factor of the inverse of the damped moments, their rows and columns
    in this order: float32 [K, K].

    A column that no row reaches has a diagonal of zero, and gets 1. With H = R·Rᵀ and R upper
    triangular, the factor is R⁻¹; both are made in place, a panel of columns at a time.
    """
    size = len(moments)
    h, factor = scratch.zeros((size, size), np.float64), scratch.zeros((size, size), F32)
    for cut in panels(size):
        h[cut] = moments[order[cut]][:, order]
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
    """Second moments of the rows that a matrix meets, the columns in the order in which they get
    codes, and the `inverse_factor` of the moments in that order.
    """

    moments: Floats
    order: npt.NDArray[np.intp]
    factor: Floats

    @property
    def weights(self) -> Floats:
        """The weight of every column's squared error: its second moment, and a part of the mean of
        all for columns that the text does not reach.
        """
        diagonal = np.diagonal(self.moments)
        return diagonal + F32(1e-4) * max(diagonal.mean(), F32(1e-30))


def feedback_of(moments: Floats, scratch: ScratchArrays) -> Feedback:
    """Return what codes are chosen by."""
    order = np.argsort(-np.diagonal(moments), kind="stable")
    return Feedback(moments, order, inverse_factor(moments, scratch, order))


class CodeGrid(NamedTuple):
    """Values of rows' codes: code·scale + low, both [n, K], codes from 0 to `largest`, [n]."""

    scale: Floats
    low: Floats
    largest: Floats


def best_rows(layout: str, values: Floats, feedback: Feedback) -> Bytes:
    """Return rows [n, K] of whole blocks in a layout of `four_bits`, each with the codes that lose
    less: uint8 [n, bytes of a row].
    """
    columns, blocks_of = BLOCKS[layout]
    blocks = blocks_of(values.reshape(-1, columns))
    scale, low = (
        np.repeat(p, columns // p.shape[1], axis=1).reshape(values.shape)
        for p in (blocks.scale, blocks.low)
    )
    steps = CodeGrid(scale, low, np.full(len(values), blocks.largest))
    codes = best_codes(values, steps, feedback, blocks.codes().reshape(values.shape))
    return blocks.raw(codes.reshape(-1, columns)).reshape(len(values), -1)


def best_codes(
    values: Floats, steps: CodeGrid, feedback: Feedback, nearest: Floats | None = None
) -> Floats:
    """Return codes of rows, in each row those that lose less of the nearest ones and those with
    errors fed back: float32 [n, K].
    """
    if nearest is None:
        nearest = _nearest(values, steps)
    fed = fed_codes(values, steps, feedback)
    losses = (_loss(values, c * steps.scale + steps.low, feedback.moments) for c in (nearest, fed))
    plain, least = losses
    return np.where((least < plain)[:, None], fed, nearest)


def _loss(values: Floats, found: Floats, moments: Floats) -> Floats:
    """Return what the products of each row lose: float32 [n]."""
    error = values - found
    return np.einsum("ij,ij->i", error @ moments, error)


def _nearest(values: Floats, steps: CodeGrid) -> Floats:
    divisor = np.where(steps.scale != 0, steps.scale, F32(1))
    codes = np.clip(np.rint((values - steps.low) / divisor), F32(0), steps.largest[:, None])
    return np.where(steps.scale != 0, codes, F32(0))


def fed_codes(values: Floats, steps: CodeGrid, feedback: Feedback) -> Floats:
    """Return codes of rows [n, K] with errors fed back, a panel of columns at a time."""
    order, factor = feedback.order, feedback.factor
    scale, low = steps.scale[:, order], steps.low[:, order]
    left, codes = values[:, order], np.empty_like(values)
    for cut in panels(len(order), FED_PANEL):
        own = CodeGrid(scale[:, cut], low[:, cut], steps.largest)
        codes[:, order[cut]], errors = _codes(left[:, cut], own, factor[cut, cut])
        left[:, cut.stop :] -= errors @ factor[cut, cut.stop :]
    return codes


def _codes(values: Floats, steps: CodeGrid, factor: Floats) -> tuple[Floats, Floats]:
    """Return the codes of some columns, and their errors over the factor's diagonal."""
    left = np.ascontiguousarray(values.T)
    codes, errors = np.empty_like(left), np.empty_like(left)
    for k in range(len(left)):
        x = left[k]
        one = CodeGrid(steps.scale[:, k, None], steps.low[:, k, None], steps.largest)
        codes[k] = _nearest(x[:, None], one)[:, 0]
        errors[k] = (x - (codes[k] * steps.scale[:, k] + steps.low[:, k])) / factor[k, k]
        left[k + 1 :] -= factor[k, k + 1 :, None] * errors[k]
    return codes.T, errors.T
