"""An executable whose sequences are in pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol, TypeVar

from cortiq.backend.batch import Batch, Row
from cortiq.backend.executable import Accepted, BaseExecutable, EntryPlan
from cortiq.backend.extents import RingExtent
from cortiq.backend.paged import PagedState, SlotExtent
from cortiq.backend.paged_memory import PagedMemory
from cortiq.backend.pages import PagePool
from cortiq.ir import KVRows, Ring, Slot

EARLY_POSITIONS = 1 << 13
"""Positions that rotary tables are made for when a sequence is opened; others when it grows."""


class PositionedPlan(EntryPlan, Protocol):
    """A compiled entry graph with rotary tables to extend in time."""

    def prepare(self, positions: int) -> None:
        """Precompute rotary tables for so many positions."""

    def reach(self, rows: Sequence[Row]) -> int:
        """Return how many positions tables must have for what rows supply."""


T = TypeVar("T", bound=PagedState)
P = TypeVar("P", bound=PositionedPlan)


class PagedExecutable(BaseExecutable[T, P]):
    """An executable whose sequences share pages.

    Attributes
    ----------
    state_type : of its sequences.
    layout : where slots lie in pages. memory : whose pages these are. pages : those in use.
    extent_of : number of each slot's extent. extents_of : those of the slots that an entry writes.
    """

    state_type: ClassVar[type[PagedState]] = PagedState

    def use_memory(self, memory: PagedMemory) -> None:
        """Set the memory that pages are taken from, before the first sequence is opened."""
        self.memory, self.layout, self.pages = memory, memory.layout, PagePool(memory)
        self._prepared = 0
        self.extent_of: dict[str, int] = {}
        self.extents_of: dict[str, list[int]] = {}
        self._extents: list[SlotExtent] = []
        known = {name for names in self.written.values() for name in names}
        unwritten = [name for name in self.program.slots if name not in known]
        for entry, names in {**self.written, "": unwritten}.items():
            first = len(self._extents)
            for name in names:
                extent = self._new_extent(name, self.program.slots[name])
                if extent not in self._extents[first:]:
                    self._extents.append(extent)
                self.extent_of[name] = self._extents.index(extent, first)
            self.extents_of[entry] = list(range(first, len(self._extents)))

    def new_extents(self) -> list[SlotExtent]:
        """Return the extents of an empty sequence; slots that go back alike have one together."""
        return [replace(extent) for extent in self._extents]

    def new_state(self, limit: int) -> Any:
        """Return an empty sequence of at most `limit` positions."""
        self.prepare(min(limit, EARLY_POSITIONS))
        return self.state_type(self, limit)

    def _new_extent(self, name: str, slot: Slot) -> SlotExtent:
        """Return the extent of an empty slot."""
        if isinstance(slot, KVRows):
            return self.extent(name)
        if isinstance(slot, Ring):
            return RingExtent(window=slot.length)
        return self.memory.recurrent_extent()

    def prepare(self, positions: int) -> None:
        """Precompute rotary tables for so many positions."""
        if positions > self._prepared:
            for plan in self.every_plan:
                plan.prepare(positions)
            self._prepared = positions

    def state_bytes(self, rows: int) -> int:
        """Return the bytes of one sequence of this many rows."""
        return self.layout.nbytes(rows)

    def held_bytes(self) -> int:
        """Return the bytes that sequences and snapshots hold; a shared page counts once."""
        return self.pages.nbytes

    def fits(self, nbytes: int) -> bool:
        """Check whether sequences may take so many bytes more."""
        return nbytes <= 0 or nbytes <= self.free_bytes()

    def make_room(self, state: T, start: int, stop: int) -> bool:
        """Allocate memory for rows, in pages of their own; return whether there is enough."""
        return state.grow(stop, start)

    def lets_in(self, plan: P, entry: str, row: Row, token: int) -> bool:
        """Check whether a row that supplies nothing but an overlay certainly can be computed, and
        has its room already: in a fraction of the time that `refusal` takes, which is to be asked
        otherwise.
        """
        state: Any = row.state
        position = row.position
        known = self.wants_of(plan, entry) if self.varied else self.known_wants[entry]
        return (
            state.lengths[entry] == position
            and 0 <= token < self.vocabulary
            and row.wants in known
            and (not row.inputs or known.fits(row.inputs))
            and not (self.recalled[entry] or self.last_keys[entry])
            and position < self._prepared
            and state.has_room(position)
        )

    def refusal(self, plan: P, batch: Batch, sequence: Accepted[T]) -> str | None:
        """Say why a sequence's rows cannot be computed; where they can, make their tables."""
        reason = super().refusal(plan, batch, sequence)
        if reason is None:
            indices = sequence.indices
            self.prepare(plan.reach(batch.rows[indices.start : indices.stop]))
        return reason
