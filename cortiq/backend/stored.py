"""Sequences with a store for every slot, whatever the kind of store.

A backend whose sequences are arrays of their own says what stores it has (`StoredExecutable`); one
that shares memory between sequences has pages (`cortiq.backend.paged`).
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self, TypeVar

from cortiq.backend.executable import BaseExecutable, P
from cortiq.backend.pages import NoMemoryError
from cortiq.backend.sequence import SequenceState
from cortiq.ir import Ring, Slot


class SlotStore(ABC):
    """Storage of a slot of one sequence."""

    @abstractmethod
    def nbytes(self) -> int:
        """Return the memory held."""

    @abstractmethod
    def rewind(self, length: int) -> int:
        """Forget rows from `length` on; return the length reached, which may be less."""

    @abstractmethod
    def export(self) -> Any:
        """Return the contents in the canonical layout."""

    @abstractmethod
    def load(self, exported: Any, length: int) -> None:
        """Load what was exported of a sequence of this many rows; there is room."""

    def grow(self, rows: int) -> None:
        """Grow to a sequence of this many rows: nothing to do, where it does not grow."""
        return

    def trim(self) -> int:
        """Free rows behind the window; return their number."""
        return 0

    def copy(self) -> Self:
        """Return another store that holds the same."""
        return copy.deepcopy(self)


Held = tuple[dict[str, Any], list[int], dict[str, int]]
"""Stores by slot, ids, rows by entry graph."""


class StoredState(SequenceState):
    """One sequence that has a store for every slot.

    Attributes
    ----------
    stores : of each slot.
    """

    stores: dict[str, Any]

    def clear(self) -> None:
        """Empty the sequence."""
        super().clear()
        slots = self.owner.program.slots.items()
        self.stores = {name: self.owner.new_store(name, slot) for name, slot in slots}

    def drop(self) -> None:
        """Release all stores."""
        self.stores = {}

    def grow(self, rows: int) -> bool:
        """Make room for this many rows in every slot: in all of them, or in none."""
        if rows > self._limit:
            return False
        if self.owner.state_bytes(rows) - self.nbytes() > self.owner.free_bytes():
            return False
        for store in self.stores.values():
            store.grow(rows)
        return True

    def nbytes(self) -> int:
        """Return the memory held."""
        return sum(store.nbytes() for store in self.stores.values())

    def advance(self, entry: str, tokens: list[int]) -> None:
        """Count rows that the stores now hold."""
        super().advance(entry, tokens)
        for name in self.owner.written[entry]:
            self.stores[name].trim()

    def go_back(self, length: int, entry: str) -> int:
        """Forget rows of the stores that `entry` writes; return the length reached."""
        stores = [self.stores[name] for name in self.owner.written[entry]]
        reached, back = -1, length
        while back != reached:  # a store that goes back further takes the others along
            reached = back
            back = min((store.rewind(reached) for store in stores), default=reached)
        return reached

    def snapshot(self) -> Held:
        """Copy everything the sequence holds."""
        return self.copies(self.stores), list(self.tokens), dict(self.lengths)

    def restore(self, snapshot: Held) -> None:
        """Restore the sequence from a snapshot."""
        before = self.stores, self.tokens, self.lengths
        stores, tokens, lengths = snapshot
        self.stores, self.tokens, self.lengths = self.copies(stores), list(tokens), dict(lengths)
        if self.owner.free_bytes() < 0:
            self.stores, self.tokens, self.lengths = before
            raise NoMemoryError()

    def start_as(self, other: Self) -> None:
        """Start, empty, as a copy of another sequence."""
        self.restore((other.stores, other.tokens, other.lengths))

    def copies(self, stores: Mapping[str, Any]) -> dict[str, Any]:
        """Copy the stores."""
        return {name: store.copy() for name, store in stores.items()}

    def export_slot(self, name: str) -> Any:
        """Return a store's contents in the canonical layout."""
        return self.stores[name].export()

    def load_slot(self, name: str, given: Any, length: int) -> None:
        """Load a store with what was exported of a sequence of `length` rows."""
        self.stores[name].load(given, length)


T = TypeVar("T", bound=StoredState)


class StoredExecutable(BaseExecutable[T, P]):
    """An executable whose sequences keep a store for every slot."""

    @abstractmethod
    def new_store(self, name: str, slot: Slot) -> SlotStore:
        """Return an empty store for the slot of this name."""

    def held_bytes(self) -> int:
        """Return the memory that all living sequences hold."""
        return sum(state.nbytes() for state in self.states)

    def state_bytes(self, rows: int) -> int:
        """Return the memory of a sequence of this many rows: whole pages, and what has one size."""
        page = self.options.page_rows
        return sum(
            self.slot_bytes(slot, -(-self.extent(name).room(rows) // page) * page)
            for name, slot in self.program.slots.items()
        )

    def slot_bytes(self, slot: Slot, rows: int) -> int:
        """Return the memory of a slot; every row of a ring is kept, so that rewinding is exact."""
        if isinstance(slot, Ring):
            return slot.width * 4 * rows
        return slot.bytes_per_row() * rows + slot.constant_bytes()
