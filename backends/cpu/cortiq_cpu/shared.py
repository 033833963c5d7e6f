"""Pages that several sequences hold: shared while they are only read, copied when one writes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


class Page:
    """Rows of all `KVRows` slots for a run of positions.

    Attributes
    ----------
    data : its bytes, aligned. address : of the first. users : sequences and snapshots that hold it.
    """

    __slots__ = ("address", "data", "users")

    def __init__(self, data: Bytes) -> None:
        self.data, self.address, self.users = data, data.ctypes.data, 1


class Pages:
    """The pages of an executable.

    Attributes
    ----------
    count : pages there are, each once however many hold it.
    """

    def __init__(self, make: Callable[[], Bytes]) -> None:
        self._make = make
        self.count = 0

    def new(self, source: Page | None = None) -> Page:
        """A page, with the bytes of another one if given."""
        page = Page(self._make())
        if source is not None:
            page.data[:] = source.data
        self.count += 1
        return page

    @staticmethod
    def share(pages: Iterable[Page]) -> list[Page]:
        """The same pages for one more holder."""
        held = list(pages)
        for page in held:
            page.users += 1
        return held

    def drop(self, pages: Iterable[Page]) -> None:
        """Pages that a holder needs no more; those nobody needs are gone."""
        for page in pages:
            page.users -= 1
            self.count -= page.users == 0


class Snapshot:
    """What a sequence held; its pages are given back when nobody refers to it any more."""

    def __init__(
        self,
        owner: Pages,
        pages: list[Page],
        rings: dict[str, Any],
        tokens: list[int],
        lengths: dict[str, int],
    ) -> None:
        self.pages, self.rings, self.tokens, self.lengths = pages, rings, tokens, lengths
        self._ending = weakref.finalize(self, owner.drop, pages)
