"""Block-sparse attention: the choice of the key blocks that a query attends to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cortiq.numerics.contract import Ints, exp2_int, round_to_f32
from cortiq.numerics.quantise import Quantised


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
