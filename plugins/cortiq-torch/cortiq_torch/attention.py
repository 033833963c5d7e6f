"""The integers of attention as float64, whose products and sums are exact up to 2⁵³."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from cortiq.backend.array_attention import ExactProducts
from cortiq.numerics.contract import TILE
from cortiq_torch.rows import Rows


class Float64Products(ExactProducts):
    """Products and sums that are rounded once, to float32."""

    def by_group(self, q: Rows, groups: int) -> Rows:
        """[rows, heads, dim] as [groups, rows · heads a group, dim]."""
        split = q.q.unflatten(1, (groups, -1)).transpose(0, 1).flatten(1, 2)
        return Rows(split, q.e.unflatten(1, (groups, -1)).transpose(0, 1).flatten(1))

    def tiles(self, rows: Rows, tiles: range) -> Rows:
        """Rows as [tiles, groups, 64, dim], zero past the end."""
        cut = slice(tiles.start * TILE, tiles.stop * TILE)
        q, e = rows.q[cut].double(), rows.e[cut].int()
        missing = len(tiles) * TILE - len(q)
        q, e = pad(q, (0, 0, 0, 0, 0, missing)), pad(e, (0, 0, 0, missing))
        return Rows(q.unflatten(0, (-1, TILE)).transpose(1, 2), e.unflatten(0, (-1, TILE)))

    def scores(self, queries: Rows, keys: Rows) -> Tensor:
        """Products of queries and keys."""
        return (queries.q @ keys.q.transpose(2, 3)).float()

    def weighted(self, weights: Tensor, values: Rows) -> Tensor:
        """Sums of weighted values."""
        return (weights.double() @ values.q).float()

    def total(self, mass: Tensor) -> Tensor:
        """The sum of a tile's integers."""
        return mass.double().sum(dim=-1).float()

    def running_highest(self, n: Tensor) -> Tensor:
        """The largest integer so far."""
        return n.cummax(dim=0).values

    def block_scores(self, q: Rows, keys: Rows) -> Tensor:
        """Products of all heads with the one head of keys."""
        return (q.q @ keys.q[:, 0].double().T).float()

    def filled(self, x: Tensor, before: int, after: int, axis: int, fill: float) -> Tensor:
        """x with entries of one value before and behind an axis."""
        return pad(x, (0, 0) * (x.ndim - 1 - axis) + (before, after), value=fill)

    def recalled(self, keys: Rows, at: Sequence[int]) -> Tensor:
        """Key rows as floats: the products are exact."""
        where = torch.tensor([*at], device=keys.e.device)
        return (keys.q[where] * self.exp2_int(keys.e[where].int())[..., None]).float()
