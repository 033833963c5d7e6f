"""What a slot of a sequence is kept in: rows in NumPy arrays that grow by pages."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.backend import KVPlanes
from cortiq.backend.stored import SlotStore
from cortiq.backend.windows import Extent, kept_from
from cortiq.errors import RequestError
from cortiq.ir import KVRows, Recurrent, Ring, Slot
from cortiq.numerics.contract import F32, Floats
from cortiq.numerics.quantise import ZERO_ROW_EXPONENT, Quantised, from_planes, planes
from cortiq_reference.recurrent_store import RecurrentStore, checked

MAX_Q = 32512
EXPONENTS = (ZERO_ROW_EXPONENT, 36)
"""Exponents of quantised rows: those of magnitudes from 2⁻⁴⁰ up to 2⁵⁰."""
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

    def drop(self, count: int, kept: int) -> None:
        """Forget the first rows; the `kept` ones behind them move to the front."""
        self.data[:kept] = self.data[count : count + kept]
        if self.fill is not None:
            self.data[kept:] = self.fill


class KVStore(Extent, SlotStore):
    """Rows of a `KVRows` slot.

    Attributes
    ----------
    start : the row that lies first in memory; those up to `base` are not needed any more.
    """

    def __init__(self, slot: KVRows, page: int, poison: bool, extent: Extent | None = None) -> None:
        given = extent or Extent()
        Extent.__init__(self, given.window, given.trims)
        self.page, self.start = page, 0
        fill, exponent = (np.int16(32512), np.int8(60)) if poison else (None, None)
        self.k = Rows((slot.heads, slot.key_dim), np.int16, fill)
        self.v = Rows((slot.heads, slot.value_dim), np.int16, fill)
        self.k_exponent = Rows((slot.heads,), np.int8, exponent)
        self.v_exponent = Rows((slot.heads,), np.int8, exponent)

    def parts(self) -> list[Rows]:
        """The arrays."""
        return [self.k, self.v, self.k_exponent, self.v_exponent]

    def nbytes(self) -> int:
        """Memory held."""
        return sum(part.data.nbytes for part in self.parts())

    def grow(self, rows: int) -> None:
        """Have memory for a sequence of this many rows."""
        for part in self.parts():
            part.grow(self.room(rows), self.page)

    def append(self, keys: Quantised, values: Quantised) -> None:
        """Write rows behind the last one."""
        count = len(keys.q)
        if self.base > self.start and self.length + count - self.start > len(self.k.data):
            self._move_up()
        for rows, new in zip(self.parts(), (keys.q, values.q, keys.e, values.e), strict=True):
            rows.write(self.length - self.start, new, self.page)
        self.length += count

    def _move_up(self) -> None:
        for part in self.parts():
            part.drop(self.base - self.start, self.length - self.base)
        self.start = self.base

    def read(self) -> tuple[Quantised, Quantised]:
        """All rows that are there, from `base` on."""
        cut = slice(self.base - self.start, self.length - self.start)
        keys = Quantised(self.k.data[cut], self.k_exponent.data[cut].astype(np.int32))
        return keys, Quantised(self.v.data[cut], self.v_exponent.data[cut].astype(np.int32))

    def trim(self) -> int:
        """Give up rows behind the window; in tests they are spoilt at once."""
        given_up = super().trim()
        if given_up and self.k.fill is not None:
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
        (kh, kl), (vh, vl) = planes(keys.q.astype(np.int32)), planes(values.q.astype(np.int32))
        return KVPlanes(kh, kl, keys.e.astype(np.int8), vh, vl, values.e.astype(np.int8))

    def load(self, rows: Exported, length: int) -> None:
        """Become the exported rows."""
        if not isinstance(rows, KVPlanes):
            raise RequestError("the exported state is of another model: it has other slots")
        if self.trims:
            rows = rows.last(length - kept_from(length, self.window))
        keys = _imported(rows.key_high, rows.key_low, rows.key_exponent)
        values = _imported(rows.value_high, rows.value_low, rows.value_exponent)
        count = length - rows.base(length)
        for new, mine in ((keys, self.k), (values, self.v)):
            if new.q.shape != (count, *mine.data.shape[1:]):
                raise RequestError(
                    f"the exported state has rows {new.q.shape}, not {count} of "
                    f"{mine.data.shape[1:]}: it is of another model, or incomplete"
                )
        self.start = self.base = self.length = rows.base(length)
        self.append(keys, values)
        self.trim()


class RingStore(SlotStore):
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

    def nbytes(self) -> int:
        """Memory held."""
        return self.rows.data.nbytes

    def grow(self, rows: int) -> None:
        """Have memory for a sequence of this many rows."""
        self.rows.grow(rows, self.page)

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
        self.append(checked(rows)[self.slot.length - kept :])


def _imported(
    high: npt.NDArray[np.int8], low: npt.NDArray[np.int8], exponent: npt.NDArray[np.int8]
) -> Quantised:
    """Rows from canonical planes, if they are rows that `quantise_rows` makes."""
    if high.shape != low.shape or high.shape[:-1] != exponent.shape:
        raise RequestError("the exported state's planes and exponents do not fit together")
    rows = Quantised(from_planes(high, low), exponent.astype(np.int32))
    lowest, highest = EXPONENTS
    if (np.abs(rows.q) > MAX_Q).any() or (rows.e < lowest).any() or (rows.e > highest).any():
        raise RequestError("the exported state holds a value that is not finite or too large")
    return rows


def open_store(slot: Slot, page: int, poison: bool, extent: Extent | None = None) -> SlotStore:
    """An empty store for a slot; the extent says what windows a slot of rows is seen through."""
    if isinstance(slot, KVRows):
        return KVStore(slot, page, poison, extent)
    if isinstance(slot, Ring):
        return RingStore(slot, page, poison)
    if isinstance(slot, Recurrent):
        return RecurrentStore(slot)
    raise RequestError(f"unknown slot kind {type(slot).__name__}")
