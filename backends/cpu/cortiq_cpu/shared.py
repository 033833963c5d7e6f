"""Pages that several sequences hold: shared while they are only read, copied when one writes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from cortiq.backend.windows import Extent

Bytes = npt.NDArray[np.uint8]


class Page:
    """Rows of the slots of one group for a run of positions.

    Attributes
    ----------
    data : its bytes, aligned. address : of the first. users : sequences and snapshots that hold it.
    """

    __slots__ = ("address", "data", "users")

    def __init__(self, data: Bytes) -> None:
        self.data, self.address, self.users = data, data.ctypes.data, 1


class Pages:
    """The pages of an executable.

    Parameters
    ----------
    make : bytes of a page of a group. spoil : in tests, spoils what they hold.

    Attributes
    ----------
    count, nbytes : pages there are, each once however many hold it.
    """

    def __init__(
        self, make: Callable[[int], Bytes], spoil: Callable[[int, Bytes], None] = lambda *_: None
    ) -> None:
        self._make, self._spoil = make, spoil
        self.count = self.nbytes = 0

    def new(self, group: int, source: Page | None = None) -> Page:
        """A page of a group, with the bytes of another one if given."""
        page = Page(self._make(group))
        if source is not None:
            page.data[:] = source.data
        self.count += 1
        self.nbytes += page.data.nbytes
        return page

    def again(self, group: int, page: Page) -> Page:
        """A page whose rows nobody needs, for others."""
        self._spoil(group, page.data)
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
            if page.users == 0:
                self.count -= 1
                self.nbytes -= page.data.nbytes


Run = tuple[int, list[Page]]
"""Number of the first page, and the pages from there on."""


class Snapshot:
    """What a sequence held; its pages are given back when nobody refers to it any more."""

    def __init__(
        self,
        owner: Pages,
        runs: list[Run],
        rings: Mapping[str, Any],
        extents: Mapping[str, Extent],
        tokens: list[int],
        lengths: dict[str, int],
    ) -> None:
        self.runs, self.rings, self.extents = runs, rings, extents
        self.tokens, self.lengths = tokens, lengths
        pages = [page for _, held in runs for page in held]
        self._ending = weakref.finalize(self, owner.drop, pages)
