"""Sequences: `cortiq.backend.paged.PagedState` with addresses for the kernels."""

from __future__ import annotations

import numpy as np

from cortiq.backend.paged import PagedState

UNKNOWN = -1
"""A token that was drawn on the device and is not known to the host yet."""


class TritonState(PagedState):
    """One sequence.

    Attributes
    ----------
    page_addresses : int64, of the pages that all slots share. block_address : of the block, or 0.
    """

    def locate(self) -> None:
        """Note the addresses of pages and block."""
        pages = [page.data.address for table in self.tables for page in table.pages]
        self.page_addresses = np.array(pages, np.int64)
        self.block_address = 0 if self.block is None else self.block.data.address
