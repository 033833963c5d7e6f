"""Per-sequence state: the calls on it, and its one canonical form outside a backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Snapshot = Any
"""An opaque copy of a state, valid for the executable that made it."""


@dataclass(frozen=True)
class KVPlanes:
    """Rows of a `KVRows` slot in the canonical layout.

    Planes are int8 [rows, heads, dim] with q = 256·high + low; exponents int8 [rows, heads].
    """

    key_high: npt.NDArray[np.int8]
    key_low: npt.NDArray[np.int8]
    key_exponent: npt.NDArray[np.int8]
    value_high: npt.NDArray[np.int8]
    value_low: npt.NDArray[np.int8]
    value_exponent: npt.NDArray[np.int8]


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


class State(Protocol):
    """One sequence of an executable. Hashable by identity."""

    @property
    def limit(self) -> int:
        """Positions it may ever hold."""
        ...

    def length(self, entry: str = "trunk") -> int:
        """Rows that the entry graph has seen."""
        ...

    def reserve(self, rows: int) -> bool:
        """Make sure that `rows` more trunk rows fit in memory; all or nothing."""
        ...

    def rewind(self, length: int, entry: str = "trunk") -> int:
        """Forget the rows of `entry` from `length` on.

        Returns the length reached: `length`, or less where a slot cannot go back exactly; the
        caller then feeds the rows in between again. The bits are those of never having gone ahead.
        """
        ...

    def snapshot(self) -> Snapshot:
        """A copy of everything the sequence holds."""
        ...

    def restore(self, snapshot: Snapshot) -> None:
        """Become what the snapshot was taken of."""
        ...

    def fork(self, length: int | None = None) -> State:
        """A second sequence that starts as this one, its trunk cut to `length` rows if given."""
        ...

    def export(self) -> ExportedState:
        """The sequence in the canonical layout."""
        ...

    def release(self) -> None:
        """Give its memory back; the state is unusable afterwards."""
        ...
