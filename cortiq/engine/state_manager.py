"""Where sequences live: states opened, found among kept ones, kept again, or freed."""

from __future__ import annotations

from collections.abc import Sequence as Several

from cortiq.backend import Executable, State
from cortiq.backend.error_attribution import attributed_to, backend_names
from cortiq.engine.cache_roles import CacheRole
from cortiq.engine.prefixes import PrefixCache, fork_if_room
from cortiq.engine.sequence import Sequence
from cortiq.errors import RequestError


class StateManager:
    """The states of an engine's sequences; see `Engine` for the parameters.

    Attributes
    ----------
    backend : names of what computes, for errors.
    """

    def __init__(self, executable: Executable, prefixes: PrefixCache | None) -> None:
        self.executable, self.prefixes = executable, prefixes
        self.backend = backend_names(executable)

    def find(self, sequence: Sequence, running: Several[Sequence], still: bool) -> bool:
        """Give a sequence a state with room for all it may become; whether there was any.

        Parameters
        ----------
        running : others, whose rows can be shared.
        still : whether no batch is under way, so that their states can be copied.

        Raises
        ------
        RequestError : there is no room although nothing else takes any.
        """
        request = sequence.request
        with attributed_to(self.backend):
            state, fed = self._begin(sequence, running if still else ())
            while not state.reserve(request.limit - fed):
                if self.prefixes is None or not self.prefixes.evict():
                    state.release()
                    if running:
                        return False
                    raise self._no_room(request.limit)
                sequence.stats.evicted += 1
        sequence.state, sequence.fed = state, fed
        if not sequence.generated:
            sequence.stats.reused_tokens = fed
        return True

    def _begin(self, sequence: Sequence, running: Several[Sequence]) -> tuple[State, int]:
        """A state that holds as many of the ids' rows as are there, and how many these are."""
        limit = sequence.request.limit
        if self.prefixes is None or sequence.request.embeddings is not None:
            return self.executable.open(limit), 0
        found = self.prefixes.take(sequence.ids, running)
        if found is not None:
            return found
        return self.executable.open(self.executable.program.context), 0

    def _no_room(self, limit: int) -> RequestError:
        needed, free = self.executable.state_bytes(limit), self.executable.free_bytes()
        return RequestError(
            f"{limit} positions take {needed} bytes of state, {free} are free",
            hint="ask for fewer tokens or a shorter context",
        )

    def keep_marked(self, sequence: Sequence) -> None:
        """Keep a copy of the state where the prompt has a mark."""
        marks = sequence.request.marks
        mark = next((m for m in marks if m.position == sequence.fed), None)
        if self.prefixes is None or mark is None or sequence.request.embeddings is not None:
            return
        assert sequence.state is not None
        ids = sequence.ids[: sequence.fed]
        if not self.prefixes.has(ids):
            with attributed_to(self.backend):
                state = fork_if_room(sequence.state)
                if state is not None:
                    sequence.stats.evicted += self.prefixes.put(ids, state, mark.role)

    def retire(self, sequence: Sequence, role: CacheRole) -> None:
        """Keep the state of a sequence that has none any more, or free it."""
        state = sequence.state
        if state is None:
            return
        fed, ids = sequence.fed, sequence.ids
        sound = sequence.error is None and sequence.request.embeddings is None
        if self.prefixes is None or not sound or fed == 0 or state.length() != fed:
            self.drop(sequence)
            return
        sequence.state = None
        with attributed_to(self.backend):
            sequence.stats.evicted += self.prefixes.put(ids[:fed], state, role)

    def drop(self, sequence: Sequence) -> None:
        """Free the state of a sequence."""
        state, sequence.state = sequence.state, None
        if state is not None:
            with attributed_to(self.backend):
                state.release()
