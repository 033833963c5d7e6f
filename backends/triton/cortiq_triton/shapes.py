"""Sizes that batches are filled up to, so that few shapes are captured; and what fills them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from cortiq_triton.language import INTERPRETED, pow2
from cortiq_triton.plan import Plan
from cortiq_triton.token_log import TokenLog

SHARE = 16
"""Captured shapes hold at most this part of a device's memory."""
SINGLE = 8 if INTERPRETED else 2
"""Rows up to which as many are computed: products read their weights again for each of up to 8."""
LEAST_TILE = 16
"""Rows of tensor cores' smallest tile: a step of so many takes as long as one of two."""
FEW_ROWS = 512
FEW_STEP, MANY_STEP = 64, 128
"""Rows of a mixed batch are a multiple of so many: of up to FEW_ROWS, and of more."""
MANY_SEQUENCES = 32
"""Sequences of a batch of more rows than FEW_ROWS are this or a power of two above it: logits that
nobody reads take little beside so many rows.
"""
FEWEST_PAGES = 16
"""Tiles without keys cost little; another shape costs a capture."""
FILLING = 64
"""Positions of the page that all sequences which fill up share."""


class Scratch:
    """Stands for a sequence whose rows nobody reads: it has a page and a block that it may spoil.

    Attributes
    ----------
    page_addresses, block_address, log, tokens : as of a `TritonState`; a page of each group.
    """

    tokens: Sequence[int] = ()

    def __init__(self, pages: Sequence[int] = (0,), block: int = 0) -> None:
        self.page_addresses = np.array(pages, np.int64)[:, None]
        self.block_address = block
        self.log = TokenLog()


def logits_bytes(plan: Plan) -> int:
    """Bytes of a row's logits, and as many for what draws make of them."""
    kind = plan.graph.values.get("logits")
    return 0 if kind is None else 2 * 4 * kind.shape[-1]


def padded_sequences(count: int) -> int:
    """Sequences of a shape for so many: few rows cost by the row, many by tiles of rows."""
    if count <= SINGLE:
        return count
    count = max(count, LEAST_TILE)
    step = 8 if count <= 32 else 16 if count <= 128 else 32
    return -(-count // step) * step


def table_width(states: Iterable[Any]) -> int:
    """Pages that a shape's tables have room for: a power of two, so that few shapes are made."""
    return max(FEWEST_PAGES, pow2(max(state.page_addresses.shape[1] for state in states)))


class MixedSize(NamedTuple):
    """Rows and sequences of a shape of mixed batches.

    Attributes
    ----------
    each : whether all rows have logits, of sequences of a few rows each; else their last rows.
    filling : rows of a sequence that fills up, at most.
    """

    rows: int
    sequences: int
    each: bool
    filling: int


def mixed_size(counts: Sequence[int], each: bool) -> MixedSize:
    """Return the shape's size for sequences of so many rows. The sequences that are added have a
    few rows, as many as their one page has room for, and perhaps none.
    """
    rows, filling = sum(counts), FILLING
    if each:
        total, filling = padded_sequences(rows), pow2(max(counts))
    else:
        step = FEW_STEP if rows <= FEW_ROWS else MANY_STEP
        total = -(-rows // step) * step
    sequences = len(counts) - (rows - total) // filling
    if each or rows <= FEW_ROWS:
        return MixedSize(total, padded_sequences(sequences), each, filling)
    return MixedSize(total, max(MANY_SEQUENCES, pow2(sequences)), each, filling)


S = TypeVar("S")


class ShapeCache(dict[Hashable, S]):
    """Captured shapes; those used longest ago are dropped when all hold too much memory.

    A shape holds the logits of its rows, which its graphs write and read.

    Parameters
    ----------
    most : bytes that all may hold; by default a part of the device's memory.
    """

    def __init__(self, device: str, most: int | None = None) -> None:
        super().__init__()
        self._device, self._sizes = device, dict[Hashable, int]()
        if most is None and device != "cpu":
            most = torch.cuda.get_device_properties(device).total_memory // SHARE
        self._most = most

    def use(self, key: Hashable) -> S | None:
        """Return a shape, if it is there; it is the last one to be dropped now."""
        shape = self.pop(key, None)
        if shape is not None:
            self[key] = shape
        return shape

    def keep(self, key: Hashable, shape: S, nbytes: int) -> S:
        """Add a shape that holds so many bytes."""
        self[key], self._sizes[key] = shape, nbytes
        dropped = []
        while self._most is not None and len(self) > 1 and self.nbytes > self._most:
            dropped.append(self.pop(next(iter(self))))
        if dropped and self._device != "cpu":
            torch.cuda.synchronize(self._device)  # a graph of theirs may be under way
        return shape

    def drop(self, key: Hashable) -> None:
        """Forget a shape, of which no graph is under way."""
        del self[key], self._sizes[key]

    @property
    def nbytes(self) -> int:
        """Bytes that the shapes hold."""
        return sum(self._sizes[key] for key in self)
