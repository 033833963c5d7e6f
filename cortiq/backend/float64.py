"""Exact products for array libraries with float64, whose sums of 16-bit products are exact to 2⁵³.

Whatever order a library multiplies and adds in, one rounding remains: that to float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cortiq.backend.array_attention import ExactProducts
from cortiq.backend.array_kernels import ARRAY_KERNELS, ARRAY_OPTIONS
from cortiq.backend.attention_kernels import ATTENTION_KERNELS, ATTENTION_OPTIONS
from cortiq.backend.kernel_walk import KernelCall
from cortiq.backend.matrices import stacked
from cortiq.backend.plan import Kernels
from cortiq.ir import ops
from cortiq.numerics.contract import TILE


class Float64Arrays(ExactProducts):
    """An array library whose `@` of float64 adds up whole integers exactly."""

    row_type = "f64"

    def by_group(self, q: Any, groups: int) -> Any:
        """Return [rows, heads, dim] as [groups, rows · heads a group, dim]."""
        rows, _, dim = q.q.shape
        whole = self.cast(q.q, "f64")
        split = whole.reshape(rows, groups, -1, dim).swapaxes(0, 1).reshape(groups, -1, dim)
        return self.rows(split, q.e.reshape(rows, groups, -1).swapaxes(0, 1).reshape(groups, -1))

    def tiles(self, rows: Any, tiles: range) -> Any:
        """Return rows as [tiles, heads, 64, dim], zero past the end."""
        cut = slice(tiles.start * TILE, tiles.stop * TILE)
        q, e = self.cast(rows.q[cut], "f64"), self.cast(rows.e[cut], "i32")
        missing, (_, heads, dim) = len(tiles) * TILE - len(q), q.shape
        q, e = self.padded(q, 0, missing, 0), self.padded(e, 0, missing, 0)
        q = q.reshape(-1, TILE, heads, dim).swapaxes(1, 2)
        return self.rows(q, e.reshape(-1, TILE, heads))

    def scores(self, queries: Any, keys: Any) -> Any:
        """Return products of queries and keys."""
        return self.cast(queries.q @ keys.q.swapaxes(2, 3), "f32")

    def weighted(self, weights: Any, values: Any) -> Any:
        """Return sums of weighted values."""
        return self.cast(self.cast(weights, "f64") @ values.q, "f32")

    def total(self, mass: Any) -> Any:
        """Return the sum of a tile's integers."""
        return self.cast(self.cast(mass, "f64").sum(-1), "f32")

    def block_scores(self, q: Any, keys: Any) -> Any:
        """Return products of all heads with the one head of keys."""
        keys = self.cast(keys.q[:, 0], "f64")
        return self.cast(self.cast(q.q, "f64") @ keys.swapaxes(0, 1), "f32")

    def recalled(self, keys: Any, at: Sequence[int]) -> Any:
        """Return key rows as floats: the products are exact."""
        where = self.array(np.array(at, np.int32))
        powers = self.exp2_int(self.cast(keys.e[where], "i32"))
        return self.cast(keys.q[where], "f32") * powers[..., None]


def _head_matmul(call: KernelCall, x: Any) -> Any:
    rows, heads = len(call.group.places), call.op.heads
    choice = np.broadcast_to(np.arange(heads), (rows, heads))
    return stacked(call.weights["weight"], heads, x, choice, call.faults)


def _expert_matmul(call: KernelCall, x: Any, index: Any) -> Any:
    choice = call.library.host(index)
    return stacked(call.weights["weight"], call.op.experts, x, choice, call.faults)


FLOAT64_KERNELS: Kernels = {
    **ARRAY_KERNELS,
    **ATTENTION_KERNELS,
    ops.HeadMatMul: _head_matmul,
    ops.ExpertMatMul: _expert_matmul,
}
"""The kernel of every primitive, over any library with `Float64Arrays`."""
FLOAT64_OPTIONS = ARRAY_OPTIONS | ATTENTION_OPTIONS
"""Options that they know: all."""
