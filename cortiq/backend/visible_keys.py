"""Keys that queries see, and what their distance adds to scores, by tile, group and query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.backend.arithmetic import Arithmetic
from cortiq.numerics.contract import TILE, Floats
from cortiq.numerics.scores import steepness


def _keys_of(tiles: range) -> npt.NDArray[np.int32]:
    """Return positions of keys: [tiles, 1, 1, 64]."""
    return np.arange(tiles.start * TILE, tiles.stop * TILE, dtype=np.int32).reshape(-1, 1, 1, TILE)


def _of_queries(positions: Sequence[int], each: int) -> npt.NDArray[np.int32]:
    """Return the positions of rows, of the queries of a group: [rows·each, 1]."""
    return np.repeat(np.array(positions, np.int32), each)[:, None]


def visible_keys(
    positions: Sequence[int], own: Sequence[int], tiles: range, window: int | None, each: int
) -> npt.NDArray[np.bool_]:
    """Return the keys that a query of each row sees: bool [tiles, 1, rows·each, 64]."""
    visible = _keys_of(tiles) <= _of_queries(positions, each)
    if window is None:
        return visible
    return visible & (_keys_of(tiles) > _of_queries(own, each) - window)


def distance_bias(
    own: Sequence[int], tiles: range, slopes: tuple[float, ...], groups: int
) -> Floats:
    """Return what positions add to scores: [tiles, groups, queries, 64], one product each."""
    steep = steepness(slopes).reshape(groups, 1, -1)
    ahead = (_keys_of(tiles) - _of_queries(own, steep.shape[2])).astype(np.float32)
    return np.tile(steep, (1, len(own), 1)).reshape(1, groups, -1, 1) * ahead


def admitted_keys(
    library: Arithmetic, chosen: Any, heads: int, groups: int, where: Any, block: int
) -> Any:
    """Return keys of the blocks each [group, query] sees: bool [tiles, groups, queries, 64]."""
    rows, sets, _ = chosen.shape
    table = (chosen[..., None] == where // block).any(2)
    of_heads = library.repeat(table, heads // sets, axis=1)
    turned = of_heads.reshape(rows, groups, heads // groups, -1).swapaxes(0, 1)
    return turned.reshape(groups, rows * heads // groups, -1, TILE).swapaxes(1, 2).swapaxes(0, 1)
