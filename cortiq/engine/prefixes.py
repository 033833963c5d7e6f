"""Prefix cache: states of finished sequences, found again by prompts that begin alike.

A cached state is found by the ids that were fed to it, compared one by one; states of constant size
are found by `RollingKey`. Prompts fed as embeddings are never cached, nor looked up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass

from cortiq.backend import Executable, ExportedState, State
from cortiq.backend.windows import goes_back
from cortiq.engine.cache_roles import CacheRole
from cortiq.engine.prefix_key import RollingKey
from cortiq.engine.radix_tree import RadixNode, RadixTree, common_prefix_length
from cortiq.engine.sequence import Sequence
from cortiq.errors import RequestError
from cortiq.ir import KVRows
from cortiq.ir.encoded import most_rows

LEAST_ROWS = 8
"""Fewest rows that are worth a copy of a state."""


@dataclass(eq=False)
class CachedPrefix:
    """A cached state.

    Attributes
    ----------
    state : the state, or its export, not yet imported.
    length : its rows. nbytes : its memory. used : clock of its last use.
    overlay : what its rows were computed with (`Request.prefix_key`).
    """

    state: State | ExportedState
    role: CacheRole
    length: int
    nbytes: int
    used: int
    node: RadixNode[CachedPrefix] | None = None
    key: RollingKey | None = None
    overlay: str = ""


@dataclass(frozen=True)
class _Candidate:
    """A state to continue from, and the number of its rows that the prompt shares."""

    reach: int
    whole: bool
    kept: CachedPrefix | None = None
    running: Sequence | None = None


def fork_if_room(state: State) -> State | None:
    """Fork a state; return None when memory is short."""
    try:
        return state.fork()
    except RequestError:
        return None


class PrefixCache:
    """Cached states of one executable.

    Parameters
    ----------
    count : most states. nbytes : most memory, None for no limit; shared rows count in each state.

    Attributes
    ----------
    rewinds_freely : whether any state can be rewound to any length.
    evicted : states evicted so far to keep within the limits, or to make room.
    """

    def __init__(self, executable: Executable, count: int = 8, nbytes: int | None = None) -> None:
        self.executable, self.count, self.nbytes = executable, count, nbytes
        self.evicted = 0
        self._trees: dict[str, RadixTree[CachedPrefix]] = defaultdict(RadixTree)
        self._entries: list[CachedPrefix] = []
        self._clock = 0
        program = executable.program
        kinds = [program.slots[name] for name in program.trunk.written_slots()]
        self._bounded = bool(kinds) and not any(isinstance(slot, KVRows) for slot in kinds)
        self.rewinds_freely = goes_back(executable)

    def __len__(self) -> int:
        return len(self._entries)

    def take(
        self, ids: list[int], running: Several[Sequence] = (), overlay: str = ""
    ) -> tuple[State, int] | None:
        """Return a state with the longest cached prefix of `ids`, and its rows; or None.

        Its rows were computed with the same overlay.

        At least one row is left to feed. The state becomes the caller's: the end of a turn is
        moved, anything else is copied. Where a state cannot be rewound to the common prefix,
        the caller feeds the missing rows.
        """
        best: tuple[State, int] | None = None
        candidates = sorted(
            self._candidates(ids, running, overlay), key=lambda c: (-c.reach, not c.whole)
        )
        for candidate in candidates:
            if candidate.reach < LEAST_ROWS or (best is not None and best[1] >= candidate.reach):
                break
            found = self._resume_from(candidate)
            if found is None:
                continue
            if best is None or found[1] > best[1]:
                best, found = found, best or found
            if found is not best:
                found[0].release()
        if best is not None and best[1] == 0:
            best[0].release()
            return None
        return best

    def _candidates(
        self, ids: list[int], running: Several[Sequence], overlay: str
    ) -> Iterator[_Candidate]:
        most = len(ids) - 1
        if self._bounded:
            for kept in (kept for kept in self._entries if kept.overlay == overlay):
                assert kept.key is not None
                yield _Candidate(kept.key.extension(ids), True, kept)
        else:
            whole, node, shared = self._trees[overlay].match(ids)
            for above in whole:
                if above.depth <= most and above.value is not None:
                    yield _Candidate(above.depth, True, above.value)
            nearest = min(node.below(), key=lambda n: n.depth, default=None)
            if nearest is not None and nearest.value is not None:
                yield _Candidate(min(shared, most), nearest.depth <= most, nearest.value)
        for other in running:
            alike = other.request.prefix_key == overlay
            if alike and other.state is not None and other.request.embeddings is None:
                shared = min(common_prefix_length(other.keys, ids), other.fed, most)
                if not self._bounded or shared == other.fed:
                    yield _Candidate(shared, shared == other.fed, running=other)

    def _resume_from(self, candidate: _Candidate) -> tuple[State, int] | None:
        """Return the state and its length; None when memory is short for a copy."""
        kept = candidate.kept
        if kept is None:
            assert candidate.running is not None
            state, length = fork_if_room(candidate.running.live_state()), candidate.running.fed
        else:
            self._clock += 1
            kept.used, length = self._clock, kept.length
            if self._live_state(kept).length() != length:  # a device that held it is gone
                if kept in self._entries:
                    self._drop(kept)
                return None
            handed = kept.role <= CacheRole.TURN and length == candidate.reach
            state = self._live_state(kept) if handed else fork_if_room(self._live_state(kept))
            if handed:
                self._unlink(kept)
        if state is not None and length > candidate.reach:
            length = state.rewind(candidate.reach)
        return None if state is None else (state, length)

    def _live_state(self, kept: CachedPrefix) -> State:
        """Return its state; import a loaded one when it is first used."""
        if isinstance(kept.state, ExportedState):
            kept.state = self.executable.import_(kept.state, most_rows(self.executable.program))
        return kept.state

    def has(self, ids: list[int], overlay: str = "") -> bool:
        """Return whether exactly this prefix is cached."""
        if self._bounded:
            key = RollingKey.of(ids)
            return any(kept.key == key and kept.overlay == overlay for kept in self._entries)
        whole, _, _ = self._trees[overlay].match(ids)
        return bool(whole) and whole[-1].depth == len(ids)

    def put(
        self, ids: list[int], state: State | ExportedState, role: CacheRole, overlay: str = ""
    ) -> int:
        """Cache a state that holds exactly these rows; return how many others were evicted.

        Ends of turns that it extends are dropped where any state can be rewound to them.
        """
        self._clock += 1
        size = self.executable.state_bytes(len(ids))
        kept = CachedPrefix(state, role, len(ids), size, self._clock, overlay=overlay)
        if self._bounded:
            kept.key = RollingKey.of(ids)
            same = [k for k in self._entries if k.key == kept.key and k.overlay == overlay]
        else:
            whole, _, _ = self._trees[overlay].match(ids)
            values = [node.value for node in whole if node.value is not None]
            same = [k for k in values if k.length == len(ids)]
            same += [
                k
                for k in values
                if self.rewinds_freely and k.role <= CacheRole.TURN and k not in same
            ]
        for old in same:
            kept.role = max(kept.role, old.role) if old.length == kept.length else kept.role
            self._drop(old)
        if not self._bounded:
            kept.node = self._trees[overlay].insert(ids, kept)
        self._entries.append(kept)
        gone = 0
        while self._over_limits() and self.evict():
            gone += 1
        return gone

    def _over_limits(self) -> bool:
        size = sum(kept.nbytes for kept in self._entries)
        return len(self._entries) > self.count or (self.nbytes is not None and size > self.nbytes)

    def evict(self) -> bool:
        """Evict the least useful state: by role, then by last use; return whether there was one."""
        if not self._entries:
            return False
        self._drop(min(self._entries, key=lambda kept: (kept.role, kept.used)))
        self.evicted += 1
        return True

    def _drop(self, kept: CachedPrefix) -> None:
        self._unlink(kept)
        if not isinstance(kept.state, ExportedState):
            kept.state.release()

    def _unlink(self, kept: CachedPrefix) -> None:
        self._entries.remove(kept)
        if kept.node is not None:
            self._trees[kept.overlay].remove(kept.node)

    def clear(self) -> None:
        """Free everything."""
        while self._entries:
            self._drop(self._entries[-1])
