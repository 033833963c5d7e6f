"""Sizes that batches are filled up to, so that few shapes are captured; and what fills them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cortiq_triton.token_log import TokenLog

ROWS = 64
"""Rows of a mixed batch are a multiple of so many."""


class Scratch:
    """Stands for a sequence whose rows nobody reads: it has a page and a block that it may spoil.

    Attributes
    ----------
    page_addresses, block_address, log, tokens : as of a `TritonState`.
    """

    tokens: Sequence[int] = ()

    def __init__(self, page: int = 0, block: int = 0) -> None:
        self.page_addresses = np.array([page], np.int64)
        self.block_address = block
        self.log = TokenLog()


def padded_sequences(count: int) -> int:
    """Sequences of a shape for so many: few rows cost by the row, many by tiles of rows."""
    if count <= 8:
        return count
    step = 8 if count <= 32 else 16 if count <= 128 else 32
    return -(-count // step) * step


def padded_rows(rows: int, sequences: int) -> tuple[int, int]:
    """Rows and sequences of a shape for so many; every sequence that is added has a row, and the
    last of them the rest, `ROWS` at most.
    """
    most = padded_sequences(sequences)
    total = -(-(rows + most - sequences) // ROWS) * ROWS
    if most == sequences and total > rows:
        most = padded_sequences(sequences + 1)
        total = -(-(rows + most - sequences) // ROWS) * ROWS
    return total, most
