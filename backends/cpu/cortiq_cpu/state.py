"""Sequences: key and value rows in pages of the native layout, rows of rings, and the ids fed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cortiq.backend import ExportedState, KVPlanes
from cortiq.errors import RequestError, UnsupportedError
from cortiq.ir import Graph, KVRows, Program, Recurrent, Ring, ops
from cortiq_cpu.arena import LINE, aligned
from cortiq_cpu.pages import TILE, PageLayout
from cortiq_cpu.recurrents import Recurrences, Whole, recurrences_of
from cortiq_cpu.rings import POISON, Floats, Rows
from cortiq_cpu.shared import Bytes, Page, Pages, Snapshot

if TYPE_CHECKING:
    from cortiq_cpu.executable import CpuExecutable


class StateLayout:
    """What every sequence of a program holds.

    Attributes
    ----------
    kv, rings : slots by name, recurrent ones among the rings; their order numbers them in the
        native calls.
    offsets : where in a page each `KVRows` slot begins. A page holds its rows of all slots.
    page_rows : positions of a page.
    """

    def __init__(
        self,
        program: Program,
        graphs: Mapping[str, Graph],
        page_rows: int,
        poison: bool = False,
    ) -> None:
        self.poison = poison
        tiles = max(1, -(-page_rows // TILE))
        self.page_rows = tiles * TILE
        self.kv: dict[str, PageLayout] = {}
        self.rings: dict[str, Ring | Recurrences] = {}
        recurrences = {
            node.slots["state"]: recurrences_of(node, graph)
            for graph in graphs.values()
            for node in graph.nodes
            if isinstance(node.op, ops.DeltaRule | ops.StateSpace)
        }
        for name, slot in program.slots.items():
            if isinstance(slot, KVRows):
                self.kv[name] = PageLayout(slot, tiles)
            elif isinstance(slot, Ring):
                self.rings[name] = slot
            elif isinstance(slot, Recurrent) and name in recurrences:
                self.rings[name] = recurrences[name]
            else:
                raise UnsupportedError(f"a slot of kind {type(slot).__name__}", where=name)
        self.kv_numbers = {name: number for number, name in enumerate(self.kv)}
        self.ring_numbers = {name: number for number, name in enumerate(self.rings)}
        self.written = {name: graph.written_slots() for name, graph in graphs.items()}
        self.offsets: dict[str, int] = {}
        self.page_bytes = 0
        for name, layout in self.kv.items():
            self.offsets[name] = self.page_bytes
            self.page_bytes += aligned(layout.page_bytes)

    def nbytes(self, rows: int) -> int:
        """Memory of a sequence of this many rows."""
        return -(-rows // self.page_rows) * self.page_bytes + (self.ring_bytes if rows else 0)

    @property
    def ring_bytes(self) -> int:
        """Memory of a sequence's rings, however long it is."""
        return sum(store.nbytes for store in self.new_rings().values())

    def new_rings(self) -> dict[str, Rows | Whole]:
        """What a sequence keeps its rings in; none has memory yet."""
        fill = POISON if self.poison else 0.0
        return {
            name: Rows(slot, fill) if isinstance(slot, Ring) else Whole(slot)
            for name, slot in self.rings.items()
        }

    def slot_lengths(self, lengths: Mapping[str, int]) -> dict[str, int]:
        """Rows of each slot when the entry graphs have seen these."""
        return {slot: lengths[entry] for entry, slots in self.written.items() for slot in slots}

    def new_page(self) -> Bytes:
        """A page of zeros, aligned; in tests, of what would show if it were read."""
        block = np.zeros(self.page_bytes + LINE, np.uint8)
        skip = -block.ctypes.data % LINE
        page = block[skip : skip + self.page_bytes]
        if self.poison:
            for name, layout in self.kv.items():
                start = self.offsets[name]
                layout.poison(page[start : start + layout.page_bytes])
        return page


class CpuState:
    """One sequence; see `cortiq.backend.State`.

    Pages are shared with what was forked from it, and with snapshots: a page is copied when a row
    is written to it that another holder would see.

    Attributes
    ----------
    tables : addresses of the pages of each `KVRows` slot, uint64 [slots, pages].
    table_addresses : addresses of the rows of `tables`.
    ring_addresses, ring_capacities : of each ring slot.
    """

    def __init__(self, owner: CpuExecutable, limit: int) -> None:
        self.owner, self._limit, self._layout = owner, limit, owner.layout
        self.alive = True
        self.pages: list[Page] = []
        self.clear()

    def clear(self) -> None:
        """Empty the sequence."""
        self._pages.drop(self.pages)
        self.pages = []
        self._shared = 0
        self.rings = self._layout.new_rings()
        self.tokens: list[int] = []
        self.lengths = dict.fromkeys(self.owner.program.graphs, 0)
        self._locate()

    @property
    def _pages(self) -> Pages:
        return self.owner.pages

    def _locate(self) -> None:
        """Note where everything lies."""
        offsets = np.array(list(self._layout.offsets.values()), np.uint64)
        starts = np.array([page.address for page in self.pages], np.uint64)
        self.tables = np.ascontiguousarray(offsets[:, None] + starts[None, :])
        step = np.uint64(self.tables.strides[0] if self.tables.size else 0)
        numbers = np.arange(len(offsets), dtype=np.uint64)
        self.table_addresses = np.uint64(self.tables.ctypes.data) + numbers * step
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
        page_rows = self._layout.page_rows
        missing = -(-rows // page_rows) - len(self.pages) if self._layout.kv else 0
        opened = not rows or all(len(ring.data) for ring in self.rings.values())
        if rows > self._limit:
            return False
        self.owner.prepare(rows)
        if missing > 0 or not opened:
            more = max(0, missing) * self._layout.page_bytes
            if not self.owner.fits(more + (0 if opened else self._layout.ring_bytes)):
                return False
            self.pages += [self._pages.new() for _ in range(missing)]
            for ring in self.rings.values():
                ring.open()
            self._locate()
        if start is not None and start // page_rows < self._shared:
            self._own(start // page_rows)
        return True

    def _own(self, first: int) -> None:
        """Have the pages from this one on alone."""
        for index in range(first, min(self._shared, len(self.pages))):
            page = self.pages[index]
            if page.users > 1:
                self.pages[index] = self._pages.new(page)
                self._pages.drop([page])
        self._shared = first
        self._locate()

    def nbytes(self) -> int:
        """Memory held, shared pages included."""
        return len(self.pages) * self._layout.page_bytes + self.ring_bytes()

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
        if entry == "trunk":
            self.tokens.extend(tokens)

    def rewind(self, length: int, entry: str = "trunk") -> int:
        """Forget the rows of `entry` from `length` on; see `cortiq.backend.State`."""
        before = self.lengths[entry]
        if not 0 <= length <= before:
            raise RequestError(f"cannot rewind from {before} rows to {length}")
        mine = [self.rings[n] for n in self._layout.written[entry] if n in self.rings]
        reached = min((ring.rewind(before, length) for ring in mine), default=length)
        if reached < before:
            for ring in mine:
                ring.go(reached, self.owner.pool)
        self.lengths[entry] = reached
        if entry == "trunk":
            del self.tokens[reached:]
        return reached

    def _used(self) -> list[Page]:
        """Pages that hold rows."""
        return self.pages[: -(-max(self.lengths.values(), default=0) // self._layout.page_rows)]

    def snapshot(self) -> Any:
        """Everything the sequence holds; it shares pages until one of both writes to them."""
        rings = {name: ring.copy() for name, ring in self.rings.items()}
        pages = self._pages.share(self._used())
        self._shared = max(self._shared, len(pages))
        return Snapshot(self._pages, pages, rings, list(self.tokens), dict(self.lengths))

    def restore(self, snapshot: Any) -> None:
        """Become what the snapshot was taken of."""
        if not self.grow(max(snapshot.lengths.values(), default=0)):
            raise RequestError("no memory is left for this sequence", hint="Release another first.")
        self._become(snapshot)

    def _become(self, snapshot: Snapshot) -> None:
        held = len(snapshot.pages)
        replaced, self.pages[:held] = self.pages[:held], self._pages.share(snapshot.pages)
        self._pages.drop(replaced)
        self._shared = max(self._shared, held)
        self.tokens, self.lengths = list(snapshot.tokens), dict(snapshot.lengths)
        self.rings = {name: ring.copy() for name, ring in snapshot.rings.items()}
        self._locate()

    def fork(self, length: int | None = None) -> CpuState:
        """A second sequence that starts as this one, cut to `length` rows if given."""
        if not self.owner.fits(self.ring_bytes()):
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
            slots[name] = layout.read(self._pages_of(name), lengths.get(name, 0))
        for name, ring in self.rings.items():
            slots[name] = ring.last(lengths.get(name, 0))
        return ExportedState(dict(self.lengths), np.array(self.tokens, np.int32), slots)

    def _pages_of(self, name: str) -> list[Bytes]:
        start = self._layout.offsets[name]
        stop = start + self._layout.kv[name].page_bytes
        return [page.data[start:stop] for page in self.pages]

    def load(self, exported: ExportedState) -> None:
        """Become an exported sequence, which `cortiq.backend.check_exported` let pass."""
        lengths = self._layout.slot_lengths(exported.lengths)
        if not self.grow(max(exported.lengths.values())):
            raise RequestError("the exported state is longer than memory allows")
        slots: Any = exported.slots
        for name, layout in self._layout.kv.items():
            if name in lengths:
                layout.write(self._pages_of(name), slots[name])
        for name, ring in self.rings.items():
            ring.open()
            ring.load(slots[name], lengths.get(name, 0))
        self.tokens = [int(t) for t in exported.tokens]
        self.lengths = dict(exported.lengths)
        self._locate()

    def release(self) -> None:
        """Give the memory back."""
        self._pages.drop(self.pages)
        self.pages, self.rings, self.alive = [], {}, False
        self.owner.forget(self)
