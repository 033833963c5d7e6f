"""The layout of a program's slots: rows of keys and values in pages, the rest in one block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from cortiq.backend.pages import PageGroup
from cortiq.backend.windows import PIECE_ROWS, most_rows
from cortiq.ir import KVRows, Program, Slot
from cortiq.numerics.contract import TILE


class PagedLayout:
    """The places of a program's slots.

    Parameters
    ----------
    nbytes_of : bytes of a slot, by name: of a page for `KVRows` slots, of the block for others.
    page_rows : rows of a page, rounded up to whole tiles of 64.
    windows : of slots whose rows are given up behind them.
    piece_rows : rows that a sequence has memory for beyond those it keeps of such a slot.

    Attributes
    ----------
    kv, fixed : slots by name, those of rows and those of one size.
    groups : of `KVRows` slots that share pages; those of a page lie one after the other.
    group_of : number of each of these slots' group. block : of what has one size for a sequence.
    offsets : of every slot in the page or in the block.
    """

    def __init__(
        self,
        program: Program,
        nbytes_of: Callable[[str, Slot], int],
        page_rows: int = TILE,
        windows: Mapping[str, int] | None = None,
        piece_rows: int = PIECE_ROWS,
    ) -> None:
        self._piece = piece_rows
        self.page_rows = max(1, -(-page_rows // TILE)) * TILE
        self.kv = {n: slot for n, slot in program.slots.items() if isinstance(slot, KVRows)}
        self.fixed = {n: slot for n, slot in program.slots.items() if n not in self.kv}
        self.groups: list[PageGroup] = []
        self.group_of: dict[str, int] = {}
        self.offsets: dict[str, int] = {}
        graphs = program.graphs.items()
        writers = {slot: entry for entry, graph in graphs for slot in graph.written_slots()}
        known: dict[tuple[str, int | None], int] = {}
        for name, slot in self.kv.items():
            window = (windows or {}).get(name)
            key = (writers.get(name, "") if window else "", window)
            if key not in known:
                known[key] = len(self.groups)
                self.groups.append(PageGroup(known[key], key[0], self._most_pages(window)))
            number = self.group_of[name] = known[key]
            self.groups[number] = self._placed(name, self.groups[number], nbytes_of(name, slot))
        self.block = PageGroup(len(self.groups))
        for name, other in self.fixed.items():
            self.block = self._placed(name, self.block, nbytes_of(name, other))

    def _placed(self, name: str, group: PageGroup, nbytes: int) -> PageGroup:
        self.offsets[name] = group.page_bytes
        return replace(group, page_bytes=group.page_bytes + nbytes)

    def _most_pages(self, window: int | None) -> int | None:
        """Count the pages that hold every run of rows ever needed, wherever a tile begins it."""
        if window is None:
            return None
        return -(-(most_rows(window, self._piece) + self.page_rows - TILE) // self.page_rows)

    @property
    def page_bytes(self) -> int:
        """Return the bytes of a page of every group."""
        return sum(group.page_bytes for group in self.groups)

    def page_stop(self, rows: int) -> int:
        """Return the number of the first page that so many rows do not need."""
        return -(-rows // self.page_rows)

    def nbytes(self, rows: int) -> int:
        """Return the bytes of a sequence of this many rows."""
        stop = self.page_stop(rows)
        counts = [stop if g.most is None else min(stop, g.most) for g in self.groups]
        pages = sum(n * g.page_bytes for n, g in zip(counts, self.groups, strict=True))
        return pages + (self.block.page_bytes if rows else 0)
