"""Positions of an image's slices on one canvas, and of the tokens between their rows.

Source: MiniCPM-V 4.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cortiq.errors import RequestError
from cortiq.numerics.contract import F32
from cortiq.vision.positions import Places

Grid = tuple[int, int]


@dataclass(frozen=True)
class Canvas:
    """Positions of the tokens from the one before an image's first row to the one after its last.

    Attributes
    ----------
    positions : int32 [tokens, 3], counted from where the image begins in the text.
    rows : int64 [rows], the numbers of the tokens that are rows.
    """

    positions: Places
    rows: np.ndarray

    def placed(
        self, ids: Sequence[int], places: Sequence[int], markers: frozenset[int], stop: int
    ) -> tuple[int, Places]:
        """Return the place of the first token, and the positions of all, and of the markers that
        follow, which have the image's own.

        Parameters
        ----------
        places : of the image's rows in `ids`. markers : ids of tokens around rows.
        stop : the place of the next image's first token, or the end of `ids`.

        Raises
        ------
        RequestError : the tokens between the rows are not those of the image.
        """
        first = places[0] - int(self.rows[0])
        end = first + len(self.positions)
        between = set(range(first, end)) - set(places)
        whole = first >= 0 and end <= stop and list(places) == (first + self.rows).tolist()
        if not whole or not all(ids[at] in markers for at in between):
            what = "the tokens around an image's rows are not its markers, one token each"
            raise RequestError(what, where="image")
        while end < stop and ids[end] in markers:
            end += 1
        return first, np.pad(self.positions, ((0, end - first - len(self.positions)), (0, 0)))


def canvas_of(whole: Grid, part: Grid, down: int = 0, across: int = 0) -> Canvas:
    """Return the canvas of an image.

    Position 0 of a token is where the image begins; positions 1 and 2 are its row and column. Rows
    of slices lie side by side. The whole has the places that are nearest to its own, stretched to
    the canvas. `<image>` lies before the first corner, `</image>` behind the last, `<slice>` and
    `</slice>` at the corners of theirs; a line's end is behind its last row.

    Parameters
    ----------
    whole, part : rows and columns of the rows of the whole image, and of a slice.
    down, across : rows and columns of slices; 0 where there are none.
    """
    height, width = (part[0] * down, part[1] * across) if down else whole
    stretched = _stretched(height, whole[0]), _stretched(width, whole[1])
    tiles = [(_token(-1, -1), _grid(*stretched), _token(height, width))]
    for y in range(down):
        top, bottom = y * part[0], (y + 1) * part[0]
        for x in range(across):
            left, right = x * part[1], (x + 1) * part[1]
            grid = _grid(np.arange(top, bottom), np.arange(left, right))
            end = [_token(bottom - 1, right - 1)]
            if x == across - 1 and y < down - 1:
                end.append(_token(bottom - 1, width))
            tiles.append((_token(top, left), grid, np.concatenate(end)))
    kinds = [np.repeat([False, True, False], [len(one) for one in tile]) for tile in tiles]
    positions = np.concatenate([one for tile in tiles for one in tile])
    return Canvas(positions, np.flatnonzero(np.concatenate(kinds)))


def _token(row: int, column: int) -> Places:
    """Return the positions of a token between rows, [1, 3]."""
    return np.array([[0, row, column]], np.int32)


def _grid(rows: np.ndarray, columns: np.ndarray) -> Places:
    """Return the positions of a grid's rows, [rows, 3]."""
    y, x = (one.reshape(-1) for one in np.meshgrid(rows, columns, indexing="ij"))
    return np.stack([np.zeros_like(y), y, x], axis=1).astype(np.int32)


def _stretched(edge: int, count: int) -> np.ndarray:
    """Return `count` places from 0 to `edge` − 1 at equal distances, to the nearest, ties to even.

    In float32, with d = RN((edge − 1)/(count − 1)): RN(i·d) in the first half, then
    RN(edge − 1 − RN((count − 1 − i)·d)).
    """
    step, number = F32(edge - 1) / F32(max(count - 1, 1)), np.arange(count)
    before, after = step * number.astype(F32), step * number[::-1].astype(F32)
    return np.rint(np.where(number < max(count // 2, 1), before, F32(edge - 1) - after))
