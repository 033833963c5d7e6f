"""Which pages a sequence has: of slots seen through windows only the last, the others in turn."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq_cpu.shared import Page, Pages, Run


@dataclass(frozen=True)
class Group:
    """Slots that lie in the same pages, since the same rows of all of them are given up.

    Attributes
    ----------
    number : among the groups. entry : graph that writes them.
    most : pages that a sequence needs at once at most; None for all.
    """

    number: int
    entry: str
    most: int | None
    page_bytes: int = 0


class Table:
    """The pages of a sequence for one group: page n holds rows n·page_rows ….

    Where the group has a limit, the page of the oldest rows becomes that of the next. One that
    somebody else still reads cannot, so there is a spare one for each of those.

    Attributes
    ----------
    first : number of the first page.
    """

    def __init__(self, owner: Pages, group: Group) -> None:
        self._owner, self.group = owner, group
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
        """Pages to add so that rows before page `stop` can be written, and to have in spare.

        Parameters
        ----------
        held : number after the last page's. shared : whether others hold each of the pages.
        """
        coming, most = max(0, stop - held), self.group.most
        added = coming if most is None else min(coming, most - len(shared))
        return added, sum(shared[: coming - added])

    def lacking(self, stop: int, sharing: int = 0) -> int:
        """Bytes that `provide` takes; the first `sharing` pages are going to be shared."""
        shared = [i < sharing or page.users > 1 for i, page in enumerate(self.pages)]
        added, spare = self._need(stop, self.end, shared)
        return max(0, added + spare - len(self.spare)) * self.group.page_bytes

    def lacking_after(self, run: Run, stop: int) -> int:
        """Bytes that `become` and then `provide` take."""
        first, pages = run
        added, spare = self._need(stop, first + len(pages), [True] * len(pages))
        mine = len(self.spare) + sum(page.users == 1 for page in self.pages)
        return max(0, added + spare - mine) * self.group.page_bytes

    def provide(self, stop: int) -> None:
        """Have pages enough to write rows before page `stop`, and to let them take turns."""
        added, spare = self._need(stop, self.end, [page.users > 1 for page in self.pages])
        self.pages += [self._take() for _ in range(added)]
        while len(self.spare) < spare:
            self.spare.append(self._owner.new(self.group.number))
        self._owner.drop(self.spare[spare:])
        del self.spare[spare:]

    def _take(self) -> Page:
        return self.spare.pop() if self.spare else self._owner.new(self.group.number)

    def turn(self, stop: int) -> bool:
        """Let the oldest pages become those up to page `stop`; whether any did."""
        turned = self.end < stop
        while self.end < stop:
            oldest = self.pages.pop(0)
            if oldest.users > 1:
                self._owner.drop([oldest])
                oldest = self._take()
            self.first += 1
            self.pages.append(self._owner.again(self.group.number, oldest))
        return turned

    def own(self, index: int) -> None:
        """Have the pages from number `index` on alone."""
        for place in range(max(0, index - self.first), len(self.pages)):
            page = self.pages[place]
            if page.users > 1:
                self.pages[place] = self._owner.new(self.group.number, page)
                self._owner.drop([page])

    def used(self, stop: int) -> int:
        """Pages before number `stop`."""
        return max(0, min(stop, self.end) - self.first)

    def share(self, stop: int) -> Run:
        """The pages before number `stop`, for one more holder."""
        return self.first, self._owner.share(self.pages[: self.used(stop)])

    def become(self, run: Run) -> None:
        """Hold these pages, which stay shared; what it had alone is in spare."""
        replaced, (self.first, pages) = self.pages, run
        self.spare += [page for page in replaced if page.users == 1]
        self._owner.drop(page for page in replaced if page.users > 1)
        self.pages = self._owner.share(pages)

    def clear(self) -> None:
        """Hold nothing."""
        self._owner.drop([*self.pages, *self.spare])
        self.first, self.pages, self.spare = 0, [], []
