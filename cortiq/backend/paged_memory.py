"""Memory of sequences, as a backend describes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from cortiq.backend.extents import RecurrentExtent
from cortiq.backend.paged_layout import PagedLayout
from cortiq.backend.pages import PageGroup
from cortiq.backend.planes import Floats
from cortiq.backend.state import KVPlanes


class PagedMemory(ABC):
    """A device's memory of sequences; see also `cortiq.backend.pages.PageMemory`.

    Rings are arrays [`ring_rows(slot)`, width], recurrent states have the slot's shape.

    Attributes
    ----------
    layout : where slots lie in pages and blocks.
    """

    layout: PagedLayout

    @abstractmethod
    def allocate(self, group: PageGroup) -> Any:
        """Return memory of a page; raise `MemoryError` where the device has none left."""

    @abstractmethod
    def copy(self, group: PageGroup, source: Any, target: Any) -> None:
        """Copy what a page or block holds into another of its group."""

    @abstractmethod
    def read_page(self, name: str, page: Any) -> KVPlanes:
        """Return all rows of a slot in a page."""

    @abstractmethod
    def write_page(self, name: str, page: Any, rows: KVPlanes) -> None:
        """Replace all rows of a slot in a page."""

    @abstractmethod
    def read(self, name: str, block: Any) -> Floats:
        """Return a ring, or a recurrent state."""

    @abstractmethod
    def write(self, name: str, block: Any, values: Floats, length: int) -> None:
        """Replace a ring or a recurrent state by that of a sequence of so many rows."""

    def free(self, group: PageGroup, data: Any) -> None:
        """Take memory back: nothing, where nobody refers to it any more."""
        return

    def spoil(self, group: PageGroup, data: Any) -> None:
        """In tests, fill a page whose rows nobody needs with what would show if it were read."""
        return

    def recurrent_extent(self) -> RecurrentExtent:
        """Return the extent of an empty recurrent state."""
        return RecurrentExtent()

    def rewind(self, name: str, block: Any, extent: Any) -> None:
        """Bring a recurrent state back to where its extent is now: before the first row."""
        slot: Any = self.layout.fixed[name]
        self.write(name, block, np.zeros(slot.shape, np.float32), extent.length)
