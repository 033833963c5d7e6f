"""Sparse attention: the choice of the blocks of keys, or of the keys, that a query attends to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cortiq.numerics.contract import (
    F32,
    SMALLEST_EXPONENT,
    Floats,
    Ints,
    exp2_int,
    round_to_f32,
)
from cortiq.numerics.quantise import Quantised
from cortiq.numerics.sums import canonical_sum

MOST_HEADS = 256
"""Heads whose scores of a key are added up: as many as a canonical sum has lanes."""
SMALLEST_SCORE = F32(2.0**SMALLEST_EXPONENT)
"""A head's score counts as 0 below this."""
LARGEST_SCORE = F32(2.0**50)
"""A head's score counts as no more: products with weights stay finite."""


def choose_blocks(
    q: Quantised,
    keys: Quantised,
    positions: npt.NDArray[np.integer],
    block: int,
    top: int,
    local: int = 1,
) -> Ints:
    """Choose the blocks of each query, ascending: int32 [rows, H, top].

    A query at position p scores the keys j = 0 … p: s = RN(I)·2^(eq+ek), I = Σ q·k the exact
    integer. A block is the keys of one j // block; its score is the largest of its keys' scores.
    Of the n = p // block + 1 blocks take the `local` last ones, then those with the largest scores,
    the lower index first on equality, until there are `top`. Where n is less than that, the list
    goes on with n, n + 1, …, which hold no visible key.

    Parameters
    ----------
    q : rows [rows, H, D]; keys : rows [S, 1, D], S > every position.

    Source: MiniMax M3's indexer.
    """
    out = np.zeros((*q.e.shape, top), np.int32)
    for row, position in enumerate(positions):
        seen, count = int(position) + 1, int(position) // block + 1
        dot = q.q[row].astype(np.int64) @ keys.q[:seen, 0].astype(np.int64).T
        scores = round_to_f32(dot) * exp2_int(q.e[row][:, None] + keys.e[:seen, 0])
        index = np.arange(count)
        for head, best in enumerate(np.maximum.reduceat(scores, index * block, axis=1)):
            chosen = np.lexsort((index, -best, index < count - local))[:top]
            more = np.arange(count, count + top - len(chosen))
            out[row, head] = np.sort(np.concatenate([chosen, more]))
    return out


def own_block(positions: npt.NDArray[np.integer], block: int) -> Ints:
    """Return the block of `block` keys that each position is in, p // block: int32 [rows, 1, 1].

    Source: Llama 4's chunked attention, whose rows see the keys of their chunk.
    """
    return (np.asarray(positions) // block).astype(np.int32)[:, None, None]


def key_scores(q: Quantised, keys: Quantised, weights: Floats) -> Floats:
    """Score keys for one query, float32 [keys]: S = canonical_sum over heads of RN(w·r).

    r = min(s, 2⁵⁰) where s ≥ 2⁻⁴⁰, else +0; s = RN(I)·2^(eq+ek), I = Σ q·k the exact integer.

    Parameters
    ----------
    q : rows [H, D]; keys : rows [keys, D]; weights : float32 [H].
    """
    dot = q.q.astype(np.int64) @ keys.q.astype(np.int64).T
    s = round_to_f32(dot) * exp2_int(q.e[:, None] + keys.e)
    relu = np.where(s >= SMALLEST_SCORE, np.minimum(s, LARGEST_SCORE), F32(0))
    return canonical_sum(weights[:, None] * relu, axis=-2)


def list_keys(positions: npt.NDArray[np.integer], every: int, top: int) -> Ints:
    """List the last keys of each row, ascending: int32 [rows, 1, top].

    Of the keys j = 0 … p of a row at position p those with (j + 1) mod every = 0 count, and of
    these the last `top`. Where there are fewer, the list goes on with p + 1, p + 2, …
    """
    where = np.asarray(positions, np.int64)[:, None, None]
    there = (where + 1) // every
    entry = np.maximum(there - top, 0) + np.arange(top)
    listed = np.where(entry < there, (entry + 1) * every - 1, where + 1 + entry - there)
    return listed.astype(np.int32)


def window_blocks(keys: Ints, positions: npt.NDArray[np.integer], every: int) -> Ints:
    """Return the windows that listed keys close, and the row's own: int32 [rows, 1, top + 1].

    A key j ≤ p of the list is of the window ⌊j/every⌋. A row at p whose window is not closed,
    (p + 1) mod every > 0, sees that too, behind them. The list goes on with the windows after the
    row's own, which hold no visible key.

    Parameters
    ----------
    keys : int32 [rows, 1, top], as `choose_keys` and `list_keys` list them.
    """
    own = np.asarray(positions)[:, None, None]
    last = np.maximum(keys[..., -1:], own) + 1
    listed, after = np.concatenate([keys, last], axis=-1), (own + 1) // every
    return np.where(listed <= own, listed // every, after + listed - own - 1).astype(np.int32)


def choose_keys(
    q: Quantised,
    keys: Quantised,
    weights: Floats,
    positions: npt.NDArray[np.integer],
    top: int,
    every: int = 1,
) -> Ints:
    """Choose the keys of each query, ascending: int32 [rows, 1, top].

    Of the keys j = 0 … p of a query at position p those with (j + 1) mod every = 0 count; take the
    `top` with the largest `key_scores`, the lower position first on equality. Where there are
    fewer, take all, and the list goes on with p + 1, p + 2, …, which are no visible keys.

    Parameters
    ----------
    q : rows [rows, H, D], H at most `MOST_HEADS`; keys : rows [S, 1, D], S > every position.
    weights : canonical float32 [rows, H].

    Source: the lightning indexer of DeepSeek V3.2, section 2.1. Its scores have positive factors
    besides, which change no order.
    """
    out = np.zeros((len(q.e), 1, top), np.int32)
    for row, position in enumerate(positions):
        seen = np.arange(every - 1, int(position) + 1, every)
        if len(seen) <= top:
            out[row] = list_keys(np.array([position]), every, top)[0]
            continue
        visible = Quantised(keys.q[seen, 0], keys.e[seen, 0])
        scores = key_scores(Quantised(q.q[row], q.e[row]), visible, weights[row])
        out[row, 0] = np.sort(seen[np.argsort(-scores, kind="stable")[:top]])
    return out
