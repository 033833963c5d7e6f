"""What every sequence of a program holds, and where in its pages it lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from cortiq.backend.windows import most_rows
from cortiq.errors import UnsupportedError
from cortiq.ir import Graph, KVRows, Program, Recurrent, Ring, ops
from cortiq_cpu.arena import LINE, aligned
from cortiq_cpu.pages import TILE, PageLayout
from cortiq_cpu.recurrents import Recurrences, Whole, recurrences_of
from cortiq_cpu.rings import POISON, Rows
from cortiq_cpu.shared import Bytes
from cortiq_cpu.tables import Group


class StateLayout:
    """What every sequence of a program holds.

    Parameters
    ----------
    windows : of slots whose rows are given up behind them.

    Attributes
    ----------
    kv, rings : slots by name, recurrent ones among the rings; their order numbers them in the
        native calls.
    groups : of `KVRows` slots that share pages; those of a page lie one after the other.
    group_numbers, offsets : in the pages of which group, and where in them, each of these slots is.
    page_rows : positions of a page.
    """

    def __init__(
        self,
        program: Program,
        graphs: Mapping[str, Graph],
        page_rows: int,
        poison: bool = False,
        windows: Mapping[str, int] | None = None,
    ) -> None:
        self.poison = poison
        self.tiles = max(1, -(-page_rows // TILE))
        self.page_rows = self.tiles * TILE
        self.kv: dict[str, PageLayout] = {}
        self.rings: dict[str, Ring | Recurrences] = {}
        self.written = {name: graph.written_slots() for name, graph in graphs.items()}
        self._place_slots(program, graphs)
        self.kv_numbers = {name: number for number, name in enumerate(self.kv)}
        self.ring_numbers = {name: number for number, name in enumerate(self.rings)}
        self.groups: list[Group] = []
        self.group_numbers: dict[str, int] = {}
        self.offsets: dict[str, int] = {}
        self._place_rows(windows or {})

    def _place_slots(self, program: Program, graphs: Mapping[str, Graph]) -> None:
        recurrences = {
            node.slots["state"]: recurrences_of(node, graph)
            for graph in graphs.values()
            for node in graph.nodes
            if isinstance(node.op, ops.DeltaRule | ops.StateSpace)
        }
        for name, slot in program.slots.items():
            if isinstance(slot, KVRows):
                self.kv[name] = PageLayout(slot, self.tiles)
            elif isinstance(slot, Ring):
                self.rings[name] = slot
            elif isinstance(slot, Recurrent) and name in recurrences:
                self.rings[name] = recurrences[name]
            else:
                raise UnsupportedError(f"a slot of kind {type(slot).__name__}", where=name)

    def _place_rows(self, windows: Mapping[str, int]) -> None:
        """Slots that one graph writes and that are seen through one window form a group."""
        writers = {slot: entry for entry, slots in self.written.items() for slot in slots}
        known: dict[tuple[str, int | None], int] = {}
        for name, layout in self.kv.items():
            window, entry = windows.get(name), writers.get(name, "")
            key = (entry if window else "", window)
            if key not in known:
                known[key] = len(self.groups)
                self.groups.append(Group(known[key], key[0], self._most_pages(window)))
            number = self.group_numbers[name] = known[key]
            group = self.groups[number]
            self.offsets[name] = group.page_bytes
            size = group.page_bytes + aligned(layout.page_bytes)
            self.groups[number] = replace(group, page_bytes=size)

    def _most_pages(self, window: int | None) -> int | None:
        """Pages that hold every run of rows that is ever needed, wherever a tile begins it."""
        if window is None:
            return None
        return -(-(most_rows(window) + self.page_rows - TILE) // self.page_rows)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page of every group."""
        return sum(group.page_bytes for group in self.groups)

    def page_stop(self, rows: int) -> int:
        """Number of the first page that so many rows do not need."""
        return -(-rows // self.page_rows)

    def nbytes(self, rows: int) -> int:
        """Memory of a sequence of this many rows."""
        stop = self.page_stop(rows)
        counts = [stop if g.most is None else min(stop, g.most) for g in self.groups]
        pages = sum(n * g.page_bytes for n, g in zip(counts, self.groups, strict=True))
        return pages + (self.ring_bytes if rows else 0)

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

    def new_page(self, group: int) -> Bytes:
        """A page of zeros, aligned; in tests, of what would show if it were read."""
        size = self.groups[group].page_bytes
        block = np.zeros(size + LINE, np.uint8)
        skip = -block.ctypes.data % LINE
        page = block[skip : skip + size]
        self.spoil(group, page)
        return page

    def spoil(self, group: int, page: Bytes) -> None:
        """In tests, fill a page with what would show if it were read."""
        for name, number in self.group_numbers.items():
            if self.poison and number == group:
                layout, start = self.kv[name], self.offsets[name]
                layout.poison(page[start : start + layout.page_bytes])
