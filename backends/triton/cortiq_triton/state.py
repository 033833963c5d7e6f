"""Sequences: pages, the fixed block, the ids fed, and the calls of `cortiq.backend.State`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cortiq.backend import ExportedState
from cortiq.backend.windows import first_seen
from cortiq.errors import RequestError
from cortiq.ir import KVRows, Recurrent, Ring
from cortiq.numerics.contract import TILE
from cortiq_triton.memory import Page, export_rows, import_rows, ring_rows

if TYPE_CHECKING:
    from cortiq_triton.executable import TritonExecutable

UNKNOWN = -1
"""A token that was drawn on the device and is not known to the host yet."""


class TritonState:
    """One sequence.

    Attributes
    ----------
    owner : the executable it belongs to. alive : not any more once it was released.
    pages : of 64 positions each. fixed : rings and recurrent states.
    kept_from : by entry graph, the first row that its rings still hold.
    bases : by slot, the first row there is, where an imported state had given up earlier ones.
    """

    def __init__(self, owner: TritonExecutable, limit: int) -> None:
        self.owner, self._limit, self.alive = owner, limit, True
        self.pages: list[Page] = []
        self.fixed = torch.zeros(0, dtype=torch.int8)
        self.clear()

    def clear(self) -> None:
        """Empty the sequence."""
        self._drop_pages(0)
        self.fixed = torch.zeros(
            self.owner.layout.fixed, dtype=torch.int8, device=self.owner.device
        )
        self.tokens: list[int] = []
        self.lengths = dict.fromkeys(self.owner.program.graphs, 0)
        self.kept_from = dict.fromkeys(self.owner.program.graphs, 0)
        self.bases: dict[str, int] = {}

    def _drop_pages(self, keep: int) -> None:
        for page in self.pages[keep:]:
            self.owner.pool.drop(page)
        del self.pages[keep:]

    @property
    def limit(self) -> int:
        """Positions it may ever hold."""
        return self._limit

    def length(self, entry: str = "trunk") -> int:
        """Rows that the entry graph has seen."""
        return self.lengths[entry]

    def reserve(self, rows: int) -> bool:
        """Make room for `rows` more positions, if memory allows it."""
        return self.grow(self.lengths["trunk"] + rows)

    def grow(self, rows: int, start: int | None = None) -> bool:
        """Make room for this many rows: for all of them, or for none.

        start : the first row that will be written, whose page must be nobody else's.
        """
        if rows > self._limit:
            return False
        if not self.owner.layout.page:
            return self.owner.fits(0)
        wanted = -(-rows // TILE)
        first = len(self.pages) if start is None else start // TILE
        shared = [i for i in range(first, len(self.pages)) if self.pages[i].holders > 1]
        count = max(0, wanted - len(self.pages)) + len(shared)
        if not count:
            return True
        if not self.owner.fits(count * self.owner.layout.page):
            return False
        try:
            fresh = self.owner.pool.take(count)
        except torch.OutOfMemoryError:
            return False
        for index in shared:
            mine = fresh.pop()
            mine.memory.copy_(self.pages[index].memory)
            self.owner.pool.drop(self.pages[index])
            self.pages[index] = mine
        self.pages += fresh
        return True

    def nbytes(self) -> int:
        """Memory held; a page that several hold counts for each of them."""
        return len(self.pages) * self.owner.layout.page + self.fixed.nbytes

    def advance(self, entry: str, tokens: list[int]) -> None:
        """Count rows that were submitted."""
        self.lengths[entry] += len(tokens)
        oldest = self.lengths[entry] - min(map(ring_rows, self._rings(entry)), default=0)
        self.kept_from[entry] = max(self.kept_from[entry], oldest)
        if entry == "trunk":
            self.tokens += tokens

    def _slots(self, entry: str) -> list[tuple[str, Any]]:
        slots = self.owner.program.slots
        return [(name, slots[name]) for name in self.owner.written[entry]]

    def _rings(self, entry: str) -> list[Ring]:
        return [slot for _, slot in self._slots(entry) if isinstance(slot, Ring)]

    def rewind(self, length: int, entry: str = "trunk") -> int:
        """Forget the rows of `entry` from `length` on; see `cortiq.backend.State`."""
        self.owner.settle()
        if not 0 <= length <= self.lengths[entry]:
            raise RequestError(f"cannot rewind from {self.lengths[entry]} rows to {length}")
        reached = length if self._can_go_back(length, entry) else 0
        if reached == 0:
            self._zero(entry)
        self.lengths[entry] = reached
        if entry == "trunk":
            del self.tokens[reached:]
        self._drop_pages(-(-max(self.lengths.values()) // TILE))
        return reached

    def _can_go_back(self, length: int, entry: str) -> bool:
        if length == self.lengths[entry]:
            return True
        if any(isinstance(slot, Recurrent) for _, slot in self._slots(entry)):
            return False
        windows = self.owner.views
        if any(first_seen(length, windows.get(slot)) < base for slot, base in self.bases.items()):
            return False
        longest = max((ring.length for ring in self._rings(entry)), default=0)
        return max(0, length - longest) >= self.kept_from[entry]

    def _zero(self, entry: str) -> None:
        """The states before the first row."""
        self.kept_from[entry] = 0
        for name, slot in self._slots(entry):
            self.bases.pop(name, None)
            if isinstance(slot, Recurrent):
                self.recurrent(name).zero_()

    def recurrent(self, name: str) -> torch.Tensor:
        """The array of a `Recurrent` slot."""
        slot: Any = self.owner.program.slots[name]
        return self._floats(name, int(np.prod(slot.shape))).view(slot.shape)

    def ring(self, name: str) -> torch.Tensor:
        """The rows of a `Ring` slot; position p lies in row p modulo their number."""
        slot: Any = self.owner.program.slots[name]
        return self._floats(name, ring_rows(slot) * slot.width).view(ring_rows(slot), slot.width)

    def _floats(self, name: str, count: int) -> torch.Tensor:
        start = self.owner.layout.offsets[name]
        return self.fixed[start : start + 4 * count].view(torch.float32)

    def snapshot(self) -> Any:
        """A copy of everything the sequence holds; pages are shared until they are written."""
        self.owner.settle()
        for page in self.pages:
            page.holders += 1
        return Snapshot(self)

    def restore(self, snapshot: Any) -> None:
        """Become what the snapshot was taken of."""
        self.owner.settle()
        if not self.owner.fits(0):
            raise RequestError("no memory is left for this sequence", hint="Release another first.")
        for page in snapshot.pages:
            page.holders += 1
        self._drop_pages(0)
        self.pages = list(snapshot.pages)
        self.fixed = snapshot.fixed.clone()
        self.tokens, self.lengths = list(snapshot.tokens), dict(snapshot.lengths)
        self.kept_from, self.bases = dict(snapshot.kept_from), dict(snapshot.bases)

    def fork(self, length: int | None = None) -> TritonState:
        """A second sequence that starts as this one, cut to `length` rows if given."""
        self.owner.settle()
        other = self.owner.open(self._limit)
        try:
            other.restore(self)
            if length is not None and other.rewind(length) != length:
                raise RequestError(f"this sequence can be forked at its end, not at {length}")
        except BaseException:
            other.release()
            raise
        return other

    def export(self) -> ExportedState:
        """The sequence in the canonical layout."""
        self.owner.settle()
        slots: dict[str, Any] = {}
        for entry in self.owner.written:
            for name, slot in self._slots(entry):
                if isinstance(slot, KVRows):
                    offset = self.owner.layout.offsets[name]
                    base, length = self.bases.get(name, 0), self.lengths[entry]
                    slots[name] = export_rows(self.pages, offset, slot, base, length)
                elif isinstance(slot, Ring):
                    slots[name] = self._last_rows(name, slot, self.lengths[entry])
                else:
                    slots[name] = self.recurrent(name).cpu().numpy().copy()
        return ExportedState(dict(self.lengths), np.array(self.tokens, np.int32), slots)

    def _last_rows(self, name: str, slot: Ring, length: int) -> np.ndarray:
        ring, rows = self.ring(name).cpu().numpy(), np.arange(length - slot.length, length)
        return np.where((rows >= 0)[:, None], ring[rows % len(ring)], np.float32(0))

    def load(self, exported: ExportedState) -> None:
        """Become an exported sequence, which `check_exported` has let pass."""
        if not self.grow(max(exported.lengths.values())):
            raise RequestError("the exported state is longer than the limit, or than memory allows")
        for entry in self.owner.written:
            length = exported.lengths[entry]
            for name, slot in self._slots(entry):
                self._load_slot(name, slot, exported.slots[name], length)
                if isinstance(slot, Ring):
                    kept = max(0, length - slot.length)
                    self.kept_from[entry] = max(self.kept_from[entry], kept)
        self.tokens, self.lengths = exported.tokens.tolist(), dict(exported.lengths)

    def _load_slot(self, name: str, slot: Any, given: Any, length: int) -> None:
        if isinstance(slot, KVRows):
            base = given.base(length)
            if base:
                self.bases[name] = base
            import_rows(self.pages, self.owner.layout.offsets[name], slot, given, base)
        elif isinstance(slot, Ring):
            ring, rows = self.ring(name), np.arange(max(0, length - slot.length), length)
            if len(rows):
                values = torch.tensor(given[slot.length - len(rows) :], device=ring.device)
                ring[torch.tensor(rows % len(ring), device=ring.device)] = values
        else:
            self.recurrent(name).copy_(torch.tensor(given))

    def release(self) -> None:
        """Give the memory back."""
        self.owner.settle()
        self._drop_pages(0)
        self.fixed, self.alive = self.fixed[:0], False
        self.owner.forget(self)


class Snapshot:
    """A state's pages, shared, and copies of the rest; it holds the pages until it is forgotten."""

    def __init__(self, state: TritonState) -> None:
        self.pages, self.fixed = list(state.pages), state.fixed.clone()
        self.tokens, self.lengths = list(state.tokens), dict(state.lengths)
        self.kept_from, self.bases = dict(state.kept_from), dict(state.bases)
        self._pool = state.owner.pool

    def __del__(self) -> None:
        for page in self.pages:
            self._pool.drop(page)
