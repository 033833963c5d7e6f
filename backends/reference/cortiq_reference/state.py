"""Sequences of the reference: `cortiq.backend.StoredState` with its stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cortiq.backend.stored import SlotStore, StoredState
from cortiq_reference.recurrent_store import RecurrentStore
from cortiq_reference.stores import KVStore, RingStore, open_store

if TYPE_CHECKING:
    from cortiq_reference.executable import ReferenceExecutable


class ReferenceState(StoredState):
    """One sequence."""

    owner: ReferenceExecutable

    def new_stores(self) -> dict[str, SlotStore]:
        """An empty store for every slot."""
        owner = self.owner
        page, poison = owner.options.page_rows, bool(owner.options.extra.get("poison"))
        return {
            name: open_store(slot, page, poison, owner.extent(name))
            for name, slot in owner.program.slots.items()
        }

    def kv(self, name: str) -> KVStore:
        """The store of a `KVRows` slot."""
        return self.stores[name]

    def ring(self, name: str) -> RingStore:
        """The store of a `Ring` slot."""
        return self.stores[name]

    def recurrent(self, name: str) -> RecurrentStore:
        """The store of a `Recurrent` slot."""
        return self.stores[name]
