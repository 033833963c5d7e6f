"""Sequences: numbers of pages and of a block, ids fed, and the calls of `backend.State`."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from cortiq.backend import ExportedState
from cortiq.backend.windows import first_seen
from cortiq.errors import RequestError
from cortiq.ir import KVRows, Recurrent, Ring
from cortiq_wgpu import layout
from cortiq_wgpu.pools import TILE, Pools, capacity_of

if TYPE_CHECKING:
    from cortiq_wgpu.executable import WgpuExecutable

NO_MEMORY = "no memory is left for this sequence"


class Snapshot:
    """What a sequence held; its pages are given back when nobody refers to it any more."""

    def __init__(
        self, pools: Pools, pages: list[int], block: int, of: tuple[list[int], dict, dict, dict]
    ) -> None:
        self.pools, self.pages, self.block = pools, pages, block
        self.tokens, self.lengths, self.floors, self.bases = of
        blocks = [block] if block >= 0 else []
        self._ending = weakref.finalize(self, _drop, pools, pages, blocks)


def _drop(pools: Pools, pages: list[int], blocks: list[int]) -> None:
    pools.pages.drop(pages)
    pools.blocks.drop(blocks)


class WgpuState:
    """One sequence.

    Pages are shared with what was forked from it, and with snapshots: a page is copied when a row
    is written to it that another holder would see.

    Attributes
    ----------
    owner : the executable it belongs to. alive : not any more once it was released.
    pages : numbers of its pages. block : of its rings and recurrent states, −1 for none yet.
    floors : by ring, the first position whose row is still there. bases : by slot of keys and
    values the first row that is there, where what was imported lacked those behind a window.
    """

    def __init__(self, owner: WgpuExecutable, limit: int) -> None:
        self.owner, self._limit = owner, limit
        self.alive = True
        self.pools = owner.pools
        self.pages: list[int] = []
        self.block = -1
        self.clear()

    def clear(self) -> None:
        """Empty the sequence."""
        self._give_back()
        self.pools = self.owner.pools
        self.tokens: list[int] = []
        self.lengths = dict.fromkeys(self.owner.program.graphs, 0)
        self.bases = {n: 0 for n, slot in self.pools.slots.items() if isinstance(slot, KVRows)}
        self.floors = {n: 0 for n, slot in self.pools.slots.items() if isinstance(slot, Ring)}

    def _give_back(self) -> None:
        _drop(self.pools, self.pages, [self.block] if self.block >= 0 else [])
        self.pages, self.block = [], -1

    @property
    def limit(self) -> int:
        """Positions it may ever hold."""
        return self._limit

    def length(self, entry: str = "trunk") -> int:
        """Rows that the entry graph has seen."""
        return self.lengths[entry]

    def reserve(self, rows: int) -> bool:
        """Make room for `rows` more positions, if the memory limit allows it."""
        start = self.lengths["trunk"]
        return self.grow(start + rows, start)

    def grow(self, rows: int, start: int | None = None) -> bool:
        """Have memory for this many positions, and be able to write those from `start` on."""
        pools = self.pools
        if rows > self._limit:
            return False
        self.owner.prepare(rows)
        missing = max(0, -(-rows // TILE) - len(self.pages)) if pools.pages.slots else 0
        opens = self.block < 0 and rows > 0 and bool(pools.blocks.slots)
        copied = self._shared_from(start // TILE) if start is not None else []
        more = (missing + len(copied)) * pools.pages.nbytes + opens * pools.blocks.nbytes
        if more and not self.owner.fits(more):
            return False
        for place in copied:
            page = self.pages[place]
            self.pages[place] = pools.new(pools.pages, page)
            pools.pages.drop([page])
        self.pages += [pools.new(pools.pages) for _ in range(missing)]
        if opens:
            self.block = pools.new(pools.blocks)
            pools.clear(self.block)
        return True

    def _shared_from(self, first: int) -> list[int]:
        """Places, from this one on, of pages that somebody else holds too."""
        users = self.pools.pages.users
        return [i for i in range(first, len(self.pages)) if users[self.pages[i]] > 1]

    def nbytes(self) -> int:
        """Memory held, shared pages included."""
        block = self.pools.blocks.nbytes if self.block >= 0 else 0
        return len(self.pages) * self.pools.pages.nbytes + block

    def advance(self, entry: str, tokens: list[int]) -> None:
        """Count rows that the slots now hold."""
        self.lengths[entry] += len(tokens)
        for name in self.owner.written[entry]:
            slot = self.pools.slots[name]
            if isinstance(slot, Ring):
                self.floors[name] = max(self.floors[name], self.lengths[entry] - capacity_of(slot))
        if entry == "trunk":
            self.tokens += tokens

    def rewind(self, length: int, entry: str = "trunk") -> int:
        """Forget the rows of `entry` from `length` on; see `cortiq.backend.State`."""
        before = self.lengths[entry]
        if not 0 <= length <= before:
            raise RequestError(f"cannot rewind from {before} rows to {length}")
        names = self.owner.written[entry]
        reached = length if all(self._goes_to(n, length, before) for n in names) else 0
        if reached < before:
            for name in names:
                self._go(name, reached)
        self.lengths[entry] = reached
        if entry == "trunk":
            del self.tokens[reached:]
        return reached

    def _goes_to(self, name: str, length: int, before: int) -> bool:
        """Whether a slot can go back exactly."""
        slot = self.pools.slots[name]
        if isinstance(slot, Ring):
            return max(0, length - slot.length) >= self.floors[name]
        if isinstance(slot, KVRows):
            seen = first_seen(length, self.owner.extent(name).window)
            return length == before or seen >= self.bases[name]
        return length == before

    def _go(self, name: str, length: int) -> None:
        slot = self.pools.slots[name]
        if isinstance(slot, Ring):
            self.floors[name] = min(self.floors[name], length)
        elif isinstance(slot, KVRows):
            self.bases[name] = min(self.bases[name], length)
        elif isinstance(slot, Recurrent) and length == 0 and self.block >= 0:
            self.pools.write(name, self.block, np.zeros(slot.shape, np.uint32))

    def _used(self) -> list[int]:
        return self.pages[: -(-max(self.lengths.values(), default=0) // TILE)]

    def snapshot(self) -> Snapshot:
        """Everything the sequence holds; it shares pages until one of both writes to them."""
        block = self.pools.new(self.pools.blocks, self.block) if self.block >= 0 else -1
        pages = self.pools.pages.share(self._used())
        return Snapshot(self.pools, pages, block, self._facts())

    def _facts(self) -> tuple[list[int], dict, dict, dict]:
        return list(self.tokens), dict(self.lengths), dict(self.floors), dict(self.bases)

    def restore(self, snapshot: Any) -> None:
        """Become what the snapshot was taken of."""
        if snapshot.pools is not self.pools:
            raise RequestError("the snapshot was lost with its device", hint="Feed the ids again.")
        self._become(snapshot)

    def _become(self, snapshot: Snapshot) -> None:
        pools = self.pools
        if snapshot.block >= 0 and not self.owner.fits(pools.blocks.nbytes):
            raise RequestError(NO_MEMORY, hint="Release another first.")
        block = pools.new(pools.blocks, snapshot.block) if snapshot.block >= 0 else -1
        pages = pools.pages.share(snapshot.pages)
        self._give_back()
        self.pages, self.block = pages, block
        self.tokens, self.lengths = list(snapshot.tokens), dict(snapshot.lengths)
        self.floors, self.bases = dict(snapshot.floors), dict(snapshot.bases)
        if self.owner.free_bytes() < 0:
            self.clear()
            raise RequestError(NO_MEMORY, hint="Release another first.")

    def fork(self, length: int | None = None) -> WgpuState:
        """A second sequence that starts as this one, cut to `length` rows if given."""
        if self.block >= 0 and not self.owner.fits(self.pools.blocks.nbytes):
            raise RequestError(NO_MEMORY, hint="Release another first.")
        other = self.owner.open(self._limit)
        try:
            other._become(self.snapshot())
            if length is not None and other.rewind(length) != length:
                raise RequestError(f"this sequence can be forked at its end, not at {length}")
        except BaseException:
            other.release()
            raise
        return other

    def export(self) -> ExportedState:
        """The sequence in the canonical layout."""
        lengths = self.owner.slot_lengths(self.lengths)
        slots: dict[str, Any] = {}
        for name, slot in self.pools.slots.items():
            rows = lengths.get(name, 0)
            if isinstance(slot, KVRows):
                base = self.bases[name]
                there = self.pages[base // TILE : -(-rows // TILE)]
                pages = [self.pools.read(name, page) for page in there]
                slots[name] = layout.planes_of(slot, pages, rows - base)
            elif isinstance(slot, Ring):
                words = self.pools.read(name, self.block) if self.block >= 0 else None
                slots[name] = layout.ring_rows(slot, words, rows)
            else:
                shape = slot.shape if isinstance(slot, Recurrent) else ()
                words = np.zeros(shape, np.uint32)
                if self.block >= 0:
                    words = self.pools.read(name, self.block)
                slots[name] = words.view(np.float32).reshape(shape).copy()
        return ExportedState(dict(self.lengths), np.array(self.tokens, np.int32), slots)

    def load(self, exported: ExportedState) -> None:
        """Become an exported sequence, which `check_exported` has let pass."""
        lengths = self.owner.slot_lengths(exported.lengths)
        if not self.grow(max(exported.lengths.values()), 0):
            raise RequestError("the exported state is longer than the limit, or than memory allows")
        for name, slot in self.pools.slots.items():
            rows = lengths.get(name, 0)
            given: Any = exported.slots[name]
            if isinstance(slot, KVRows):
                base = self.bases[name] = given.base(rows)
                there = self.pages[base // TILE :]
                for page, words in zip(there, layout.pages_of(slot, given), strict=False):
                    self.pools.write(name, page, words)
            elif self.block >= 0 and isinstance(slot, Ring):
                self.floors[name] = max(0, rows - slot.length)
                self.pools.write(name, self.block, layout.ring_words(slot, given, rows))
            elif self.block >= 0:
                self.pools.write(name, self.block, layout.snapped(given).view(np.uint32))
        self.tokens, self.lengths = exported.tokens.tolist(), dict(exported.lengths)

    def release(self) -> None:
        """Give the memory back."""
        self._give_back()
        self.alive = False
        self.owner.forget(self)
