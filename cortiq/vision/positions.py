"""Learned positions of a grid, for grids of other sizes: rows of the table, and their weights."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cortiq.numerics.contract import F32, Floats

Places = npt.NDArray[np.int32]


def bilinear_places(down: int, across: int, side: int) -> tuple[Places, Floats]:
    """Return rows and weights of the corners around each place of a grid: [places, 4].

    The corners of the grid are those of the table of side × side. Along an edge of n places, place
    i is at s = RN(i·(side − 1)/max(n − 1, 1)); the rows ⌊s⌋ and ⌊s⌋ + 1, none past the last, weigh
    RN(1 − (s − ⌊s⌋)) and s − ⌊s⌋. A corner weighs RN of the product of its row's and column's.

    Source: Qwen3-VL.
    """
    rows, columns = (_linear_taps(n, side) for n in (down, across))
    return _products(rows, columns, side)


def _linear_taps(count: int, side: int) -> tuple[Places, Floats]:
    """Return the rows of each place along an edge and their weights, [count, 2]."""
    at = (np.arange(count) * (side - 1)).astype(F32) / F32(max(count - 1, 1))
    first = np.floor(at)
    share = at - first
    taps = np.minimum(first.astype(np.int32)[:, None] + np.arange(2, dtype=np.int32), side - 1)
    return taps, np.stack([F32(1) - share, share], axis=1)


def _products(
    rows: tuple[Places, Floats], columns: tuple[Places, Floats], side: int
) -> tuple[Places, Floats]:
    """Return the places of a table by those of rows and of columns, and products of weights."""
    (y, down), (x, across) = rows, columns
    count = len(y) * len(x)
    places = y[:, None, :, None] * side + x[None, :, None, :]
    weights = down[:, None, :, None] * across[None, :, None, :]
    return places.reshape(count, -1).astype(np.int32), weights.reshape(count, -1).astype(F32)
