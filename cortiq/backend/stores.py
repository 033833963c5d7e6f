"""Stores of a sequence's slots: rows in arrays of a library that grow by pages."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from cortiq.backend.arrays import ArrayLibrary
from cortiq.backend.state import KVPlanes
from cortiq.backend.stored import SlotStore
from cortiq.backend.windows import Extent, kept_from
from cortiq.ir import KVRows, Recurrent, Ring, Slot
from cortiq.numerics.contract import Floats, snap

POISON = 2.0**49
"""What unused rows of floats are filled with in tests."""


class GrowingArray:
    """Rows [n, ...]; memory beyond the rows written is never read.

    Attributes
    ----------
    fill : what that memory is filled with, None for anything.
    """

    def __init__(
        self, library: ArrayLibrary, shape: tuple[int, ...], dtype: str, fill: float | None
    ) -> None:
        self.library, self.dtype, self.fill = library, dtype, fill
        self.data = library.full((0, *shape), dtype)

    def grow(self, rows: int, page: int) -> None:
        """Make room for this many rows, in whole pages."""
        missing = -(-rows // page) * page - len(self.data)
        if missing > 0:
            shape = (missing, *self.data.shape[1:])
            more = self.library.full(shape, self.dtype, self.fill or 0)
            self.data = self.library.concatenate([self.data, more])

    def write(self, start: int, rows: Any) -> None:
        """Place rows at start…; there is room."""
        self.data = self.library.write(self.data, start, self.library.cast(rows, self.dtype))

    def drop(self, count: int, kept: int) -> None:
        """Forget the first rows; the `kept` ones behind them move to the front."""
        self.write(0, self.library.copy(self.data[count : count + kept]))
        if self.fill is not None:
            rest = (len(self.data) - kept, *self.data.shape[1:])
            self.write(kept, self.library.full(rest, self.dtype, self.fill))

    def copy(self) -> GrowingArray:
        """Return another array with the same rows."""
        other = object.__new__(GrowingArray)
        other.__dict__.update(self.__dict__, data=self.library.copy(self.data))
        return other


class ArrayStore(SlotStore):
    """The arrays of a slot, how many rows it has had, and by how many it grows."""

    library: ArrayLibrary
    arrays: list[GrowingArray]
    length = 0
    page = 1

    def grow(self, rows: int) -> None:
        """Make room for this many rows, in whole pages."""
        for array in self.arrays:
            array.grow(rows, self.page)

    def kept(self) -> list[Any]:
        """Return everything that outlives a batch."""
        return [array.data for array in self.arrays]

    def nbytes(self) -> int:
        """Return the memory held."""
        return sum(array.data.nbytes for array in self.arrays)

    def copy(self) -> Self:
        """Return another store with the same rows."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.arrays = [array.copy() for array in self.arrays]
        return other


class KVStore(Extent, ArrayStore):
    """Key and value rows of a `KVRows` slot: integers and exponents, as the library keeps them.

    Attributes
    ----------
    arrays : keys, their exponents, values, and theirs.
    start : the row that lies first in memory; those up to `base` are not needed any more.
    """

    def __init__(
        self, library: ArrayLibrary, slot: KVRows, page: int, poison: bool, extent: Extent
    ) -> None:
        Extent.__init__(self, extent.window, extent.trims)
        self.library, self.page, self.start = library, page, 0
        fill, exponent = library.poison if poison else (None, None)
        self.arrays = []
        for dim in (slot.key_dim, slot.value_dim):
            shape, dtype = library.stored_shape(slot.heads, dim)
            self.arrays.append(GrowingArray(library, shape, dtype, fill))
            self.arrays.append(GrowingArray(library, (slot.heads,), "i8", exponent))

    def grow(self, rows: int) -> None:
        """Make room for a sequence of this many rows, in whole pages."""
        super().grow(self.room(rows))

    def append(self, keys: Any, values: Any) -> None:
        """Write rows behind the last one; there is room once old ones are given up."""
        self._append([*self.library.stored(keys), *self.library.stored(values)])

    def _append(self, parts: list[Any]) -> None:
        count = len(parts[0])
        if self.base > self.start and self.length + count - self.start > len(self.arrays[0].data):
            self._move_up()
        for array, new in zip(self.arrays, parts, strict=True):
            array.write(self.length - self.start, new)
        self.length += count

    def _move_up(self) -> None:
        for array in self.arrays:
            array.drop(self.base - self.start, self.length - self.base)
        self.start = self.base

    def _parts(self) -> list[Any]:
        cut = slice(self.base - self.start, self.length - self.start)
        return [array.data[cut] for array in self.arrays]

    def read(self) -> tuple[Any, Any]:
        """Return the keys and the values that are there, from `base` on."""
        k, ke, v, ve = self._parts()
        return self.library.read(k, ke), self.library.read(v, ve)

    def trim(self) -> int:
        """Give up rows behind the window; in tests they are spoilt at once."""
        given_up = super().trim()
        if given_up and self.arrays[0].fill is not None:
            self._move_up()
            self.library.settle(self.kept())
        return given_up

    def rewind(self, length: int) -> int:
        """Forget rows; see `Extent`."""
        reached = super().rewind(length)
        self.start = min(self.start, self.base)
        return reached

    def export(self) -> KVPlanes:
        """Return the rows as canonical planes."""
        k, ke, v, ve = self._parts()
        return KVPlanes(*self.library.to_planes(k, ke), *self.library.to_planes(v, ve))

    def load(self, rows: KVPlanes, length: int) -> None:
        """Load exported rows; there is room."""
        if self.trims:
            rows = rows.last(length - kept_from(length, self.window))
        self.start = self.base = self.length = rows.base(length)
        make = self.library.from_planes
        keys = make(rows.key_high, rows.key_low, rows.key_exponent)
        self._append([*keys, *make(rows.value_high, rows.value_low, rows.value_exponent)])
        self.trim()


class RingStore(ArrayStore):
    """Rows of a `Ring` slot; all of them since `base` are kept, so that rewinding is exact.

    Attributes
    ----------
    last : the `slot.length` rows before the next one, zero where there were none. It is an array of
        its own: one that reads the others would have a lazy step copy all of them before it writes.
    """

    def __init__(self, library: ArrayLibrary, slot: Ring, page: int, poison: bool) -> None:
        self.library, self.slot, self.page, self.base = library, slot, page, 0
        fill = POISON if poison else None
        self.arrays = [GrowingArray(library, (slot.width,), "f32", fill)]
        self.last = library.full((slot.length, slot.width), "f32")

    def append(self, rows: Any) -> None:
        """Write rows behind the last one; there is room."""
        self.arrays[0].write(self.length - self.base, rows)
        self.length += len(rows)
        self._follow([self.last, rows] if len(rows) < self.slot.length else [rows])

    def _follow(self, parts: list[Any]) -> None:
        whole = self.library.concatenate(parts) if len(parts) > 1 else parts[0]
        self.last = self.library.copy(whole[len(whole) - self.slot.length :])

    def kept(self) -> list[Any]:
        """Return the rows, and the last ones."""
        return [*super().kept(), self.last]

    def rewind(self, length: int) -> int:
        """Forget rows; back to 0 where the rows before `length` are not kept."""
        if length < self.length:
            enough = self.base == 0 or length - self.slot.length >= self.base
            self.length, self.base = (length, self.base) if enough else (0, 0)
            end, shape = self.length - self.base, (self.slot.length, self.slot.width)
            nothing = self.library.full(shape, "f32")
            self._follow([nothing, self.arrays[0].data[max(0, end - self.slot.length) : end]])
        return self.length

    def export(self) -> Any:
        """Return the last rows, oldest first."""
        return self.library.host(self.last)

    def load(self, rows: Any, length: int) -> None:
        """Load exported rows; there is room."""
        kept = min(self.slot.length, length)
        self.base = self.length = length - kept
        self.last = self.library.full((self.slot.length, self.slot.width), "f32")
        self.append(self.library.array(_imported(rows)[len(rows) - kept :]))


class RecurrentStore(ArrayStore):
    """The state of a `Recurrent` slot after `length` rows; the way back is from the start."""

    def __init__(self, library: ArrayLibrary, slot: Recurrent) -> None:
        self.library, self.slot, self.arrays = library, slot, []
        self.state = library.full(slot.shape, "f32")

    def advance(self, state: Any, rows: int) -> None:
        """Replace the state after so many more rows; the old one is never written to."""
        self.state, self.length = state, self.length + rows

    def kept(self) -> list[Any]:
        """Return the state."""
        return [self.state]

    def nbytes(self) -> int:
        """Return the memory held."""
        return self.state.nbytes

    def rewind(self, length: int) -> int:
        """Forget everything, unless nothing is to be forgotten."""
        if length < self.length:
            self.state, self.length = self.library.full(self.slot.shape, "f32"), 0
        return self.length

    def export(self) -> Any:
        """Return the state."""
        return self.library.host(self.state)

    def load(self, rows: Any, length: int) -> None:
        """Load the exported state."""
        self.state, self.length = self.library.array(_imported(rows)), length


def _imported(rows: Any) -> Floats:
    """Snap imported values to zero below 2⁻⁴⁰, as a primitive would have."""
    return snap(np.array(rows, np.float32))


def open_store(
    library: ArrayLibrary, slot: Slot, page: int, poison: bool, extent: Extent
) -> ArrayStore:
    """Return an empty store for a slot; `extent` says what windows it is seen through."""
    if isinstance(slot, KVRows):
        return KVStore(library, slot, page, poison, extent)
    if isinstance(slot, Ring):
        return RingStore(library, slot, page, poison)
    assert isinstance(slot, Recurrent)
    return RecurrentStore(library, slot)
