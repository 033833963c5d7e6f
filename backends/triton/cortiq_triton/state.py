"""Sequences: `cortiq.backend.paged.PagedState` with addresses for the kernels."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from cortiq.backend.paged import PagedState
from cortiq.backend.pages import PageTable
from cortiq_triton.token_log import TokenLog


class TritonState(PagedState):
    """One sequence.

    Attributes
    ----------
    page_addresses : int64 [groups, pages], of the pages of each group of slots; 0 for those given
        up. block_address : of the block, or 0.
    log : its first ids on the device, of a sequence that is penalised for them.
    """

    _exceeds = False
    _ends: dict[str, int]

    def clear(self) -> None:
        """Empty the sequence."""
        super().clear()
        self.log = TokenLog()

    def advance(self, entry: str, tokens: list[int]) -> None:
        """Count rows that the slots now hold, or will once what is under way is computed."""
        super().advance(entry, tokens)
        if self._exceeds:
            self._shed(entry)

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
        width = max([self._reach, *(table.end for table in self.tables)])
        self.page_addresses = np.zeros((max(1, len(self.tables)), width), np.int64)
        for line, table in zip(self.page_addresses, self.tables, strict=False):
            line[table.first : table.end] = [page.data.address for page in table.pages]
        self.block_address = 0 if self.block is None else self.block.data.address
        self._ends = {}
        for table in self.tables:
            if table.group.most is not None:
                end = table.end * self.owner.layout.page_rows
                self._ends[table.group.entry] = min(end, self._ends.get(table.group.entry, end))

    def _windowed(self, entry: str) -> Iterator[PageTable]:
        """Yield the tables whose rows an entry graph writes and windows give up."""
        for table in self.tables:
            if table.group.most is not None and table.group.entry == entry:
                yield table

    def has_pages(self, entry: str, position: int) -> bool:
        """Check whether windowed slots have the page of a position."""
        return position < self._ends.get(entry, sys.maxsize)

    def have_pages(self, entry: str, rows: int) -> bool:
        """Have the pages of an entry's rows up to so many, in windowed slots beyond what these keep
        until the rows count; return whether there is memory for them.
        """
        stop, added = self.owner.layout.page_stop(rows), False
        try:
            for table in self._windowed(entry):
                added |= table.exceed(stop, self._first_page(table.group))
                self._exceeds |= len(table.pages) > (table.group.most or 0)
        except MemoryError:
            self._shed(entry)
            return False
        if added:
            self.locate()
        return True

    def _shed(self, entry: str) -> None:
        """Give back the pages beyond what windowed slots keep."""
        for table in self._windowed(entry):
            table.shed(self._first_page(table.group), self._reach)
        self._exceeds = False
        self.locate()
