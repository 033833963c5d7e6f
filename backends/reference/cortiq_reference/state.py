"""Sequences of the reference: every slot's rows in NumPy arrays that grow by pages."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cortiq.backend import ExportedState, KVPlanes
from cortiq.errors import RequestError
from cortiq.ir import KVRows, Recurrent, Ring, Slot
from cortiq.numerics.contract import F32, Flags, Floats, Ints, snap
from cortiq.numerics.quantise import Quantised, from_planes, planes

if TYPE_CHECKING:
    from cortiq_reference.executable import ReferenceExecutable

Exported = KVPlanes | npt.NDArray[np.float32]


class Rows:
    """A growing array of rows; memory beyond the rows written is never read."""

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike, fill: Any = None) -> None:
        self.data = np.empty((0, *shape), dtype)
        self.fill = fill

    def write(self, start: int, rows: npt.NDArray, page: int) -> None:
        """Place rows at start…, growing to whole pages."""
        self.grow(start + len(rows), page)
        self.data[start : start + len(rows)] = rows

    def grow(self, rows: int, page: int) -> None:
        """Make room for this many rows."""
        if rows <= len(self.data):
            return
        capacity = -(-rows // page) * page
        grown = np.empty((capacity, *self.data.shape[1:]), self.data.dtype)
        grown[: len(self.data)] = self.data
        if self.fill is not None:
            grown[len(self.data) :] = self.fill
        self.data = grown


class KVStore:
    """Rows of a `KVRows` slot."""

    def __init__(self, slot: KVRows, page: int, poison: bool) -> None:
        self.page, self.length = page, 0
        fill, exponent = (np.int16(32512), np.int8(60)) if poison else (None, None)
        self.k = Rows((slot.heads, slot.key_dim), np.int16, fill)
        self.v = Rows((slot.heads, slot.value_dim), np.int16, fill)
        self.k_exponent = Rows((slot.heads,), np.int8, exponent)
        self.v_exponent = Rows((slot.heads,), np.int8, exponent)

    def append(self, keys: Quantised, values: Quantised) -> None:
        """Write rows behind the last one."""
        parts = ((self.k, keys.q), (self.v, values.q))
        exponents = ((self.k_exponent, keys.e), (self.v_exponent, values.e))
        for rows, new in (*parts, *exponents):
            rows.write(self.length, new, self.page)
        self.length += len(keys.q)

    def read(self) -> tuple[Quantised, Quantised]:
        """All rows written."""
        n = self.length
        keys = Quantised(self.k.data[:n], self.k_exponent.data[:n].astype(np.int32))
        return keys, Quantised(self.v.data[:n], self.v_exponent.data[:n].astype(np.int32))

    def rewind(self, length: int) -> int:
        """Forget rows; always possible."""
        self.length = min(self.length, length)
        return length

    def export(self) -> KVPlanes:
        """The rows as canonical planes."""
        keys, values = self.read()
        (kh, kl), (vh, vl) = planes(keys.q.astype(np.int32)), planes(values.q.astype(np.int32))
        return KVPlanes(kh, kl, keys.e.astype(np.int8), vh, vl, values.e.astype(np.int8))

    def load(self, rows: Exported, length: int) -> None:
        """Become the exported rows."""
        if not isinstance(rows, KVPlanes) or rows.key_high.shape[0] != length:
            raise RequestError("the exported state holds other key and value rows than it says")
        keys = Quantised(from_planes(rows.key_high, rows.key_low), _widened(rows.key_exponent))
        exponent = _widened(rows.value_exponent)
        values = Quantised(from_planes(rows.value_high, rows.value_low), exponent)
        if keys.q.shape[1:] != self.k.data.shape[1:] or values.q.shape[1:] != self.v.data.shape[1:]:
            raise RequestError("the exported state is of another model: its rows have other widths")
        self.length = 0
        self.append(keys, values)


class RingStore:
    """Rows of a `Ring` slot. All rows since `base` are kept, so that rewinding is exact."""

    def __init__(self, slot: Ring, page: int, poison: bool) -> None:
        self.slot, self.page = slot, page
        self.base = self.length = 0
        self.rows = Rows((slot.width,), F32, F32(2.0**49) if poison else None)

    def last(self) -> Floats:
        """The `slot.length` rows before the next one, zero where there were none."""
        window = np.zeros((self.slot.length, self.slot.width), F32)
        kept = min(self.slot.length, self.length - self.base)
        end = self.length - self.base
        window[self.slot.length - kept :] = self.rows.data[end - kept : end]
        return window

    def append(self, rows: Floats) -> None:
        """Write rows behind the last one."""
        self.rows.write(self.length - self.base, rows, self.page)
        self.length += len(rows)

    def rewind(self, length: int) -> int:
        """Forget rows; back to 0 when the rows before `length` are not kept."""
        enough = self.base == 0 or length - self.slot.length >= self.base
        if length >= self.length:
            return self.length
        self.length = length if enough else 0
        self.base = self.base if enough else 0
        return self.length

    def export(self) -> Floats:
        """The last rows, oldest first."""
        return self.last()

    def load(self, rows: Exported, length: int) -> None:
        """Become the exported rows."""
        wanted = (self.slot.length, self.slot.width)
        if isinstance(rows, KVPlanes) or rows.shape != wanted:
            raise RequestError(f"the exported state has another ring than {wanted}")
        kept = min(self.slot.length, length)
        self.base, self.length = length - kept, length - kept
        self.append(_checked(rows)[self.slot.length - kept :])


def _widened(exponent: npt.NDArray[np.int8]) -> Ints:
    return exponent.astype(np.int32)


def _checked(values: Floats) -> Floats:
    faults: Flags = np.zeros(1, np.bool_)
    snapped = snap(np.ascontiguousarray(values, F32)[None], faults)[0]
    if faults.any():
        raise RequestError("the exported state holds a value that is not finite or too large")
    return snapped


Store = KVStore | RingStore


def open_store(slot: Slot, page: int, poison: bool) -> Store:
    """An empty store for a slot."""
    if isinstance(slot, KVRows):
        return KVStore(slot, page, poison)
    if isinstance(slot, Ring):
        return RingStore(slot, page, poison)
    if isinstance(slot, Recurrent):
        raise RequestError("the reference keeps no recurrent slots yet")
    raise RequestError(f"unknown slot kind {type(slot).__name__}")


class ReferenceState:
    """One sequence: a store per slot, the ids fed, and how far each entry graph has come."""

    def __init__(self, owner: ReferenceExecutable, limit: int) -> None:
        self._owner, self._limit = owner, limit
        self.clear()

    def clear(self) -> None:
        """Empty the sequence."""
        options = self._owner.options
        poison = bool(options.extra.get("poison"))
        slots = self._owner.program.slots.items()
        self.stores = {n: open_store(s, options.page_rows, poison) for n, s in slots}
        self.tokens: list[int] = []
        self.lengths = dict.fromkeys(self._owner.program.graphs, 0)
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
        wanted = self.lengths["trunk"] + rows
        if wanted > self._limit or not self._owner.fits(self, wanted):
            return False
        for store in self._each_store():
            for part in _arrays(store):
                part.grow(wanted, self._owner.options.page_rows)
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

    def _each_store(self) -> list[Store]:
        return list(self.stores.values())

    def nbytes(self) -> int:
        """Memory held."""
        return sum(part.data.nbytes for store in self._each_store() for part in _arrays(store))

    def advance(self, entry: str, tokens: Ints) -> None:
        """Count rows that the stores now hold."""
        self.lengths[entry] += len(tokens)
        if entry == "trunk":
            self.tokens.extend(int(t) for t in tokens)

    def rewind(self, length: int, entry: str = "trunk") -> int:
        """Forget the rows of `entry` from `length` on; see `cortiq.backend.State`."""
        if not 0 <= length <= self.lengths[entry]:
            raise RequestError(f"cannot rewind from {self.lengths[entry]} rows to {length}")
        names = self._owner.written[entry]
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
        self.stores, self.tokens, self.lengths = copy.deepcopy(snapshot)

    def fork(self, length: int | None = None) -> ReferenceState:
        """A second sequence that starts as this one, cut to `length` rows if given."""
        other = self._owner.open(self._limit)
        other.restore(self.snapshot())
        if length is not None:
            reached = other.rewind(length)
            if reached != length:
                other.release()
                raise RequestError(f"this sequence can be forked at its end, not at {length}")
        return other

    def export(self) -> ExportedState:
        """The sequence in the canonical layout."""
        slots = {name: store.export() for name, store in self.stores.items()}
        return ExportedState(dict(self.lengths), np.array(self.tokens, np.int32), slots)

    def load(self, exported: ExportedState) -> None:
        """Become an exported sequence."""
        lengths = self._owner.slot_lengths(exported.lengths)
        if set(exported.slots) != set(self.stores) or len(exported.tokens) > self._limit:
            raise RequestError("the exported state is of another model, or longer than the limit")
        for name, store in self.stores.items():
            store.load(exported.slots[name], lengths[name])
        self.tokens = [int(t) for t in exported.tokens]
        self.lengths = {**self.lengths, **exported.lengths}

    def release(self) -> None:
        """Give the memory back."""
        self.stores, self.alive = {}, False
        self._owner.forget(self)


def _arrays(store: Store) -> list[Rows]:
    if isinstance(store, KVStore):
        return [store.k, store.v, store.k_exponent, store.v_exponent]
    return [store.rows]
