"""Learned positions of a grid, for grids of other sizes: rows of the table, and their weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.numerics.contract import F32, Floats
from cortiq.numerics.pixels import cubic_taps, triangle

Places = npt.NDArray[np.int32]


def nearest_places(down: int, across: int, side: int) -> Places:
    """Return the row of the table of each place of a grid: [places].

    Along an edge of n places, place i has the row ⌊i·side/n⌋ of the table's edge.

    Source: MiniCPM-V.
    """
    rows, columns = (np.arange(n) * side // n for n in (down, across))
    return (rows[:, None] * side + columns).reshape(-1).astype(np.int32)


def bilinear_places(down: int, across: int, side: int) -> tuple[Places, Floats]:
    """Return rows and weights of the corners around each place of a grid: [places, 4].

    The corners of the grid are those of the table of side × side. Along an edge of n places, place
    i is at s = RN(i·(side − 1)/max(n − 1, 1)); the rows ⌊s⌋ and ⌊s⌋ + 1, none past the last, weigh
    RN(1 − (s − ⌊s⌋)) and s − ⌊s⌋. A corner weighs RN of the product of its row's and column's.

    Source: Qwen3-VL.
    """
    rows, columns = (_linear_taps(n, side) for n in (down, across))
    return _products(rows, columns, side)


def middle_places(down: int, across: int, side: int) -> tuple[Places, Floats]:
    """Return rows and weights of the 2 × 2 places around each place of a grid: [places, 4].

    Pixels' middles of the grid lie over those of the table. Along an edge of n places, place i is
    at s = max((i + ½)·side/n − ½, 0); the rows ⌊s⌋ and ⌊s⌋ + 1, none past the last, weigh
    1 − (s − ⌊s⌋) and s − ⌊s⌋. All of it is float64, in the order written; products of a row's and
    a column's weight are rounded once, to float32.

    Source: Kimi K3.
    """
    rows, columns = (_middle_taps(n, side) for n in (down, across))
    return _products(rows, columns, side)


def bicubic_places(down: int, across: int, side: int) -> tuple[Places, Floats]:
    """Return rows and weights of the 4 × 4 places around each place of a grid: [places, 16].

    Rows and columns are those of `cubic_taps`; products of a row's and a column's weight are
    rounded once, to float32.

    Source: GLM-4.1V.
    """
    rows, columns = (cubic_taps(n, side) for n in (down, across))
    return _products(rows, columns, side)


def triangle_shares(down: int, across: int, side: int) -> Floats:
    """Return what each row of the table weighs at each place of a grid: [places, side²].

    Along an edge of n places, with f = side/n, place i is at (i + ½)·f − ½; at the distance d a row
    weighs 1 − d/max(f, 1), or 0, over the sum of these from +0 in ascending order: a resize that
    averages where the grid is smaller than the table. All of it is float64, in the order written;
    products of a row's and a column's weight are rounded once, to float32.

    Source: SigLIP 2.
    """
    rows, columns = (_triangle_shares(n, side) for n in (down, across))
    return (
        (rows[:, None, :, None] * columns[None, :, None, :]).reshape(down * across, -1).astype(F32)
    )


def _triangle_shares(count: int, side: int) -> npt.NDArray[np.float64]:
    """Return the weights of each place along an edge, [count, side]."""
    step = side / count
    at = (np.arange(count) + 0.5) * step - 0.5
    weights = triangle((np.arange(side) - at[:, None]) / max(step, 1.0))
    total = np.zeros(count)
    for column in weights.T:
        total = total + column
    return weights / total[:, None]


def _middle_taps(count: int, side: int) -> tuple[Places, npt.NDArray[np.float64]]:
    """Return the rows of each place along an edge and their weights, [count, 2]."""
    at = np.maximum((np.arange(count) + 0.5) * side / count - 0.5, 0)
    first = np.floor(at)
    taps = np.minimum(first.astype(np.int32)[:, None] + np.arange(2, dtype=np.int32), side - 1)
    return taps, np.stack([1 - (at - first), at - first], axis=1)


def _linear_taps(count: int, side: int) -> tuple[Places, Floats]:
    """Return the rows of each place along an edge and their weights, [count, 2]."""
    at = (np.arange(count) * (side - 1)).astype(F32) / F32(max(count - 1, 1))
    first = np.floor(at)
    share = at - first
    taps = np.minimum(first.astype(np.int32)[:, None] + np.arange(2, dtype=np.int32), side - 1)
    return taps, np.stack([F32(1) - share, share], axis=1)


def _products(
    rows: tuple[Places, npt.NDArray[Any]], columns: tuple[Places, npt.NDArray[Any]], side: int
) -> tuple[Places, Floats]:
    """Return the places of a table by those of rows and of columns, and products of weights."""
    (y, down), (x, across) = rows, columns
    count = len(y) * len(x)
    places = y[:, None, :, None] * side + x[None, :, None, :]
    weights = down[:, None, :, None] * across[None, :, None, :]
    return places.reshape(count, -1).astype(np.int32), weights.reshape(count, -1).astype(F32)
