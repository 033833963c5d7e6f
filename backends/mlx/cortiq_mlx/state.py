"""Sequences: `cortiq.backend.stored.StoredState` with this backend's stores, nothing left lazy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cortiq.backend import ExportedState
from cortiq.backend.stored import StoredState
from cortiq_mlx.library import mx

if TYPE_CHECKING:
    from cortiq_mlx.executable import MlxExecutable


class MlxState(StoredState):
    """One sequence."""

    owner: MlxExecutable

    def kept(self) -> list[mx.array]:
        """Return everything the stores hold."""
        return [array for store in self.stores.values() for array in store.kept()]

    def settle(self) -> None:
        """Compute what the stores hold: no lazy array may outlive a call."""
        mx.eval(self.kept())

    def clear(self) -> None:
        """Empty the sequence."""
        super().clear()
        self.settle()

    def grow(self, rows: int) -> bool:
        """Make room for this many rows in every slot: in all of them, or in none."""
        grown = super().grow(rows)
        if grown:
            self.settle()
        return grown

    def rewind(self, length: int, entry: str = "trunk") -> int:
        """Forget the rows of `entry` from `length` on; see `cortiq.backend.State`."""
        reached = super().rewind(length, entry)
        self.settle()
        return reached

    def copies(self, stores: Mapping[str, Any]) -> dict[str, Any]:
        """Copy the stores; memory is shared until one of them is written to."""
        made = super().copies(stores)
        mx.eval([array for store in made.values() for array in store.kept()])
        return made

    def load(self, exported: ExportedState) -> None:
        """Become an exported sequence, which `check_exported` has let pass."""
        super().load(exported)
        self.settle()
