"""Sequences of the reference: a store for every slot, the ids fed, and the calls on them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from cortiq.backend import ExportedState
from cortiq.errors import RequestError
from cortiq_reference.recurrent_store import RecurrentStore
from cortiq_reference.stores import KVStore, RingStore, Store, held_bytes, open_store

if TYPE_CHECKING:
    from cortiq_reference.executable import ReferenceExecutable


class ReferenceState:
    """One sequence: a store per slot, the ids fed, and how far each entry graph has come.

    Attributes
    ----------
    owner : the executable it belongs to.
    alive : whether it can be used; not any more once it was released.
    """

    def __init__(self, owner: ReferenceExecutable, limit: int) -> None:
        self.owner, self._limit = owner, limit
        self.clear()

    def clear(self) -> None:
        """Empty the sequence."""
        options = self.owner.options
        poison = bool(options.extra.get("poison"))
        self.stores = {
            name: open_store(slot, options.page_rows, poison, self.owner.extent(name))
            for name, slot in self.owner.program.slots.items()
        }
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
        if rows > self._limit or not self.owner.fits(self, rows):
            return False
        for store in self._each_store():
            if not isinstance(store, RecurrentStore):
                store.grow(rows)
        return True

    def kv(self, name: str) -> KVStore:
        """The store of a `KVRows` slot."""
        store = self.stores[name]
        assert isinstance(store, KVStore)
        return store

    def ring(self, name: str) -> RingStore:
        """The store of a `Ring` slot."""
        store = self.stores[name]
        assert isinstance(store, RingStore)
        return store

    def recurrent(self, name: str) -> RecurrentStore:
        """The store of a `Recurrent` slot."""
        store = self.stores[name]
        assert isinstance(store, RecurrentStore)
        return store

    def _each_store(self) -> list[Store]:
        return list(self.stores.values())

    def nbytes(self) -> int:
        """Memory held."""
        return sum(held_bytes(store) for store in self._each_store())

    def advance(self, entry: str, tokens: list[int]) -> None:
        """Count rows that the stores now hold."""
        self.lengths[entry] += len(tokens)
        for name in self.owner.written[entry]:
            store = self.stores[name]
            if isinstance(store, KVStore):
                store.trim()
        if entry == "trunk":
            self.tokens += tokens

    def rewind(self, length: int, entry: str = "trunk") -> int:
        """Forget the rows of `entry` from `length` on; see `cortiq.backend.State`."""
        if not 0 <= length <= self.lengths[entry]:
            raise RequestError(f"cannot rewind from {self.lengths[entry]} rows to {length}")
        names = self.owner.written[entry]
        reached = length
        while True:
            back = min((self.stores[n].rewind(reached) for n in names), default=reached)
            if back == reached:
                break
            reached = back
        self.lengths[entry] = reached
        if entry == "trunk":
            del self.tokens[reached:]
        return reached

    def snapshot(self) -> Any:
        """A deep copy of stores, ids and lengths."""
        return copy.deepcopy((self.stores, self.tokens, self.lengths))

    def restore(self, snapshot: Any) -> None:
        """Become what the snapshot was taken of."""
        before = self.stores, self.tokens, self.lengths
        self.stores, self.tokens, self.lengths = copy.deepcopy(snapshot)
        if self.owner.free_bytes() < 0:
            self.stores, self.tokens, self.lengths = before
            raise RequestError("no memory is left for this sequence", hint="Release another first.")

    def fork(self, length: int | None = None) -> ReferenceState:
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
        """Become an exported sequence, if it can be one of this program's."""
        self._check(exported)
        lengths = self.owner.slot_lengths(exported.lengths)
        if not self.grow(max(exported.lengths.values())):
            raise RequestError("the exported state is longer than the limit, or than memory allows")
        for name, store in self.stores.items():
            store.load(exported.slots[name], lengths[name])
        self.tokens = [int(t) for t in exported.tokens]
        self.lengths = dict(exported.lengths)

    def _check(self, exported: ExportedState) -> None:
        if set(exported.slots) != set(self.stores) or set(exported.lengths) != set(self.lengths):
            raise RequestError("the exported state is of another model: it has other slots")
        tokens, lengths = np.asarray(exported.tokens), exported.lengths
        if len(tokens) != lengths["trunk"] or min(lengths.values()) < 0:
            raise RequestError("the exported state holds other ids than it says")
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < self.owner.vocabulary:
            raise RequestError("the exported state holds token ids that are out of range")

    def release(self) -> None:
        """Give the memory back."""
        self.stores, self.alive = {}, False
        self.owner.forget(self)
