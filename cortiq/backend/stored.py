"""Sequences that keep a store for every slot: what no kind of store changes.

A backend whose sequences are arrays of their own says what stores it has (`StoredExecutable`); one
that shares memory between sequences keeps its own state.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self, TypeVar

import numpy as np

from cortiq.backend.executable import BaseExecutable, P
from cortiq.backend.state import ExportedState
from cortiq.errors import RequestError
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


class StoredState:
    """One sequence; see `cortiq.backend.State`.

    Attributes
    ----------
    owner : the executable it belongs to.
    alive : whether it can be used; not any more once it was released.
    stores : of each slot. tokens : the ids fed. lengths : rows that each entry graph has seen.
    """

    owner: Any
    stores: dict[str, Any]

    def __init__(self, owner: Any, limit: int) -> None:
        self.owner, self._limit = owner, limit
        self.clear()

    def clear(self) -> None:
        """Empty the sequence."""
        slots = self.owner.program.slots.items()
        self.stores = {name: self.owner.new_store(name, slot) for name, slot in slots}
        self.tokens: list[int] = []
        self.lengths = dict.fromkeys(self.owner.program.graphs, 0)
        self.alive = True

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
        self.lengths[entry] += len(tokens)
        for name in self.owner.written[entry]:
            self.stores[name].trim()
        if entry == "trunk":
            self.tokens += tokens

    def rewind(self, length: int, entry: str = "trunk") -> int:
        """Forget the rows of `entry` from `length` on; see `cortiq.backend.State`."""
        if not 0 <= length <= self.lengths[entry]:
            raise RequestError(f"cannot rewind from {self.lengths[entry]} rows to {length}")
        stores = [self.stores[name] for name in self.owner.written[entry]]
        reached, back = -1, length
        while back != reached:  # a store that goes back further takes the others along
            reached = back
            back = min((store.rewind(reached) for store in stores), default=reached)
        self.lengths[entry] = reached
        if entry == "trunk":
            del self.tokens[reached:]
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
            raise RequestError("no memory is left for this sequence", hint="Release another first.")

    def copies(self, stores: Mapping[str, Any]) -> dict[str, Any]:
        """Stores that hold the same."""
        return {name: store.copy() for name, store in stores.items()}

    def fork(self, length: int | None = None) -> Self:
        """A second sequence that starts as this one, cut to `length` rows if given."""
        other = self.owner.open(self._limit)
        try:
            other.restore((self.stores, self.tokens, self.lengths))
            if length is not None and other.rewind(length) != length:
                raise RequestError(f"this sequence can be forked at its end, not at {length}")
        except BaseException:
            other.release()
            raise
        return other

    def export(self) -> ExportedState:
        """The sequence in the canonical layout."""
        slots = {name: store.export() for name, store in self.stores.items()}
        return ExportedState(dict(self.lengths), np.array(self.tokens, np.int32), slots)

    def load(self, exported: ExportedState) -> None:
        """Become an exported sequence, which `check_exported` has let pass."""
        if not self.grow(max(exported.lengths.values())):
            raise RequestError("the exported state is longer than the limit, or than memory allows")
        for entry, names in self.owner.written.items():
            for name in names:
                self.stores[name].load(exported.slots[name], exported.lengths[entry])
        self.tokens, self.lengths = exported.tokens.tolist(), dict(exported.lengths)

    def release(self) -> None:
        """Give the memory back."""
        self.stores, self.alive = {}, False
        self.owner.forget(self)


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
