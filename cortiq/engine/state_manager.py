"""Allocates sequence states: opens them, reuses cached prefixes, caches or frees them."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Several

from cortiq.backend import Executable, State
from cortiq.backend.error_attribution import attributed_to, backend_names
from cortiq.engine.cache_roles import CacheRole
from cortiq.engine.prefixes import PrefixCache, fork_if_room
from cortiq.engine.sequence import Sequence
from cortiq.errors import RequestError
from cortiq.ir.encoded import most_rows


class StateManager:
    """Owns the states of an engine's sequences; see `Engine` for the parameters.

    Attributes
    ----------
    backend : names of the backends, for errors.
    """

    def __init__(self, executable: Executable, prefixes: PrefixCache | None) -> None:
        self.executable, self.prefixes = executable, prefixes
        self.backend = backend_names(executable)

    def allocate(
        self,
        sequence: Sequence,
        running: Several[Sequence],
        in_flight: Callable[[Sequence], bool] = lambda sequence: False,
    ) -> bool:
        """Give a sequence a state with room for its limit; return whether memory allowed it.

        Parameters
        ----------
        running : other sequences, whose rows can be shared.
        in_flight : whether a batch in flight has rows of one, so that its state is not copied.

        Raises
        ------
        RequestError : memory is short although nothing else is running.
        """
        request = sequence.request
        with attributed_to(self.backend):
            at_rest = [other for other in running if not in_flight(other)]
            state, fed = self._open_or_reuse(sequence, at_rest)
            while not state.reserve(request.room - fed):
                if self.prefixes is None or not self.prefixes.evict():
                    state.release()
                    if running:
                        return False
                    raise self._no_room(request.room)
                sequence.stats.evicted += 1
        sequence.state, sequence.fed = state, fed
        if not sequence.generated:
            sequence.stats.reused_tokens = fed
        return True

    def _open_or_reuse(self, sequence: Sequence, running: Several[Sequence]) -> tuple[State, int]:
        """Return a state with the longest cached prefix of the ids, and the number of its rows."""
        limit = sequence.request.room
        if self.prefixes is None or sequence.request.embeddings is not None:
            return self.executable.open(limit), 0
        found = self.prefixes.take(sequence.keys, running, sequence.request.prefix_key)
        if found is not None:
            if sequence.request.images is not None:
                sequence.request.images.reuse(*found)
            return found
        return self.executable.open(most_rows(self.executable.program)), 0

    def _no_room(self, limit: int) -> RequestError:
        needed, free = self.executable.state_bytes(limit), self.executable.free_bytes()
        return RequestError(
            f"{limit} positions take {needed} bytes of state, {free} are free",
            hint="ask for fewer tokens or a shorter context",
        )

    def cache_at_points(self, sequence: Sequence) -> None:
        """Cache a copy of the state where the prompt has a cache point."""
        points = sequence.request.cache_points
        if not points:
            return
        point = next((p for p in points if p.position == sequence.fed), None)
        if self.prefixes is None or point is None or sequence.request.embeddings is not None:
            return
        assert sequence.state is not None
        ids, overlay = sequence.keys[: sequence.fed], sequence.request.prefix_key
        if not self.prefixes.has(ids, overlay):
            with attributed_to(self.backend):
                state = fork_if_room(sequence.state)
                if state is not None:
                    sequence.stats.evicted += self.prefixes.put(ids, state, point.role, overlay)

    def release_to_cache(self, sequence: Sequence, role: CacheRole) -> None:
        """Move the state of a sequence into the prefix cache, or free it."""
        state = sequence.state
        if state is None:
            return
        fed, ids = sequence.fed, sequence.keys
        sound = sequence.error is None and sequence.request.embeddings is None
        if self.prefixes is None or not sound or fed == 0 or state.length() != fed:
            self.free(sequence)
            return
        sequence.state = None
        with attributed_to(self.backend):
            overlay = sequence.request.prefix_key
            sequence.stats.evicted += self.prefixes.put(ids[:fed], state, role, overlay)

    def free(self, sequence: Sequence) -> None:
        """Release the state of a sequence."""
        state, sequence.state = sequence.state, None
        if state is not None:
            with attributed_to(self.backend):
                state.release()
