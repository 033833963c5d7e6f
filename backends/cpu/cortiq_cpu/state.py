"""Sequences: key and value rows in pages of the native layout, rows of rings, and the ids fed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cortiq.backend import ExportedState, KVPlanes
from cortiq.errors import RequestError
from cortiq_cpu.rings import Floats
from cortiq_cpu.shared import Bytes, Snapshot
from cortiq_cpu.tables import Group, Table

if TYPE_CHECKING:
    from cortiq_cpu.executable import CpuExecutable


class CpuState:
    """One sequence; see `cortiq.backend.State`.

    Pages are shared with what was forked from it, and with snapshots: a page is copied when a row
    is written to it that another holder would see.

    Attributes
    ----------
    tables : the pages of each group. extents : which rows of each `KVRows` slot are there.
    table_addresses : for each of these slots, where the addresses of its pages lie.
    ring_addresses, ring_capacities : of each ring slot.
    """

    def __init__(self, owner: CpuExecutable, limit: int) -> None:
        self.owner, self._limit, self._layout = owner, limit, owner.layout
        self.alive = True
        self.tables = [Table(owner.pages, group) for group in self._layout.groups]
        self.clear()

    def clear(self) -> None:
        """Empty the sequence."""
        for table in self.tables:
            table.clear()
        self._reach = self._shared = 0
        self.extents = {name: self.owner.extent(name) for name in self._layout.kv}
        self.rings = self._layout.new_rings()
        self.tokens: list[int] = []
        self.lengths = dict.fromkeys(self.owner.program.graphs, 0)
        self._locate()

    def _locate(self) -> None:
        """Note where everything lies."""
        layout = self._layout
        stop = max((table.end for table in self.tables), default=0)
        starts = np.zeros((len(self.tables), stop), np.uint64)
        for row, table in zip(starts, self.tables, strict=True):
            row[table.first : table.end] = [page.address for page in table.pages]
        offsets = np.array(list(layout.offsets.values()), np.uint64)
        groups = np.array(list(layout.group_numbers.values()), np.intp)
        self._addresses = np.ascontiguousarray(starts[groups] + offsets[:, None])
        step = np.uint64(self._addresses.strides[0] if self._addresses.size else 0)
        numbers = np.arange(len(offsets), dtype=np.uint64)
        self.table_addresses = np.uint64(self._addresses.ctypes.data) + numbers * step
        rows = self.rings.values()
        self.ring_addresses = np.array([ring.data.ctypes.data for ring in rows], np.uint64)
        self.ring_capacities = np.array([max(1, len(ring.data)) for ring in rows], np.int32)

    @property
    def limit(self) -> int:
        """Positions it may ever hold."""
        return self._limit

    def length(self, entry: str = "trunk") -> int:
        """Rows that the entry graph has seen."""
        return self.lengths[entry]

    def reserve(self, rows: int) -> bool:
        """Make room for `rows` more positions, if the memory limit allows it."""
        return self.grow(self.lengths["trunk"] + rows, self.lengths["trunk"])

    def grow(self, rows: int, start: int | None = None) -> bool:
        """Have memory for this many positions, and be able to write those from `start` on."""
        opened = not rows or all(len(ring.data) for ring in self.rings.values())
        if rows > self._limit:
            return False
        self.owner.prepare(rows)
        stop = self._layout.page_stop(rows)
        if stop > self._reach or not opened:
            stop = max(stop, self._reach)
            lacking = sum(table.lacking(stop) for table in self.tables)
            if not self.owner.fits(lacking + (0 if opened else self._layout.ring_bytes)):
                return False
            for ring in self.rings.values():
                ring.open()
            self._provide(stop)
        if start is not None and start // self._layout.page_rows < self._shared:
            self._own(start // self._layout.page_rows)
        return True

    def _provide(self, stop: int = 0) -> None:
        """Have what pages up to this number take, or those there was room for before."""
        self._reach = max(stop, self._reach)
        for table in self.tables:
            table.provide(self._reach)
        self._locate()

    def _own(self, first: int) -> None:
        """Have the pages from this number on alone."""
        for table in self.tables:
            table.own(first)
        self._shared = first
        self._locate()

    def turn(self, entry: str, rows: int) -> None:
        """Before an entry graph's rows up to so many: pages of rows given up become theirs."""
        stop = self._layout.page_stop(rows)
        turned = [t.turn(stop) for t in self.tables if t.group.entry == entry]
        if any(turned):
            self._locate()

    def nbytes(self) -> int:
        """Memory held, shared pages included."""
        return sum(table.nbytes for table in self.tables) + self.ring_bytes()

    def ring_bytes(self) -> int:
        """Memory that rings hold."""
        return sum(ring.data.nbytes for ring in self.rings.values())

    def advance(self, entry: str, tokens: Sequence[int]) -> None:
        """Count rows that the slots now hold."""
        before = self.lengths[entry]
        self.lengths[entry] = before + len(tokens)
        for name in self._layout.written[entry]:
            if name in self.rings:
                self.rings[name].written(before, self.lengths[entry])
            else:
                self.extents[name].length = self.lengths[entry]
                self.extents[name].trim()
        if entry == "trunk":
            self.tokens.extend(tokens)

    def rewind(self, length: int, entry: str = "trunk") -> int:
        """Forget the rows of `entry` from `length` on; see `cortiq.backend.State`."""
        before = self.lengths[entry]
        if not 0 <= length <= before:
            raise RequestError(f"cannot rewind from {before} rows to {length}")
        names = self._layout.written[entry]
        mine = [self.rings[name] for name in names if name in self.rings]
        extents = [self.extents[name] for name in names if name in self.extents]
        reached = min((ring.rewind(before, length) for ring in mine), default=length)
        if not all(extent.reaches(reached) for extent in extents):
            reached = 0
        if reached < before:
            for ring in mine:
                ring.go(reached, self.owner.pool)
        for extent in extents:
            extent.rewind(reached)
        if reached == 0:
            self._begin_again(entry)
        self.lengths[entry] = reached
        if entry == "trunk":
            del self.tokens[reached:]
        return reached

    def _begin_again(self, entry: str) -> None:
        """Have the pages of the first rows again."""
        for table in self.tables:
            if table.first and table.group.entry == entry:
                table.become((0, []))
        self._provide()

    def _used(self) -> int:
        """Number after the last page that holds rows."""
        return self._layout.page_stop(max(self.lengths.values(), default=0))

    def snapshot(self) -> Any:
        """Everything the sequence holds; it shares pages until one of both writes to them."""
        used = self._used()
        runs = [table.share(used) for table in self.tables]
        self._provide()
        self._shared = max(self._shared, used)
        rings = {name: ring.copy() for name, ring in self.rings.items()}
        extents = {name: replace(extent) for name, extent in self.extents.items()}
        lengths = dict(self.lengths)
        return Snapshot(self.owner.pages, runs, rings, extents, list(self.tokens), lengths)

    def restore(self, snapshot: Any) -> None:
        """Become what the snapshot was taken of."""
        rows = max(snapshot.lengths.values(), default=0)
        stop, layout = max(self._layout.page_stop(rows), self._reach), self._layout
        pairs = zip(self.tables, snapshot.runs, strict=True)
        lacking = sum(table.lacking_after(run, stop) for table, run in pairs)
        opened = not rows or all(len(ring.data) for ring in self.rings.values())
        lacking += 0 if opened else layout.ring_bytes
        if rows > self._limit or not self.owner.fits(lacking):
            raise RequestError("no memory is left for this sequence", hint="Release another first.")
        self._become(snapshot)

    def _become(self, snapshot: Snapshot) -> None:
        rows = max(snapshot.lengths.values(), default=0)
        for table, run in zip(self.tables, snapshot.runs, strict=True):
            table.become(run)
        stop = self._layout.page_stop(rows)
        self._shared = max(self._shared, stop)
        self.tokens, self.lengths = list(snapshot.tokens), dict(snapshot.lengths)
        self.rings = {name: ring.copy() for name, ring in snapshot.rings.items()}
        self.extents = {name: replace(extent) for name, extent in snapshot.extents.items()}
        self.owner.prepare(rows)
        self._provide(stop)

    def fork(self, length: int | None = None) -> CpuState:
        """A second sequence that starts as this one, cut to `length` rows if given."""
        used = self._used()
        lacking = sum(table.lacking(self._reach, table.used(used)) for table in self.tables)
        if not self.owner.fits(lacking + self.ring_bytes()):
            raise RequestError("no memory is left for this sequence", hint="Release another first.")
        other = self.owner.open(self._limit)
        try:
            other._become(self.snapshot())
            if length is not None and other.rewind(length) != length:
                raise RequestError(f"this sequence can be forked at its end, not at {length}")
        except BaseException:
            other.release()
            raise
        return other

    def export(self) -> ExportedState:
        """The sequence in the canonical layout."""
        lengths = self._layout.slot_lengths(self.lengths)
        slots: dict[str, KVPlanes | Floats] = {}
        for name, layout in self._layout.kv.items():
            base = self.extents[name].base
            pages, skipped = self._pages_of(name, base)
            slots[name] = layout.read(pages, skipped, lengths.get(name, 0) - base)
        for name, ring in self.rings.items():
            slots[name] = ring.last(lengths.get(name, 0))
        return ExportedState(dict(self.lengths), np.array(self.tokens, np.int32), slots)

    def _pages_of(self, name: str, base: int) -> tuple[list[Bytes], int]:
        """A slot's part of the pages from row `base` on, and the rows before that one in them."""
        table = self.tables[self._layout.group_numbers[name]]
        start = self._layout.offsets[name]
        stop = start + self._layout.kv[name].page_bytes
        number, skipped = divmod(base, self._layout.page_rows)
        pages = table.pages[max(0, number - table.first) :]
        return [page.data[start:stop] for page in pages], skipped

    def load(self, exported: ExportedState) -> None:
        """Become an exported sequence, which `cortiq.backend.check_exported` let pass."""
        lengths = self._layout.slot_lengths(exported.lengths)
        slots: Any = exported.slots
        for name, extent in self.extents.items():
            if name in lengths:
                extent.length, extent.base = lengths[name], slots[name].base(lengths[name])
                extent.trim()
        for table in self.tables:
            table.first = self._first_page(table.group)
        if not self.grow(max(exported.lengths.values())):
            raise RequestError("the exported state is longer than memory allows")
        for name, layout in self._layout.kv.items():
            if name in lengths:
                extent = self.extents[name]
                pages, skipped = self._pages_of(name, extent.base)
                layout.write(pages, skipped, slots[name].last(extent.length - extent.base))
        for name, ring in self.rings.items():
            ring.open()
            ring.load(slots[name], lengths.get(name, 0))
        self.tokens = [int(t) for t in exported.tokens]
        self.lengths = dict(exported.lengths)
        self._locate()

    def _first_page(self, group: Group) -> int:
        """Number of the page of the first row that some slot of the group has."""
        numbers = self._layout.group_numbers
        bases = [e.base for name, e in self.extents.items() if numbers[name] == group.number]
        return min(bases) // self._layout.page_rows

    def release(self) -> None:
        """Give the memory back."""
        for table in self.tables:
            table.clear()
        self.rings, self.alive = {}, False
        self.owner.forget(self)
