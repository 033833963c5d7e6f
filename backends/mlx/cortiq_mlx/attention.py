"""The integers of attention in two int8 planes, whose float32 products are exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cortiq.backend.array_attention import AttentionGeometry, ExactProducts, TileSums
from cortiq.numerics import attention as contract
from cortiq.numerics.contract import TILE
from cortiq_mlx import custom_kernels, kernel_sources
from cortiq_mlx.exact_sums import EXACT, PLANE, dot_of_planes, exact_sum, planes, round_wide
from cortiq_mlx.library import mx
from cortiq_mlx.quantised_rows import CachedPlanes, MlxRows

WIDEST_KEY = EXACT // PLANE**2
"""Values of a head's key whose plane products one exact matmul adds up."""
MASS = 1 << (contract.TOTAL_BITS + 1)
"""Above every integer of a tile's total."""


class PlaneProducts(ExactProducts):
    """Products of planes; see `cortiq_mlx.exact_sums`."""

    def by_group(self, q: MlxRows, groups: int) -> MlxRows:
        """Return queries as int8 planes [groups, 2·rows·each, dim], the high ones of all first."""
        rows, _, dim = q.q.shape
        sides = [
            plane.reshape(rows, groups, -1, dim).swapaxes(0, 1).reshape(groups, -1, dim)
            for plane in planes(q.q)
        ]
        e = q.e.reshape(rows, groups, -1).swapaxes(0, 1).reshape(groups, -1)
        return MlxRows(mx.concatenate(sides, axis=1), e)

    def tiles(self, rows: CachedPlanes, tiles: range) -> CachedPlanes:
        """Return rows as [tiles, 64, heads, …], zero past the last row."""
        q, e = (x[tiles.start * TILE : tiles.stop * TILE] for x in rows)
        missing = len(tiles) * TILE - len(q)
        if missing:
            q = mx.pad(q, [(0, missing), (0, 0), (0, 0), (0, 0)])
            e = mx.pad(e, [(0, missing), (0, 0)])
        split = (len(tiles), TILE)
        return CachedPlanes(q.reshape(*split, *q.shape[1:]), e.reshape(*split, -1).astype(mx.int32))

    def scores(self, queries: MlxRows, keys: CachedPlanes) -> mx.array:
        """Multiply with both planes of every key."""
        count, _, groups, _, dim = keys.q.shape
        turned = keys.q.transpose(0, 2, 3, 1, 4).reshape(count, groups, 2 * TILE, dim)
        return dot_of_planes(queries.q[None], turned.swapaxes(2, 3))

    def weighted(self, weights: mx.array, values: CachedPlanes) -> mx.array:
        """Multiply both planes of the weights and of the values."""
        count, _, groups, _, _ = values.q.shape
        sides = mx.concatenate([*planes(weights)], axis=2)
        turned = values.q.transpose(0, 2, 1, 3, 4).reshape(count, groups, TILE, -1)
        return dot_of_planes(sides, turned)

    def total(self, mass: mx.array) -> mx.array:
        """Return the sum of a tile's integers."""
        return round_wide(exact_sum(mass, -1, MASS))

    def running_highest(self, n: mx.array) -> mx.array:
        """Return the running maximum."""
        return mx.cummax(n, axis=0)

    def block_scores(self, q: MlxRows, keys: CachedPlanes) -> mx.array:
        """Multiply all heads with the one head of keys."""
        rows, heads, dim = q.q.shape
        left = mx.concatenate([*planes(q.q.reshape(-1, dim))], axis=0)
        right = keys.q[:, 0].transpose(1, 0, 2).reshape(-1, dim).T
        return dot_of_planes(left, right).reshape(rows, heads, -1)

    def recalled(self, keys: CachedPlanes, at: Sequence[int]) -> mx.array:
        """Return key rows as floats: the products are exact."""
        where = mx.array([*at])
        both, e = mx.take(keys.q, where, axis=0).astype(mx.int32), mx.take(keys.e, where, axis=0)
        q = (both[:, :, 0] << 8) + both[:, :, 1]
        return q.astype(mx.float32) * self.exp2_int(e.astype(mx.int32))[..., None]

    def own_tiles(
        self, q: MlxRows, k: CachedPlanes, v: CachedPlanes, visible: Any, how: AttentionGeometry
    ) -> TileSums | None:
        """Compute each tile's contribution by our own kernel, where it is in use."""
        special = how.constants.cap or visible.shape[1] != 1
        if special or not custom_kernels.active(kernel_sources.TILE):
            return None
        return TileSums(*custom_kernels.tiles(q, k, v, visible, float(how.constants.factor)))
