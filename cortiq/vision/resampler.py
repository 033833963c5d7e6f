"""Rows of the text model that are learned queries, which attend to all patches of a tile."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cortiq.ir import Value
from cortiq.ir.layers import Attention
from cortiq.ir.ops import Quantise, Reshape, StoreKV
from cortiq.models.parts import named
from cortiq.vision.tower import Tower

ATTENTION: Mapping[str, str] = {
    "q": "q.weight", "q_bias": "q.bias", "o": "o.weight", "o_bias": "o.bias",
}  # fmt: skip
LAST_PATCH = "last.patch"
"""Input: the last patch that a row of the text sees."""
SLOT = "resampled.kv"


def stored(tower: Tower, key: Value, value: Value, width: int, heads: int, tensor: str) -> None:
    """Write keys and values of patches, of what they are made of: f32[width] each."""
    b, codes, head = tower.builder, [], width // heads
    for role, row in (("k", key), ("v", value)):
        y = tower.linear(row, f"resampled.{role}", f"{tensor}.{role}", (width, width), True)
        y = b.add(Reshape((heads, head)), y, name=f"resampled.{role}.heads")
        codes.append(b.add(Quantise(), y, name=f"resampled.{role}.codes"))
    b.add_node(StoreKV(heads, head, head), *codes, name="resampled.store", slots={"kv": SLOT})


def resampled(tower: Tower, query: Value, width: int, heads: int, tensor: str) -> Value:
    """Write a row's attention to all patches of its tile."""
    op = Attention(
        width, heads, heads, width // heads, biased=("q",), output_biased=True, shares_kv=True,
        until=True,
    )  # fmt: skip
    last = tower.builder.input(LAST_PATCH)
    return tower.builder.add(
        op, query, tower.position, last, name="resampled", slots={"kv": SLOT},
        weights=named(op, tensor, ATTENTION),
    )  # fmt: skip


def squares_and_last(rows: int, patches: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the squares of a tile whose rows are made of no patch of their own, and what its rows
    supply.
    """
    last = np.full(rows, patches - 1, np.int32)
    return np.zeros((rows, 1), np.int64), {LAST_PATCH: last}
