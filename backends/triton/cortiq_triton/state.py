"""Sequences: `cortiq.backend.paged.PagedState` with addresses for the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from cortiq.backend.paged import PagedState
from cortiq_triton.token_log import TokenLog


class TritonState(PagedState):
    """One sequence.

    Attributes
    ----------
    page_addresses : int64, of the pages that all slots share. block_address : of the block, or 0.
    log : its first ids on the device, of a sequence that is penalised for them.
    """

    def clear(self) -> None:
        """Empty the sequence."""
        super().clear()
        self.log = TokenLog()

    def go_back(self, length: int, entry: str) -> int:
        """Forget rows of the slots that `entry` writes."""
        reached = super().go_back(length, entry)
        if entry == "trunk":
            self.log.length = min(self.log.length, reached)
        return reached

    def become(self, other: Any, taken: bool = False) -> None:
        """Hold what a snapshot holds, whose ids may be others from any place on."""
        super().become(other, taken)
        self.log.length = 0

    def locate(self) -> None:
        """Note the addresses of pages and block."""
        pages = [page.data.address for table in self.tables for page in table.pages]
        self.page_addresses = np.array(pages, np.int64)
        self.block_address = 0 if self.block is None else self.block.data.address
