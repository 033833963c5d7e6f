"""Sequences: key and value rows in pages of the native layout, rows of rings, and the ids fed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cortiq.backend import ExportedState, KVPlanes
from cortiq.errors import RequestError, UnsupportedError
from cortiq.ir import Graph, KVRows, Program, Ring
from cortiq_cpu.arena import LINE, aligned
from cortiq_cpu.pages import TILE, PageLayout
from cortiq_cpu.rings import POISON, Floats, Rows

if TYPE_CHECKING:
    from cortiq_cpu.executable import CpuExecutable

Bytes = npt.NDArray[np.uint8]


class StateLayout:
    """What every sequence of a program holds.

    Attributes
    ----------
    kv, rings : slots by name; their order numbers them in the native calls.
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
        self.rings: dict[str, Ring] = {}
        for name, slot in program.slots.items():
            if isinstance(slot, KVRows):
                self.kv[name] = PageLayout(slot, tiles)
            elif isinstance(slot, Ring):
                self.rings[name] = slot
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
        pages = -(-rows // self.page_rows)
        floats = sum(ring.width for ring in self.rings.values())
        return pages * (self.page_bytes + 4 * floats * self.page_rows)

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

    Attributes
    ----------
    tables : addresses of the pages of each `KVRows` slot, uint64 [slots, pages].
    table_addresses : addresses of the rows of `tables`.
    ring_addresses, ring_capacities : of each ring slot.
    """

    def __init__(self, owner: CpuExecutable, limit: int) -> None:
        self.owner, self._limit, self._layout = owner, limit, owner.layout
        self.alive = True
        self.pages: list[Bytes] = []
        self.clear()

    def clear(self) -> None:
        """Empty the sequence."""
        self.pages = []
        fill = POISON if self._layout.poison else 0.0
        self.rings = {name: Rows(slot, fill) for name, slot in self._layout.rings.items()}
        self.tokens: list[int] = []
        self.lengths = dict.fromkeys(self.owner.program.graphs, 0)
        self._locate()

    def _locate(self) -> None:
        """Note where everything lies."""
        offsets = np.array(list(self._layout.offsets.values()), np.uint64)
        starts = np.array([page.ctypes.data for page in self.pages], np.uint64)
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
        return self.grow(self.lengths["trunk"] + rows)

    def grow(self, rows: int) -> bool:
        """Have memory for this many positions: in every slot, or in none."""
        if rows > self._limit or not self.owner.fits(self, rows):
            return False
        self.owner.prepare(rows)
        page_rows = self._layout.page_rows
        pages = -(-rows // page_rows)
        if pages * page_rows > self._capacity:
            if self._layout.kv:
                self.pages += [self._layout.new_page() for _ in range(pages - len(self.pages))]
            for ring in self.rings.values():
                ring.grow(pages * page_rows)
            self._locate()
        return True

    @property
    def _capacity(self) -> int:
        held = [len(self.pages) * self._layout.page_rows] if self._layout.kv else []
        return min([*held, *(len(ring.data) for ring in self.rings.values())], default=1 << 62)

    def nbytes(self) -> int:
        """Memory held."""
        rings = sum(ring.data.nbytes for ring in self.rings.values())
        return len(self.pages) * self._layout.page_bytes + rings

    def advance(self, entry: str, tokens: Sequence[int]) -> None:
        """Count rows that the slots now hold."""
        self.lengths[entry] += len(tokens)
        if entry == "trunk":
            self.tokens.extend(tokens)

    def rewind(self, length: int, entry: str = "trunk") -> int:
        """Forget the rows of `entry` from `length` on; see `cortiq.backend.State`."""
        before = self.lengths[entry]
        if not 0 <= length <= before:
            raise RequestError(f"cannot rewind from {before} rows to {length}")
        mine = [self.rings[n] for n in self._layout.written[entry] if n in self.rings]
        reached = min((ring.rewind(before, length) for ring in mine), default=length)
        if reached == 0:
            for ring in mine:
                ring.base = 0
        self.lengths[entry] = reached
        if entry == "trunk":
            del self.tokens[reached:]
        return reached

    def snapshot(self) -> Any:
        """A copy of everything the sequence holds."""
        rings = {name: ring.copy() for name, ring in self.rings.items()}
        used = -(-max(self.lengths.values(), default=0) // self._layout.page_rows)
        pages = [page.copy() for page in self.pages[:used]]
        return pages, rings, list(self.tokens), dict(self.lengths)

    def restore(self, snapshot: Any) -> None:
        """Become what the snapshot was taken of."""
        pages, rings, tokens, lengths = snapshot
        if not self.grow(max(lengths.values(), default=0)):
            raise RequestError("no memory is left for this sequence", hint="Release another first.")
        self.tokens, self.lengths = list(tokens), dict(lengths)
        self.rings = {name: ring.copy() for name, ring in rings.items()}
        self._locate()
        self.grow(max(lengths.values(), default=0))
        for mine, theirs in zip(self.pages, pages, strict=False):
            mine[:] = theirs

    def fork(self, length: int | None = None) -> CpuState:
        """A second sequence that starts as this one, cut to `length` rows if given."""
        other = self.owner.open(self._limit)
        try:
            other.restore(self.snapshot())
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
        return [page[start:stop] for page in self.pages]

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
            ring.load(slots[name], lengths.get(name, 0))
        self.tokens = [int(t) for t in exported.tokens]
        self.lengths = dict(exported.lengths)

    def release(self) -> None:
        """Give the memory back."""
        self.pages, self.rings, self.alive = [], {}, False
        self.owner.forget(self)
