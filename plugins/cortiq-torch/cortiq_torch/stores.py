"""What a slot of a sequence is kept in: rows on the device, in tensors that grow by pages."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from cortiq.backend import KVPlanes
from cortiq.backend.stored import SlotStore
from cortiq.backend.windows import Extent, kept_from
from cortiq.ir import KVRows, Recurrent, Ring, Slot
from cortiq.numerics.quantise import from_planes, planes
from cortiq_torch.arithmetic import Rows


class Array:
    """Rows [n, ...]; memory beyond the rows written is never read."""

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: str, fill: float | None
    ) -> None:
        self.fill = fill
        self.data = torch.empty((0, *shape), dtype=dtype, device=device)

    def grow(self, rows: int, page: int) -> None:
        """Make room for this many rows, in whole pages."""
        missing = -(-rows // page) * page - len(self.data)
        if missing > 0:
            more = self.data.new_empty((missing, *self.data.shape[1:]))
            if self.fill is not None:
                more.fill_(self.fill)
            self.data = torch.cat([self.data, more])

    def write(self, start: int, rows: Tensor) -> None:
        """Place rows at start…; there is room."""
        self.data[start : start + len(rows)] = rows.to(self.data.dtype)

    def drop(self, count: int, kept: int) -> None:
        """Forget the first rows; the `kept` ones behind them move to the front."""
        self.data[:kept] = self.data[count : count + kept].clone()
        if self.fill is not None:
            self.data[kept:] = self.fill

    def copy(self) -> Array:
        """Another array with the same rows."""
        other = object.__new__(Array)
        other.data, other.fill = self.data.clone(), self.fill
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
    """Key and value rows of a `KVRows` slot: 16-bit integers and exponents.

    Attributes
    ----------
    start : the row that lies first in memory; those up to `base` are not needed any more.
    """

    def __init__(self, slot: KVRows, device: str, page: int, poison: bool, extent: Extent) -> None:
        Extent.__init__(self, extent.window, extent.trims)
        self.page, self.start = page, 0
        fill, exponent = (32512, 60) if poison else (None, None)
        keys, values = (slot.heads, slot.key_dim), (slot.heads, slot.value_dim)
        self.arrays = [
            Array(keys, torch.int16, device, fill),
            Array((slot.heads,), torch.int8, device, exponent),
            Array(values, torch.int16, device, fill),
            Array((slot.heads,), torch.int8, device, exponent),
        ]

    def grow(self, rows: int) -> None:
        """Make room for a sequence of this many rows, in whole pages."""
        super().grow(self.room(rows))

    def append(self, keys: Rows, values: Rows) -> None:
        """Write rows behind the last one; there is room once old ones are given up."""
        end = self.length + len(keys.q) - self.start
        if self.base > self.start and end > len(self.arrays[0].data):
            self._move_up()
        for array, new in zip(self.arrays, (*keys, *values), strict=True):
            array.write(self.length - self.start, new)
        self.length += len(keys.q)

    def _move_up(self) -> None:
        for array in self.arrays:
            array.drop(self.base - self.start, self.length - self.base)
        self.start = self.base

    def read(self) -> tuple[Rows, Rows]:
        """All rows that are there, from `base` on, as they are stored."""
        cut = slice(self.base - self.start, self.length - self.start)
        k, ke, v, ve = (array.data[cut] for array in self.arrays)
        return Rows(k, ke), Rows(v, ve)

    def trim(self) -> int:
        """Give up rows behind the window; in tests they are spoilt at once."""
        given_up = super().trim()
        if given_up and self.arrays[0].fill is not None:
            self._move_up()
        return given_up

    def rewind(self, length: int) -> int:
        """Forget rows; see `Extent`."""
        reached = super().rewind(length)
        self.start = min(self.start, self.base)
        return reached

    def export(self) -> KVPlanes:
        """The rows as canonical planes."""
        keys, values = self.read()
        parts = []
        for rows in (keys, values):
            parts += [*planes(rows.q.int().cpu().numpy()), rows.e.cpu().numpy()]
        return KVPlanes(*parts)

    def load(self, rows: KVPlanes, length: int) -> None:
        """Become the exported rows; there is room."""
        if self.trims:
            rows = rows.last(length - kept_from(length, self.window))
        keys = Rows(*_tensors(from_planes(rows.key_high, rows.key_low), rows.key_exponent))
        values = Rows(*_tensors(from_planes(rows.value_high, rows.value_low), rows.value_exponent))
        self.start = self.base = self.length = rows.base(length)
        self.append(keys, values)


def _tensors(*arrays: Any) -> tuple[Tensor, ...]:
    return tuple(map(torch.tensor, arrays))


class RingStore(Store):
    """Rows of a `Ring` slot; all of them since `base` are kept, so that rewinding is exact."""

    def __init__(self, slot: Ring, device: str, page: int, poison: bool) -> None:
        self.slot, self.page, self.base = slot, page, 0
        self.arrays = [Array((slot.width,), torch.float32, device, 2.0**49 if poison else None)]

    def last(self) -> Tensor:
        """The `slot.length` rows before the next one, zero where there were none."""
        end = self.length - self.base
        kept = self.arrays[0].data[max(0, end - self.slot.length) : end]
        missing = self.slot.length - len(kept)
        return torch.cat([kept.new_zeros(missing, self.slot.width), kept])

    def append(self, rows: Tensor) -> None:
        """Write rows behind the last one."""
        self.arrays[0].write(self.length - self.base, rows)
        self.length += len(rows)

    def rewind(self, length: int) -> int:
        """Forget rows; back to 0 where the rows before `length` are not kept."""
        if length < self.length:
            enough = self.base == 0 or length - self.slot.length >= self.base
            self.length, self.base = (length, self.base) if enough else (0, 0)
        return self.length

    def export(self) -> Any:
        """The last rows, oldest first."""
        return self.last().cpu().numpy()

    def load(self, rows: Any, length: int) -> None:
        """Become the exported rows; there is room."""
        kept = min(self.slot.length, length)
        self.base = self.length = length - kept
        self.append(torch.tensor(rows)[self.slot.length - kept :])


class RecurrentStore(Store):
    """The state of a `Recurrent` slot after `length` rows; the way back is from the start."""

    def __init__(self, slot: Recurrent, device: str) -> None:
        self.slot, self.arrays = slot, []
        self.state = torch.zeros(slot.shape, device=device)

    def advance(self, state: Tensor, rows: int) -> None:
        """The state after so many more rows; the old one is never written to."""
        self.state, self.length = state, self.length + rows

    def nbytes(self) -> int:
        """Memory held."""
        return self.state.nbytes

    def rewind(self, length: int) -> int:
        """Forget everything, unless nothing is to be forgotten."""
        if length < self.length:
            self.state, self.length = torch.zeros_like(self.state), 0
        return self.length

    def export(self) -> Any:
        """The state."""
        return self.state.cpu().numpy().copy()

    def load(self, rows: Any, length: int) -> None:
        """Become the exported state."""
        self.state, self.length = torch.tensor(rows, device=self.state.device), length


def open_store(slot: Slot, device: str, page: int, poison: bool, extent: Extent) -> Store:
    """An empty store for a slot; the extent says what windows a slot of rows is seen through."""
    if isinstance(slot, KVRows):
        return KVStore(slot, device, page, poison, extent)
    if isinstance(slot, Ring):
        return RingStore(slot, device, page, poison)
    assert isinstance(slot, Recurrent)
    return RecurrentStore(slot, device)
