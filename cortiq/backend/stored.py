"""Sequences that keep a store for every slot: what no kind of store changes.

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
    """What a slot of one sequence is kept in."""

    @abstractmethod
    def nbytes(self) -> int:
        """Memory held."""

    @abstractmethod
    def rewind(self, length: int) -> int:
        """Forget rows from `length` on; the length reached, which may be less."""

    @abstractmethod
    def export(self) -> Any:
        """What it holds, in the canonical layout."""

    @abstractmethod
    def load(self, exported: Any, length: int) -> None:
        """Become what was exported of a sequence of this many rows; there is room."""

    def grow(self, rows: int) -> None:
        """Have memory for a sequence of this many rows: nothing, where it does not grow."""
        return

    def trim(self) -> int:
        """Give up what nobody looks at any more; the number of rows given up."""
        return 0

    def copy(self) -> Self:
        """Another store that holds the same."""
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
        """Give up all stores."""
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
        """Memory held."""
        return sum(store.nbytes() for store in self.stores.values())

    def advance(self, entry: str, tokens: list[int]) -> None:
        """Count rows that the stores now hold."""
        super().advance(entry, tokens)
        for name in self.owner.written[entry]:
            self.stores[name].trim()

    def go_back(self, length: int, entry: str) -> int:
        """Forget rows of the stores that `entry` writes; the length reached."""
        stores = [self.stores[name] for name in self.owner.written[entry]]
        reached, back = -1, length
        while back != reached:  # a store that goes back further takes the others along
            reached = back
            back = min((store.rewind(reached) for store in stores), default=reached)
        return reached

    def snapshot(self) -> Held:
        """A copy of everything the sequence holds."""
        return self.copies(self.stores), list(self.tokens), dict(self.lengths)

    def restore(self, snapshot: Held) -> None:
        """Become what the snapshot was taken of."""
        before = self.stores, self.tokens, self.lengths
        stores, tokens, lengths = snapshot
        self.stores, self.tokens, self.lengths = self.copies(stores), list(tokens), dict(lengths)
        if self.owner.free_bytes() < 0:
            self.stores, self.tokens, self.lengths = before
            raise NoMemoryError()

    def start_as(self, other: Self) -> None:
        """Become, empty as it is, what another sequence is."""
        self.restore((other.stores, other.tokens, other.lengths))

    def copies(self, stores: Mapping[str, Any]) -> dict[str, Any]:
        """Stores that hold the same."""
        return {name: store.copy() for name, store in stores.items()}

    def export_slot(self, name: str) -> Any:
        """Return a store's contents in the canonical layout."""
        return self.stores[name].export()

    def load_slot(self, name: str, given: Any, length: int) -> None:
        """Let a store hold what was exported of a sequence of `length` rows."""
        self.stores[name].load(given, length)


T = TypeVar("T", bound=StoredState)


class StoredExecutable(BaseExecutable[T, P]):
    """An executable whose sequences keep a store for every slot."""

    @abstractmethod
    def new_store(self, name: str, slot: Slot) -> SlotStore:
        """An empty store for the slot of this name."""

    def held_bytes(self) -> int:
        """Memory that all living sequences hold."""
        return sum(state.nbytes() for state in self.states)

    def state_bytes(self, rows: int) -> int:
        """Memory one sequence of this many rows takes: whole pages, and what has one size."""
        page = self.options.page_rows
        return sum(
            self.slot_bytes(slot, -(-self.extent(name).room(rows) // page) * page)
            for name, slot in self.program.slots.items()
        )

    def slot_bytes(self, slot: Slot, rows: int) -> int:
        """Memory of a slot; every row of a ring is kept, so that rewinding is exact."""
        if isinstance(slot, Ring):
            return slot.width * 4 * rows
        return slot.bytes_per_row() * rows + slot.constant_bytes()
