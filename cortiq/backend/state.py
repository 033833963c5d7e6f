"""Per-sequence state: the calls on it, and its one canonical form outside a backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cortiq.backend.windows import first_seen, windows_of
from cortiq.errors import RequestError, shown
from cortiq.ir import KVRows, Program, Recurrent, Ring, Slot
from cortiq.numerics.contract import LARGEST_BITS, TILE, magnitude_bits
from cortiq.numerics.quantise import (
    LARGEST_CODE,
    LARGEST_ROW_EXPONENT,
    ZERO_ROW_EXPONENT,
    from_planes,
)

Snapshot = Any
"""An opaque copy of a state, valid for the executable that made it."""


@dataclass(frozen=True)
class KVPlanes:
    """The last rows of a `KVRows` slot in the canonical layout.

    They end where the sequence does: of a sequence of 500 rows, 116 planes are rows 384 … 499, and
    384 is their `base`. Only slots that are seen through windows may begin after row 0, at a
    multiple of 64 (`cortiq.backend.windows`).

    Planes are int8 [rows, heads, dim] with q = 256·high + low; exponents int8 [rows, heads].
    """

    key_high: npt.NDArray[np.int8]
    key_low: npt.NDArray[np.int8]
    key_exponent: npt.NDArray[np.int8]
    value_high: npt.NDArray[np.int8]
    value_low: npt.NDArray[np.int8]
    value_exponent: npt.NDArray[np.int8]

    def base(self, length: int) -> int:
        """Return the first row, of a sequence of `length` rows."""
        return length - len(self.key_high)

    def last(self, rows: int) -> KVPlanes:
        """Return the last rows only."""
        start = max(0, len(self.key_high) - rows)
        return KVPlanes(*(getattr(self, field.name)[start:] for field in fields(self)))


@dataclass(frozen=True)
class ExportedState:
    """A sequence in the canonical layout: any executable of the same program can import it.

    Attributes
    ----------
    lengths : rows seen, by entry graph.
    tokens : every id fed to the trunk, int32.
    slots : by name, `KVPlanes`, or float32 arrays for rings ([length, width], oldest first) and
        recurrent states.
    """

    lengths: Mapping[str, int]
    tokens: npt.NDArray[np.int32]
    slots: Mapping[str, KVPlanes | npt.NDArray[np.float32]]


def check_exported(exported: ExportedState, program: Program, limit: int) -> None:
    """Refuse what no sequence of this program can be; every backend calls it before it imports.

    Checked are entry graphs and lengths, ids, slots with their types and shapes, that no row is
    missing which the next one looks at, |q| ≤ 32512, the range of exponents, and that floats are in
    the domain.

    Raises
    ------
    RequestError : what is wrong, and where.
    """
    if type(limit) is not int or limit < 0:
        raise RequestError(f"a sequence of at most {shown(limit)} positions")
    lengths = exported.lengths
    if not isinstance(lengths, Mapping) or set(lengths) != set(program.graphs):
        _refuse("lengths", f"is not for the entry graphs {sorted(program.graphs)}")
    for entry, length in lengths.items():
        if type(length) is not int or not 0 <= length <= limit:
            _refuse(entry, f"has {shown(length)} rows, the limit is {shown(limit)}")
    _check_tokens(exported.tokens, lengths.get("trunk"), program.facts.get("vocab_size"))
    if not isinstance(exported.slots, Mapping) or set(exported.slots) != set(program.slots):
        _refuse("slots", "is not those of this model")
    windows = windows_of(program)
    for entry, graph in program.graphs.items():
        for name in graph.written_slots():
            slot, given = program.slots[name], exported.slots[name]
            if isinstance(slot, KVRows):
                rows = _rows_of(name, given, lengths[entry], windows.get(name))
                _check_planes(name, slot, given, rows)
            else:
                _check_floats(name, slot, given)


def _refuse(where: str, what: str) -> None:
    raise RequestError(f"the exported state {what}", where=where)


def _check_tokens(tokens: Any, length: int | None, vocabulary: Any) -> None:
    array = tokens if isinstance(tokens, np.ndarray) else np.asarray(None)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        _refuse("tokens", "has no ids")
    if length is not None and len(array) != length:
        _refuse("tokens", f"has {len(array)} ids for {length} rows")
    if array.size and (array.min() < 0 or (vocabulary and array.max() >= vocabulary)):
        _refuse("tokens", "has ids outside the vocabulary")


def _rows_of(name: str, given: Any, length: int, window: int | None) -> int:
    """Return the rows that planes hold: all, or for a windowed slot whole tiles less."""
    high = getattr(given, "key_high", None)
    if not isinstance(given, KVPlanes) or not isinstance(high, np.ndarray) or high.ndim == 0:
        _refuse(name, "has no planes")
    base = given.base(length)
    if window is None or base < 0:
        return length
    if base % TILE:
        _refuse(name, f"begins at row {base}, which is no multiple of {TILE}")
    if base > first_seen(length, window):
        _refuse(name, f"begins at row {base}, the next row looks back {window - 1} rows")
    return length - base


def _check_planes(name: str, slot: KVRows, given: Any, rows: int) -> None:
    for part, width in (("key", slot.key_dim), ("value", slot.value_dim)):
        high, low, exponent = (
            getattr(given, f"{part}_{plane}") for plane in ("high", "low", "exponent")
        )
        for plane in (high, low):
            _check_array(name, plane, np.int8, (rows, slot.heads, width))
        _check_array(name, exponent, np.int8, (rows, slot.heads))
        if np.abs(from_planes(high, low)).max(initial=0) > LARGEST_CODE:
            _refuse(name, f"has codes beyond {LARGEST_CODE}")
        e = exponent.astype(np.int32)
        if ((e < ZERO_ROW_EXPONENT) | (e > LARGEST_ROW_EXPONENT)).any():
            _refuse(name, "has exponents that no row can have")


def _check_floats(name: str, slot: Slot, given: Any) -> None:
    shape = slot.shape if isinstance(slot, Recurrent) else ()
    shape = (slot.length, slot.width) if isinstance(slot, Ring) else shape
    _check_array(name, given, np.float32, shape)
    if magnitude_bits(np.ascontiguousarray(given)).max(initial=0) >= LARGEST_BITS:
        _refuse(name, "holds a value that is not finite, or 2^50 or more")


def _check_array(name: str, given: Any, dtype: type, shape: tuple[int, ...]) -> None:
    if not isinstance(given, np.ndarray) or given.dtype != dtype or given.shape != shape:
        what = (
            f"{given.dtype}{list(given.shape)}" if isinstance(given, np.ndarray) else shown(given)
        )
        _refuse(name, f"has {what}, should be {np.dtype(dtype).name}{list(shape)}")


class State(Protocol):
    """One sequence of an executable. Hashable by identity."""

    @property
    def limit(self) -> int:
        """Positions it may ever hold."""

    def length(self, entry: str = "trunk") -> int:
        """Rows that the entry graph has seen."""

    def reserve(self, rows: int) -> bool:
        """Make sure that `rows` more trunk rows fit in memory; all or nothing."""

    def rewind(self, length: int, entry: str = "trunk") -> int:
        """Forget the rows of `entry` from `length` on.

        Returns the length reached: `length`, or less where a slot cannot go back exactly; the
        caller then feeds the rows in between again. The bits are those of never having gone ahead.
        """

    def snapshot(self) -> Snapshot:
        """Copy everything the sequence holds."""

    def restore(self, snapshot: Snapshot) -> None:
        """Restore the sequence from a snapshot."""

    def fork(self, length: int | None = None) -> State:
        """Open a sequence that starts as this one, its trunk cut to `length` rows if given."""

    def export(self) -> ExportedState:
        """Return the sequence in the canonical layout."""

    def release(self) -> None:
        """Give its memory back; the state is unusable afterwards."""
