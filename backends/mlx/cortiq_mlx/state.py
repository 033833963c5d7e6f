"""Sequences: a store for every slot, the ids fed, and the calls of `cortiq.backend.State`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cortiq.backend import ExportedState
from cortiq.errors import RequestError
from cortiq_mlx.library import mx
from cortiq_mlx.stores import KVStore, RecurrentStore, RingStore, open_store

if TYPE_CHECKING:
    from cortiq_mlx.executable import MlxExecutable


class MlxState:
    """One sequence.

    Attributes
    ----------
    owner : the executable it belongs to. alive : not any more once it was released.
    """

    def __init__(self, owner: MlxExecutable, limit: int) -> None:
        self.owner, self._limit = owner, limit
        self.clear()

    def clear(self) -> None:
        """Empty the sequence."""
        poison = bool(self.owner.options.extra.get("poison"))
        self.stores: dict[str, Any] = {
            name: open_store(slot, poison, self.owner.extent(name))
            for name, slot in self.owner.program.slots.items()
        }
        self.tokens: list[int] = []
        self.lengths = dict.fromkeys(self.owner.program.graphs, 0)
        self.alive = True
        self.settle()

    def kept(self) -> list[mx.array]:
        """Everything the stores hold."""
        return [array for store in self.stores.values() for array in store.kept()]

    def settle(self) -> None:
        """Compute what the stores hold: no lazy array may outlive a call."""
        mx.eval(self.kept())

    @property
    def limit(self) -> int:
        """Positions it may ever hold."""
        return self._limit

    def length(self, entry: str = "trunk") -> int:
        """Rows that the entry graph has seen."""
        return self.lengths[entry]

    def kv(self, name: str) -> KVStore:
        """The store of a `KVRows` slot."""
        return self.stores[name]

    def ring(self, name: str) -> RingStore:
        """The store of a `Ring` slot."""
        return self.stores[name]

    def recurrent(self, name: str) -> RecurrentStore:
        """The store of a `Recurrent` slot."""
        return self.stores[name]

    def reserve(self, rows: int) -> bool:
        """Make room for `rows` more positions, if the memory limit allows it."""
        return self.grow(self.lengths["trunk"] + rows)

    def grow(self, rows: int) -> bool:
        """Make room for this many rows in every slot: in all of them, or in none."""
        if rows > self._limit or not self.owner.fits(self, rows):
            return False
        for store in self.stores.values():
            store.grow(rows, self.owner.options.page_rows)
        self.settle()
        return True

    def nbytes(self) -> int:
        """Memory held."""
        return sum(store.nbytes() for store in self.stores.values())

    def advance(self, entry: str, tokens: list[int]) -> None:
        """Count rows that the stores now hold."""
        self.lengths[entry] += len(tokens)
        for name in self.owner.written[entry]:
            if isinstance(self.stores[name], KVStore):
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
        self.settle()
        self.lengths[entry] = reached
        if entry == "trunk":
            del self.tokens[reached:]
        return reached

    def snapshot(self) -> Any:
        """A copy of everything the sequence holds."""
        return self._copies(self.stores), list(self.tokens), dict(self.lengths)

    @staticmethod
    def _copies(stores: dict[str, Any]) -> dict[str, Any]:
        """Stores with the same rows; memory is shared until one of them is written to."""
        copies = {name: store.copy() for name, store in stores.items()}
        mx.eval([array for store in copies.values() for array in store.kept()])
        return copies

    def restore(self, snapshot: Any) -> None:
        """Become what the snapshot was taken of."""
        before = self.stores, self.tokens, self.lengths
        stores, tokens, lengths = snapshot
        self.stores = self._copies(stores)
        self.tokens, self.lengths = list(tokens), dict(lengths)
        if self.owner.free_bytes() < 0:
            self.stores, self.tokens, self.lengths = before
            raise RequestError("no memory is left for this sequence", hint="Release another first.")

    def fork(self, length: int | None = None) -> MlxState:
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
        self.settle()
        self.tokens, self.lengths = exported.tokens.tolist(), dict(exported.lengths)

    def release(self) -> None:
        """Give the memory back."""
        self.stores, self.alive = {}, False
        self.owner.forget(self)
