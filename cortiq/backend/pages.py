"""KV cache pages: counted by how many hold them, shared while they are only read, copied when one
writes; and the page table of a sequence, in which pages behind a window are used again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cortiq.errors import RequestError


class NoMemoryError(RequestError, MemoryError):
    """Sequences have taken all the memory there is."""

    def __init__(self) -> None:
        hint = "Release another first."
        super().__init__("no memory is left for this sequence", hint=hint)


@dataclass(frozen=True)
class PageGroup:
    """Slots that lie in the same pages, since the same rows of all of them are given up.

    Attributes
    ----------
    number : among the groups. entry : graph that writes them.
    most : pages that a sequence needs at once at most; None for all.
    """

    number: int
    entry: str = ""
    most: int | None = None
    page_bytes: int = 0


class PageMemory(ABC):
    """Memory that pages are taken from; what a page's data is, only it knows."""

    @abstractmethod
    def allocate(self, group: PageGroup) -> Any:
        """Return memory of a page; raise `MemoryError` where the device has none left."""

    @abstractmethod
    def copy(self, group: PageGroup, source: Any, target: Any) -> None:
        """Copy what a page holds into another of its group."""

    def free(self, group: PageGroup, data: Any) -> None:
        """Take memory back: nothing, where nobody refers to it any more."""
        return

    def spoil(self, group: PageGroup, data: Any) -> None:
        """Fill a page that nobody needs with values that show if they are read; only in tests."""
        return


class Page:
    """A page of a group, and how many sequences and snapshots hold it."""

    __slots__ = ("data", "group", "users")

    def __init__(self, group: PageGroup, data: Any) -> None:
        self.group, self.data, self.users = group, data, 1


class PagePool:
    """The pages of an executable.

    Attributes
    ----------
    counts : pages there are, by group. nbytes : of all, each once however many hold it.
    """

    def __init__(self, memory: PageMemory) -> None:
        self.memory = memory
        self.counts: Counter[int] = Counter()
        self.nbytes = 0

    @property
    def count(self) -> int:
        """Count all pages and blocks."""
        return self.counts.total()

    def new(self, group: PageGroup, source: Page | None = None) -> Page:
        """Return a page of a group, with what another one holds if given."""
        page = Page(group, self.memory.allocate(group))
        if source is not None:
            self.memory.copy(group, source.data, page.data)
        self.counts[group.number] += 1
        self.nbytes += group.page_bytes
        return page

    def reuse(self, page: Page) -> Page:
        """Return a page whose rows nobody needs, for others."""
        self.memory.spoil(page.group, page.data)
        return page

    @staticmethod
    def incref(pages: Iterable[Page]) -> list[Page]:
        """Count one more holder of each page, and return them."""
        held = list(pages)
        for page in held:
            page.users += 1
        return held

    def decref(self, pages: Iterable[Page]) -> None:
        """Count one holder less of each page; free those that nobody needs."""
        for page in pages:
            page.users -= 1
            if page.users == 0:
                self.counts[page.group.number] -= 1
                self.nbytes -= page.group.page_bytes
                self.memory.free(page.group, page.data)


PageRun = tuple[int, list[Page]]
"""Number of the first page, and the pages from there on."""


class PageTable:
    """The pages of a sequence for one group: page n holds rows n·page_rows ….

    Where the group has a limit, the page of the oldest rows becomes that of the next. One that
    somebody else still reads cannot, so there is a spare one for each of those.

    Attributes
    ----------
    first : number of the first page.
    """

    def __init__(self, pool: PagePool, group: PageGroup) -> None:
        self._pool, self.group = pool, group
        self.first = 0
        self.pages: list[Page] = []
        self.spare: list[Page] = []

    @property
    def end(self) -> int:
        """Number after the last page's."""
        return self.first + len(self.pages)

    @property
    def nbytes(self) -> int:
        """Memory held, shared pages included."""
        return (len(self.pages) + len(self.spare)) * self.group.page_bytes

    def _need(self, stop: int, held: int, shared: list[bool]) -> tuple[int, int]:
        """Count pages to add so that rows before page `stop` can be written, and to have in spare.

        Parameters
        ----------
        held : number after the last page's. shared : whether others hold each of the pages.
        """
        coming, most = max(0, stop - held), self.group.most
        added = coming if most is None else min(coming, max(0, most - len(shared)))
        return added, sum(shared[: coming - added])

    def lacking(self, stop: int, sharing: int = 0) -> int:
        """Return the bytes that `provide` takes; the first `sharing` pages will be shared."""
        shared = [i < sharing or page.users > 1 for i, page in enumerate(self.pages)]
        added, spare = self._need(stop, self.end, shared)
        return max(0, added + spare - len(self.spare)) * self.group.page_bytes

    def lacking_after(self, run: PageRun, stop: int) -> int:
        """Return the bytes that `become` and then `provide` take."""
        first, pages = run
        added, spare = self._need(stop, first + len(pages), [True] * len(pages))
        mine = len(self.spare) + sum(page.users == 1 for page in self.pages)
        return max(0, added + spare - mine) * self.group.page_bytes

    def provide(self, stop: int) -> None:
        """Add pages to write rows before page `stop`, and those in spare for turns."""
        added, spare = self._need(stop, self.end, [page.users > 1 for page in self.pages])
        for _ in range(added):
            self.pages.append(self._take())
        while len(self.spare) < spare:
            self.spare.append(self._pool.new(self.group))
        self._pool.decref(self.spare[spare:])
        del self.spare[spare:]

    def _take(self) -> Page:
        return self.spare.pop() if self.spare else self._pool.new(self.group)

    def turn(self, stop: int) -> bool:
        """Reuse the oldest pages as those up to page `stop`; return whether any was."""
        turned = self.end < stop
        while self.end < stop:
            self._reuse_oldest()
        return turned

    def _reuse_oldest(self) -> None:
        oldest = self.pages.pop(0)
        if oldest.users > 1:
            self._pool.decref([oldest])
            oldest = self._take()
        self.first += 1
        self.pages.append(self._pool.reuse(oldest))

    def exceed(self, stop: int, needed: int) -> bool:
        """Have pages up to number `stop` for the rows of one batch; return whether any was added.

        Those before number `needed` are reused; where there are no more of them, the group's limit
        is exceeded until `shed` is called.
        """
        added = self.end < stop
        while self.end < stop:
            if self.pages and self.first < needed:
                self._reuse_oldest()
            else:
                self.pages.append(self._pool.new(self.group))
        return added

    def shed(self, needed: int, reach: int) -> None:
        """Give back pages beyond the limit: first those before number `needed`, then those behind
        the last row; what rows before page `reach` were promised stays.
        """
        most = len(self.pages) if self.group.most is None else self.group.most
        while len(self.pages) > most:
            oldest = self.first < needed
            page = self.pages.pop(0 if oldest else -1)
            self.first += oldest
            if page.users > 1:
                self._pool.decref([page])
            else:
                self.spare.append(page)
        self.provide(reach)

    def own(self, index: int) -> None:
        """Copy shared pages from number `index` on, to own them."""
        for place in range(max(0, index - self.first), len(self.pages)):
            page = self.pages[place]
            if page.users > 1:
                self.pages[place] = self._pool.new(self.group, page)
                self._pool.decref([page])

    def used(self, stop: int) -> int:
        """Count the pages before number `stop`."""
        return max(0, min(stop, self.end) - self.first)

    def share(self, stop: int) -> PageRun:
        """Return the pages before number `stop`, for one more holder."""
        return self.first, self._pool.incref(self.pages[: self.used(stop)])

    def become(self, run: PageRun) -> None:
        """Share these pages; the table's own ones become spare."""
        replaced, (self.first, pages) = self.pages, run
        self.spare += [page for page in replaced if page.users == 1]
        self._pool.decref(page for page in replaced if page.users > 1)
        self.pages = self._pool.incref(pages)

    def clear(self) -> None:
        """Release all pages."""
        self._pool.decref([*self.pages, *self.spare])
        self.first, self.pages, self.spare = 0, [], []
