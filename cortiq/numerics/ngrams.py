"""Hashed n-grams: rows of a table that follow from the last tokens of a sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cortiq.numerics.contract import F32, Floats, Ints

MOST_TOKENS = 16
"""Tokens of the longest n-gram, at most."""
LARGEST_MULTIPLIER = 2**63 - 1
LARGEST_TOKEN = 2**24 - 2
"""The largest id that a history, of float32, holds."""


def ngram_rows(
    history: Floats,
    tokens: npt.NDArray[np.integer],
    end: int,
    multipliers: Sequence[int],
    heights: Sequence[int],
) -> tuple[Ints, Floats]:
    """Hash the n-grams that end at each row: int32 [rows, heads], and what a history keeps of rows.

    c[0] is the row's token; c[s] that of s rows before, or `end` where that row is before the start
    or a row from it to the one before this is of the token `end`. For n = 2 … N tokens, in unsigned
    integers of 64 bits: x = c[0]·m[0] xor … xor c[n−1]·m[n−1], products modulo 2⁶⁴. The heads are
    divided evenly among the n, in this order, and head h gives x mod heights[h] + Σ heights[: h].

    Parameters
    ----------
    history : float32 [N−1, 1], token + 1 of the rows before; zeros before the start.
    tokens : of the rows, at most `LARGEST_TOKEN`.
    multipliers : m, one a token of the longest n-gram.
    heights : rows that each head has in the table, one head's below the other's.

    Source: Qwen3.8-Flash-Next's per-layer embedding.
    """
    length, size = len(tokens), len(multipliers)
    kept = (np.asarray(tokens, np.int64) + 1).astype(F32)[:, None]
    known = np.concatenate([history, kept])[:, 0].astype(np.int64) - 1
    m = np.array(multipliers, np.uint64)
    mixed = known[size - 1 :].astype(np.uint64) * m[0]
    found, over = [], np.zeros(length, np.bool_)
    for back in range(1, size):
        earlier = known[size - 1 - back :][:length]
        over = over | (earlier < 0) | (earlier == end)
        mixed = mixed ^ np.where(over, end, earlier).astype(np.uint64) * m[back]
        found.append(mixed)
    each = len(heights) // (size - 1)
    every = np.repeat(np.stack(found, 1), each, axis=1) % np.array(heights, np.uint64)
    first = np.concatenate([[0], np.cumsum(heights)[:-1]])
    return (every.astype(np.int64) + first).astype(np.int32), kept
