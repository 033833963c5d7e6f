"""Sequences in pages: forks and snapshots share them, whoever writes to one has it alone.

A backend says what memory is (`PagedMemory`) and where slots lie in it (`PagedLayout`).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from cortiq.backend import planes
from cortiq.backend.extents import RecurrentExtent
from cortiq.backend.pages import NoMemoryError, Page, PageGroup, PagePool, PageRun, PageTable
from cortiq.backend.sequence import SequenceState
from cortiq.backend.state import ExportedState, KVPlanes
from cortiq.backend.windows import Extent
from cortiq.errors import RequestError
from cortiq.ir import KVRows, Recurrent, Ring

SlotExtent = Extent | RecurrentExtent


class PagedSnapshot:
    """A copy of a sequence; its pages are given back when nobody refers to it any more."""

    def __init__(
        self,
        pool: PagePool,
        runs: list[PageRun],
        block: Page | None,
        extents: list[SlotExtent],
        counted: tuple[list[int], dict[str, int]],
    ) -> None:
        self.pool, self.runs, self.block, self.extents = pool, runs, block, extents
        self.tokens, self.lengths = counted
        pages = [page for _, held in runs for page in held]
        self._ending = weakref.finalize(self, pool.decref, [*pages, *([block] if block else [])])


class PagedState(SequenceState):
    """One sequence.

    Pages are shared with what was forked from it, and with snapshots: a page is copied when a row
    is written to it that another holder would see.

    Attributes
    ----------
    tables : the pages of each group. block : rings and recurrent states; None before there is room.
    extents : how far slots are written, and how far back they can go; see `owner.extent_of`.
    """

    tables: Sequence[PageTable] = ()
    block: Page | None = None

    def clear(self) -> None:
        """Empty the sequence."""
        super().clear()
        layout = self.owner.layout
        self.tables = [PageTable(self.owner.pages, group) for group in layout.groups]
        self._reach = self._shared = 0
        self.extents: list[SlotExtent] = self.owner.new_extents()
        self.locate()

    def drop(self) -> None:
        """Give up all pages."""
        for table in self.tables:
            table.clear()
        if self.block is not None:
            self.owner.pages.decref([self.block])
            self.block = None

    def _extent(self, name: str) -> Any:
        return self.extents[self.owner.extent_of[name]]

    def locate(self) -> None:
        """Note the addresses of pages: called whenever these change."""

    def reserve(self, rows: int) -> bool:
        """Make room for `rows` more positions, if the memory limit allows it."""
        return self.grow(self.lengths["trunk"] + rows, self.lengths["trunk"])

    def grow(self, rows: int, start: int | None = None) -> bool:
        """Allocate memory for this many positions; own the pages of those from `start` on."""
        layout = self.owner.layout
        if rows > self._limit:
            return False
        self.owner.prepare(rows)
        stop, opens = max(layout.page_stop(rows), self._reach), rows > 0 and self._lacks_block()
        try:
            if stop > self._reach or opens:
                lacking = sum(table.lacking(stop) for table in self.tables)
                if not self.owner.fits(lacking + opens * layout.block.page_bytes):
                    return False
                if opens:
                    self._open_block()
                self._provide(stop)
            if start is not None and start // layout.page_rows < self._shared:
                self._own(start // layout.page_rows)
        except MemoryError:
            return False
        return True

    def has_room(self, position: int) -> bool:
        """Check whether a row at this position needs no memory that is not there, or is shared."""
        page_rows = self.owner.layout.page_rows
        return (
            self._shared * page_rows <= position < min(self._reach * page_rows, self._limit)
            and not self._lacks_block()
        )

    def _lacks_block(self) -> bool:
        return self.block is None and self.owner.layout.block.page_bytes > 0

    def _open_block(self) -> None:
        """Allocate rings and recurrent states, as they are before the first row."""
        self.block = self.owner.pages.new(self.owner.layout.block)
        fixed = self.owner.layout.fixed.items()
        recurrent = {name: self._extent(name) for name, s in fixed if not isinstance(s, Ring)}
        self.owner.memory.rewind_all(self.block.data, recurrent)

    def _provide(self, stop: int = 0) -> None:
        """Allocate pages up to this number, or as many as there was room for before."""
        stop = max(stop, self._reach)
        for table in self.tables:
            table.provide(stop)
        self._reach = stop
        self.locate()

    def _own(self, first: int) -> None:
        """Copy shared pages from this number on, to own them."""
        for table in self.tables:
            table.own(first)
        self._shared = first
        self.locate()

    def turn(self, entry: str, rows: int) -> None:
        """Reuse pages behind the window for an entry graph's rows up to so many."""
        stop = self.owner.layout.page_stop(rows)
        turned = [t.turn(stop) for t in self.tables if t.group.entry == entry]
        if any(turned):
            self.locate()

    def nbytes(self) -> int:
        """Return the bytes held, shared pages included."""
        block = self.owner.layout.block.page_bytes if self.block is not None else 0
        return sum(table.nbytes for table in self.tables) + block

    def advance(self, entry: str, tokens: list[int]) -> None:
        """Count rows that the slots now hold."""
        super().advance(entry, tokens)
        for number in self.owner.extents_of[entry]:
            self.extents[number].written(self.lengths[entry])

    def go_back(self, length: int, entry: str) -> int:
        """Forget rows of the slots that `entry` writes: all, where one cannot go back exactly."""
        extents = [self.extents[number] for number in self.owner.extents_of[entry]]
        reached = length if all(extent.reaches(length) for extent in extents) else 0
        if reached < self.lengths[entry]:
            for extent in extents:
                extent.rewind(reached)
            slots, names = self.owner.program.slots, self.owner.written[entry]
            recurrent = {n: self._extent(n) for n in names if isinstance(slots[n], Recurrent)}
            if self.block is not None:
                self.owner.memory.rewind_all(self.block.data, recurrent)
        if reached == 0:
            for table in self.tables:
                if table.first and table.group.entry == entry:
                    table.become((0, []))
            self._provide()
        return reached

    def _used(self) -> int:
        """Return the number after the last page that holds rows."""
        return self.owner.layout.page_stop(max(self.lengths.values(), default=0))

    def snapshot(self) -> PagedSnapshot:
        """Copy everything the sequence holds; pages are shared until one of both writes to them."""
        self.owner.settle_state(self)
        used, pool = self._used(), self.owner.pages
        block = None if self.block is None else pool.new(self.owner.layout.block, self.block)
        runs = [table.share(used) for table in self.tables]
        self._provide()
        self._shared = max(self._shared, used)
        extents = [replace(extent) for extent in self.extents]
        return PagedSnapshot(pool, runs, block, extents, (list(self.tokens), dict(self.lengths)))

    def restore(self, snapshot: PagedSnapshot) -> None:
        """Restore the sequence from a snapshot."""
        self.owner.settle_state(self)
        if snapshot.pool is not self.owner.pages:
            raise RequestError("the snapshot was lost with its device", hint="Feed the ids again.")
        rows, layout = max(snapshot.lengths.values(), default=0), self.owner.layout
        stop = max(layout.page_stop(rows), self._reach)
        pairs = zip(self.tables, snapshot.runs, strict=True)
        lacking = sum(table.lacking_after(run, stop) for table, run in pairs)
        opens = snapshot.block is not None and self._lacks_block()
        if rows > self._limit or not self.owner.fits(lacking + opens * layout.block.page_bytes):
            raise NoMemoryError()
        try:
            self.become(snapshot)
        except MemoryError:
            self.clear()
            raise

    def become(self, other: PagedSnapshot, taken: bool = False) -> None:
        """Share a snapshot's pages; with `taken`, take them over."""
        pool, before, block = self.owner.pages, self.block, other.block
        if block is not None:
            self.block = pool.incref([block])[0] if taken else pool.new(block.group, block)
        pool.decref([before] if before is not None else [])
        for table, run in zip(self.tables, other.runs, strict=True):
            table.become(run)
        rows = max(other.lengths.values(), default=0)
        stop = self.owner.layout.page_stop(rows)
        self._shared = max(self._shared, stop)
        self.tokens, self.lengths = list(other.tokens), dict(other.lengths)
        self.extents = [replace(extent) for extent in other.extents]
        self.owner.prepare(rows)
        self._provide(stop)

    def start_as(self, other: Self) -> None:
        """Start, empty, as a copy of another sequence."""
        self.become(other.snapshot(), taken=True)

    def fork(self, length: int | None = None) -> Self:
        """Open a second sequence that starts as this one, cut to `length` rows if given."""
        self.owner.settle_state(self)
        used = self._used()
        lacking = sum(table.lacking(self._reach, table.used(used)) for table in self.tables)
        block = self.block.group.page_bytes if self.block is not None else 0
        if not self.owner.fits(lacking + block):
            raise NoMemoryError()
        return super().fork(length)

    def _pages_of(self, name: str, base: int) -> tuple[list[Page], int]:
        """Return a slot's pages from row `base` on, and the rows before that one in the first."""
        layout = self.owner.layout
        table = self.tables[layout.group_of[name]]
        number, skipped = divmod(base, layout.page_rows)
        return table.pages[max(0, number - table.first) :], skipped

    def export_slot(self, name: str) -> Any:
        """Return a slot in the canonical layout."""
        slot, memory = self.owner.program.slots[name], self.owner.memory
        extent = self._extent(name)
        if isinstance(slot, KVRows):
            rows = extent.length - extent.base
            pages, skipped = self._pages_of(name, extent.base)
            there = pages[: self.owner.layout.page_stop(skipped + rows)]
            read = [memory.read_page(name, page.data) for page in there]
            return planes.joined(slot, read, skipped, rows)
        held = None if self.block is None else memory.read(name, self.block.data)
        if isinstance(slot, Ring):
            return planes.last_rows(slot, held, extent.length)
        return np.zeros(slot.shape, np.float32) if held is None else held

    def load(self, exported: ExportedState) -> None:
        """Load an exported sequence, which `cortiq.backend.check_exported` let pass."""
        slots, owner = exported.slots, self.owner
        for entry, names in owner.written.items():
            length, bases = exported.lengths[entry], dict.fromkeys(owner.extents_of[entry], 0)
            for name in names:
                number, given = owner.extent_of[name], slots[name]
                base = given.base(length) if isinstance(given, KVPlanes) else 0
                bases[number] = max(base, bases[number])
            for number, base in bases.items():
                self.extents[number].begin(length, base)
        for table in self.tables:
            table.first = self._first_page(table.group)
        super().load(exported)

    def _first_page(self, group: PageGroup) -> int:
        """Return the number of the page of the first row that some slot of the group has."""
        layout = self.owner.layout
        if group.most is None:
            return 0
        names = (name for name, number in layout.group_of.items() if number == group.number)
        return min(self._extent(name).base for name in names) // layout.page_rows

    def load_slot(self, name: str, given: Any, length: int) -> None:
        """Load a slot, which has room, with what was exported of a sequence of `length` rows."""
        slot, memory = self.owner.program.slots[name], self.owner.memory
        extent = self._extent(name)
        if isinstance(slot, KVRows):
            pages, skipped = self._pages_of(name, extent.base)
            rows = given.last(extent.length - extent.base)
            whole = planes.paged(rows, skipped, self.owner.layout.page_rows)
            for page, part in zip(pages, whole, strict=False):
                memory.write_page(name, page.data, part)
            return
        if self.block is None:
            self._open_block()
        values = planes.snapped(given)
        if isinstance(slot, Ring):
            values = planes.ring_of(slot, values, length)
        memory.write(name, self.block.data, values, length)  # type: ignore[union-attr]
