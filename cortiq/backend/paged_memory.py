"""Memory of sequences, as a backend describes it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from cortiq.backend.extents import RecurrentExtent
from cortiq.backend.paged_layout import PagedLayout
from cortiq.backend.pages import PageMemory
from cortiq.backend.planes import Floats
from cortiq.backend.state import KVPlanes


class PagedMemory(PageMemory):
    """A device's memory of sequences, in pages and in a block for each.

    Rings are arrays [`ring_rows(slot)`, width], recurrent states have the slot's shape.

    Attributes
    ----------
    layout : where slots lie in pages and blocks.
    """

    layout: PagedLayout

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

    def recurrent_extent(self) -> RecurrentExtent:
        """Return the extent of an empty recurrent state."""
        return RecurrentExtent()

    def rewind_all(self, block: Any, extents: Mapping[str, Any]) -> None:
        """Bring recurrent states of a block back to where their extents are now."""
        for name, extent in extents.items():
            self.rewind(name, block, extent)

    def rewind(self, name: str, block: Any, extent: Any) -> None:
        """Bring a recurrent state back to where its extent is now: before the first row."""
        slot: Any = self.layout.fixed[name]
        self.write(name, block, np.zeros(slot.shape, np.float32), extent.length)
