"""The prefix of an order that filters keep, found without sorting, for many rows at once.

A prefix that holds a count, or a weight, is found in two levels of buckets over the values, whose
counts and integer weights are summed by atomics (exact in any order), then by a search among the
ids of one bucket of a bucket. What is left is one number a row: the last key that is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from cortiq_triton.language import ceil_div, launch, pow2
from cortiq_triton.prefix_kernels import enlist, settle, survey, weigh

BLOCK = 2048
"""Ids of a part: their weights and count fit one sum, see `prefix_kernels.COUNT_AT`."""
CAPACITY = 1 << 14
"""Ids of a bucket that are listed; more are found by reading the row again."""
CHUNK = 1024
"""Ids that a search looks at together; a top_k of so many leaves one look to its top_p."""


@dataclass
class Prefixes:
    """Rows whose values were surveyed.

    Attributes
    ----------
    values : float32 [rows, n]. spread : int32 [rows, 2, parts], orders of the parts' largest and
        smallest. sums : int64 [rows, SUMS]. lines : int32 [rows, COLUMNS].
    masks : int32 [., words], bits of the ids that exist where it is `masked`.
    raw : ordered by the value itself; rows of `values` are then named by PLACE.
    """

    values: torch.Tensor
    spread: torch.Tensor
    sums: torch.Tensor
    lines: torch.Tensor
    masks: torch.Tensor
    raw: bool = False
    masked: bool = False

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return len(self.lines)

    @property
    def n(self) -> int:
        """Ids of a row."""
        return self.values.shape[1]

    @property
    def parts(self) -> int:
        """Parts of a row."""
        return self.spread.shape[2]

    @property
    def shift(self) -> int:
        """Bits of an id in a key."""
        return (self.n - 1).bit_length()

    @property
    def block(self) -> int:
        """Ids of a part."""
        return min(BLOCK, pow2(self.n))

    def launch(self, which: Any, *given: Any, one: bool = False, **how: Any) -> None:
        """Launch a kernel over the parts of all rows, or with `one` program a row."""
        grid = (self.rows,) if one else (self.parts, self.rows)
        launch(
            which, grid, self.values, self.spread, self.lines, self.masks, self.sums, *given,
            RAW=self.raw, MASKED=self.masked, PP=pow2(self.parts), **how,
        )  # fmt: skip

    def cut(self, top_k: bool, top_p: bool) -> None:
        """Find the last key of each row, of what its TOP_K keeps, then of its TOP_P of that."""
        sizes = (self.n, self.parts, self.masks.shape[-1])
        block, shift, chunk = self.block, self.shift, min(CHUNK, self.block)
        capacity = min(CAPACITY, self.n)
        few = min(CHUNK, capacity)
        listed = self.sums.new_empty((self.rows, capacity))
        self.launch(weigh, *sizes, PHASE=0, WEIGHTS=top_p, BLOCK=block, FEW=few)
        for phase, there in ((1, top_k), (2, top_p)):
            if there:
                how: dict[str, Any] = {"PHASE": phase, "SHIFT": shift, "FEW": few}
                self.launch(weigh, *sizes, PHASE=phase, WEIGHTS=top_p, BLOCK=block, FEW=few)
                self.launch(enlist, listed, *sizes, capacity, BLOCK=block, **how)
                self.launch(
                    settle, listed, *sizes, capacity, one=True, WEIGHTS=top_p, CHUNK=chunk,
                    warps=8, **how,
                )  # fmt: skip

    def keep(self, count: int) -> torch.Tensor:
        """Keys of the first `count` ids of each row, in no order: int64 [rows, count]."""
        kept = self.sums.new_full((self.rows, count), (1 << 63) - 1)
        self.launch(
            enlist, kept, self.n, self.parts, self.masks.shape[-1], count, PHASE=0,
            SHIFT=self.shift, BLOCK=self.block, FEW=0,
        )  # fmt: skip
        return kept


def surveyed(
    x: torch.Tensor, lines: torch.Tensor, masks: torch.Tensor | None, faults: torch.Tensor,
    *, raw: bool = False, placed: bool = True, filtered: bool = True,
) -> Prefixes:  # fmt: skip
    """Rows of logits ready for filters: x/T of the rows that PLACE names, or `raw` x itself.

    x : float32 [., n]. masks : bits, int32 [., words]; None where all ids exist. faults : flags of
    the rows that AT names. placed : whether PLACE names rows; else row after row is taken.
    """
    rows, n = len(lines), x.shape[1]
    block = min(BLOCK, pow2(n))
    parts = ceil_div(n, block)
    out = x if raw else torch.empty((rows, n), dtype=torch.float32, device=x.device)
    spread = torch.empty((rows, 2, parts), dtype=torch.int32, device=x.device)
    sums = torch.empty((rows if filtered else 0, 128), dtype=torch.int64, device=x.device)
    known = lines if masks is None else masks
    launch(
        survey, (parts, rows), x, out, spread, lines, known, sums, faults, n, parts,
        known.shape[-1], PLACED=placed, RAW=raw, FILTERED=filtered, MASKED=masks is not None,
        BLOCK=block,
    )  # fmt: skip
    return Prefixes(out, spread, sums, lines, known, raw, masks is not None)
