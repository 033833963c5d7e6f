"""One sequence: lengths, ids and the calls of `cortiq.backend.State`, however its rows are kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np

from cortiq.backend.state import ExportedState
from cortiq.errors import RequestError


class SequenceState(ABC):
    """One sequence; see `cortiq.backend.State`.

    Attributes
    ----------
    owner : the executable it belongs to.
    alive : whether it can be used; not any more once it was released.
    tokens : the ids fed. lengths : rows that each entry graph has seen.
    """

    owner: Any
    tokens: list[int]
    lengths: dict[str, int]

    def __init__(self, owner: Any, limit: int) -> None:
        self.owner, self._limit, self.alive = owner, limit, True
        self.clear()

    def clear(self) -> None:
        """Empty the sequence."""
        self.drop()
        self.tokens, self.lengths = [], dict.fromkeys(self.owner.program.graphs, 0)

    @abstractmethod
    def drop(self) -> None:
        """Give up what every slot holds."""

    @abstractmethod
    def go_back(self, length: int, entry: str) -> int:
        """Forget rows of the slots that `entry` writes; return the length reached."""

    @abstractmethod
    def start_as(self, other: Self) -> None:
        """Start, empty, as a copy of another sequence."""

    @abstractmethod
    def snapshot(self) -> Any:
        """Copy everything the sequence holds."""

    @abstractmethod
    def grow(self, rows: int) -> bool:
        """Make room for this many rows in every slot: in all of them, or in none."""

    @abstractmethod
    def export_slot(self, name: str) -> Any:
        """Return a slot in the canonical layout."""

    @abstractmethod
    def load_slot(self, name: str, given: Any, length: int) -> None:
        """Load a slot, which has room, with what was exported of a sequence of `length` rows."""

    @property
    def limit(self) -> int:
        """Positions it may ever hold."""
        return self._limit

    def length(self, entry: str = "trunk") -> int:
        """Return the number of rows that the entry graph has seen."""
        return self.lengths[entry]

    def reserve(self, rows: int) -> bool:
        """Make room for `rows` more positions, if the memory limit allows it."""
        return self.grow(self.lengths["trunk"] + rows)

    def advance(self, entry: str, tokens: list[int]) -> None:
        """Count rows that the slots now hold."""
        self.lengths[entry] += len(tokens)
        if entry == "trunk":
            self.tokens += tokens

    def rewind(self, length: int, entry: str = "trunk") -> int:
        """Forget the rows of `entry` from `length` on; see `cortiq.backend.State`."""
        self.owner.settle_state(self)
        if not 0 <= length <= self.lengths[entry]:
            raise RequestError(f"cannot rewind from {self.lengths[entry]} rows to {length}")
        reached = self.lengths[entry] = self.go_back(length, entry)
        if entry == "trunk":
            del self.tokens[reached:]
        return reached

    def fork(self, length: int | None = None) -> Self:
        """Open a second sequence that starts as this one, cut to `length` rows if given."""
        other = self.owner.open(self._limit)
        try:
            other.start_as(self)
            if length is not None and other.rewind(length) != length:
                raise RequestError(f"this sequence can be forked at its end, not at {length}")
        except BaseException:
            other.release()
            raise
        return other

    def export(self) -> ExportedState:
        """Return the sequence in the canonical layout."""
        self.owner.settle_state(self)
        slots = {name: self.export_slot(name) for name in self.owner.program.slots}
        return ExportedState(dict(self.lengths), np.array(self.tokens, np.int32), slots)

    def load(self, exported: ExportedState) -> None:
        """Load an exported sequence, which `check_exported` has let pass."""
        if not self.grow(max(exported.lengths.values())):
            raise RequestError("the exported state is longer than the limit, or than memory allows")
        for entry, names in self.owner.written.items():
            for name in names:
                self.load_slot(name, exported.slots[name], exported.lengths[entry])
        self.tokens, self.lengths = exported.tokens.tolist(), dict(exported.lengths)

    def release(self) -> None:
        """Give the memory back."""
        self.owner.settle_state(self)
        self.drop()
        self.alive = False
        self.owner.forget(self)
