"""What a slot of a sequence is kept in: rows on the device, in arrays that grow by pages.

A write replaces an array by one with the new rows in it. The old one has no other owner when the
step is computed, so that MLX writes in place. Nothing lazy is left behind by a call: a step
computes what it wrote, and every other call here ends with `mx.eval`, since lazy arrays belong to
the thread that made them.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from cortiq.backend import KVPlanes
from cortiq.backend.stored import SlotStore
from cortiq.backend.windows import Extent, kept_from
from cortiq.ir import KVRows, Recurrent, Ring, Slot
from cortiq_mlx.arithmetic import Rows
from cortiq_mlx.attention import Planes
from cortiq_mlx.exact import planes
from cortiq_mlx.library import mx


class Array:
    """Rows [n, ...]; memory beyond the rows written is never read."""

    def __init__(self, shape: tuple[int, ...], dtype: mx.Dtype, fill: float | None) -> None:
        self.fill, self.data = fill, mx.zeros((0, *shape), dtype)

    def grow(self, rows: int, page: int) -> None:
        """Make room for this many rows, in whole pages."""
        missing = -(-rows // page) * page - len(self.data)
        if missing > 0:
            more = mx.full((missing, *self.data.shape[1:]), self.fill or 0, self.data.dtype)
            self.data = mx.concatenate([self.data, more])

    def write(self, start: int, rows: mx.array) -> None:
        """Place rows at start…; there is room."""
        self.data[start : start + len(rows)] = rows.astype(self.data.dtype)

    def drop(self, count: int, kept: int) -> None:
        """Forget the first rows; the `kept` ones behind them move to the front."""
        self.data[:kept] = self.data[count : count + kept]
        if self.fill is not None:
            self.data[kept:] = self.fill

    def copy(self) -> Array:
        """Another array with the same rows: they share memory until one of them writes."""
        other = object.__new__(Array)
        other.data, other.fill = self.data[:], self.fill
        return other


class Store(SlotStore):
    """The arrays of a slot, how many rows it has had, and by how many it grows."""

    arrays: list[Array]
    length = 0
    page = 1

    def grow(self, rows: int) -> None:
        """Make room for this many rows, in whole pages."""
        for array in self.arrays:
            array.grow(rows, self.page)

    def kept(self) -> list[mx.array]:
        """What must be computed before a step has ended."""
        return [array.data for array in self.arrays]

    def nbytes(self) -> int:
        """Memory held."""
        return sum(array.data.nbytes for array in self.arrays)

    def copy(self) -> Self:
        """Another store with the same rows."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.arrays = [array.copy() for array in self.arrays]
        return other

    def rewind(self, length: int) -> int:
        """Forget rows; always possible where all of them are kept."""
        self.length = min(self.length, length)
        return self.length


class KVStore(Extent, Store):
    """Key and value rows of a `KVRows` slot: two int8 planes and an exponent each.

    Attributes
    ----------
    start : the row that lies first in memory; those up to `base` are not needed any more.
    """

    def __init__(self, slot: KVRows, page: int, poison: bool, extent: Extent) -> None:
        Extent.__init__(self, extent.window, extent.trims)
        self.page, self.start = page, 0
        fill, exponent = (127, 60) if poison else (None, None)
        self.arrays = []
        for dim in (slot.key_dim, slot.value_dim):
            self.arrays.append(Array((slot.heads, 2, dim), mx.int8, fill))
            self.arrays.append(Array((slot.heads,), mx.int8, exponent))

    def grow(self, rows: int) -> None:
        """Make room for a sequence of this many rows, in whole pages."""
        super().grow(self.room(rows))

    def append(self, keys: Rows, values: Rows) -> None:
        """Write rows behind the last one."""
        self._append([part for rows in (keys, values) for part in (_stacked(rows.q), rows.e)])

    def _append(self, parts: list[mx.array]) -> None:
        """There is room once old rows are given up."""
        count = len(parts[0])
        end = self.length + count - self.start
        if self.base > self.start and end > len(self.arrays[0].data):
            self._move_up()
        for array, new in zip(self.arrays, parts, strict=True):
            array.write(self.length - self.start, new)
        self.length += count

    def _move_up(self) -> None:
        for array in self.arrays:
            array.drop(self.base - self.start, self.length - self.base)
        self.start = self.base

    def read(self) -> tuple[Planes, Planes]:
        """All rows that are there, from `base` on."""
        cut = slice(self.base - self.start, self.length - self.start)
        k, ke, v, ve = (array.data[cut] for array in self.arrays)
        return Planes(k, ke), Planes(v, ve)

    def trim(self) -> int:
        """Give up rows behind the window; in tests they are spoilt at once."""
        given_up = super().trim()
        if given_up and self.arrays[0].fill is not None:
            self._move_up()
            mx.eval(self.kept())
        return given_up

    def rewind(self, length: int) -> int:
        """Forget rows; see `Extent`."""
        reached = super().rewind(length)
        self.start = min(self.start, self.base)
        return reached

    def export(self) -> KVPlanes:
        """The rows as canonical planes."""
        parts: list[np.ndarray] = []
        for rows in self.read():
            q = np.array(rows.q)
            parts += [q[:, :, 0].copy(), q[:, :, 1].copy(), np.array(rows.e)]
        return KVPlanes(*parts)

    def load(self, rows: KVPlanes, length: int) -> None:
        """Become the exported rows; there is room."""
        if self.trims:
            rows = rows.last(length - kept_from(length, self.window))
        self.start = self.base = self.length = rows.base(length)
        keys = np.stack([rows.key_high, rows.key_low], axis=2)
        values = np.stack([rows.value_high, rows.value_low], axis=2)
        parts = (keys, rows.key_exponent, values, rows.value_exponent)
        self._append([mx.array(part) for part in parts])


def _stacked(q: mx.array) -> mx.array:
    """int16 [rows, heads, dim] as int8 planes [rows, heads, 2, dim]."""
    return mx.stack([*planes(q)], axis=2)


class RingStore(Store):
    """Rows of a `Ring` slot; all of them since `base` are kept, so that rewinding is exact.

    Attributes
    ----------
    last : the `slot.length` rows before the next one, zero where there were none. It is an array of
        its own: one that reads the others would have a step copy all of them before it writes.
    """

    def __init__(self, slot: Ring, page: int, poison: bool) -> None:
        self.slot, self.page, self.base = slot, page, 0
        self.arrays = [Array((slot.width,), mx.float32, 2.0**49 if poison else None)]
        self.last = mx.zeros((slot.length, slot.width))

    def append(self, rows: mx.array) -> None:
        """Write rows behind the last one."""
        self.arrays[0].write(self.length - self.base, rows)
        self.length += len(rows)
        both = mx.concatenate([self.last, rows]) if len(rows) < self.slot.length else rows
        self.last = both[len(both) - self.slot.length :]

    def kept(self) -> list[mx.array]:
        """The rows, and the last ones."""
        return [*super().kept(), self.last]

    def _look_back(self) -> None:
        """Find the last rows among those that are kept."""
        end = self.length - self.base
        rows = self.arrays[0].data[max(0, end - self.slot.length) : end]
        missing = self.slot.length - len(rows)
        self.last = mx.pad(rows, [(missing, 0), (0, 0)]) if missing else rows[:]

    def rewind(self, length: int) -> int:
        """Forget rows; back to 0 where the rows before `length` are not kept."""
        if length < self.length:
            enough = self.base == 0 or length - self.slot.length >= self.base
            self.length, self.base = (length, self.base) if enough else (0, 0)
            self._look_back()
        return self.length

    def export(self) -> Any:
        """The last rows, oldest first."""
        return np.array(self.last)

    def load(self, rows: Any, length: int) -> None:
        """Become the exported rows; there is room."""
        kept = min(self.slot.length, length)
        self.base = self.length = length - kept
        self.append(mx.array(np.asarray(rows, np.float32)[self.slot.length - kept :]))
        self._look_back()


class RecurrentStore(Store):
    """The state of a `Recurrent` slot after `length` rows; the way back is from the start."""

    def __init__(self, slot: Recurrent) -> None:
        self.slot, self.arrays = slot, []
        self.state = mx.zeros(slot.shape)

    def advance(self, state: mx.array, rows: int) -> None:
        """The state after so many more rows; the old one is never written to."""
        self.state, self.length = state, self.length + rows

    def kept(self) -> list[mx.array]:
        """The state."""
        return [self.state]

    def nbytes(self) -> int:
        """Memory held."""
        return self.state.nbytes

    def rewind(self, length: int) -> int:
        """Forget everything, unless nothing is to be forgotten."""
        if length < self.length:
            self.state, self.length = mx.zeros(self.slot.shape), 0
        return self.length

    def export(self) -> Any:
        """The state."""
        return np.array(self.state)

    def load(self, rows: Any, length: int) -> None:
        """Become the exported state."""
        self.state, self.length = mx.array(np.asarray(rows, np.float32)), length


def open_store(slot: Slot, page: int, poison: bool, extent: Extent) -> Store:
    """An empty store for a slot; the extent says what windows a slot of rows is seen through."""
    if isinstance(slot, KVRows):
        return KVStore(slot, page, poison, extent)
    if isinstance(slot, Ring):
        return RingStore(slot, page, poison)
    assert isinstance(slot, Recurrent)
    return RecurrentStore(slot)
