"""Sequences: `cortiq.backend.StoredState` with this backend's stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cortiq.backend.stored import StoredState
from cortiq_torch.stores import KVStore, RecurrentStore, RingStore, Store, open_store

if TYPE_CHECKING:
    from cortiq_torch.executable import TorchExecutable


class TorchState(StoredState):
    """One sequence."""

    owner: TorchExecutable

    def new_stores(self) -> dict[str, Store]:
        """An empty store for every slot."""
        owner = self.owner
        page, poison = owner.options.page_rows, bool(owner.options.extra.get("poison"))
        return {
            name: open_store(slot, owner.device, page, poison, owner.extent(name))
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
