"""Waiting and running queues; admission by urgency, and preemption."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cortiq.backend.error_attribution import attributed_to
from cortiq.engine.cache_roles import CacheRole
from cortiq.engine.prompt_encoded import store_all
from cortiq.engine.row_budget import urgency
from cortiq.engine.sequence import Sequence
from cortiq.engine.state_manager import StateManager
from cortiq.errors import RequestError

SEQUENCES = 64
"""Sequences that run at once, at least, where nobody says how many."""


@dataclass(frozen=True)
class EngineOptions:
    """Bounds of an engine; none changes a token.

    Attributes
    ----------
    batch_rows : most rows of a batch; None for what suits the executable's device.
    sequences : most sequences that run at once, others wait; None for an eighth of `batch_rows`,
        and 64 at least.
    waiting : most requests that wait; more are refused.
    mixed_seconds : duration aimed at for a batch in which prompts are computed beside sequences
        that decode, which wait for it (`engine.pace`).
    """

    batch_rows: int | None = None
    sequences: int | None = None
    waiting: int = 1 << 16
    mixed_seconds: float = 0.05

    def limits(self, rows: int) -> EngineLimits:
        """Return the bounds on a device that so many rows a batch suit."""
        most = rows if self.batch_rows is None else self.batch_rows
        sequences = max(SEQUENCES, most // 8) if self.sequences is None else self.sequences
        return EngineLimits(most, sequences, self.waiting, self.mixed_seconds)


DEFAULT_OPTIONS = EngineOptions()


@dataclass(frozen=True)
class EngineLimits:
    """Bounds of an engine on its device; see `EngineOptions`."""

    batch_rows: int
    sequences: int
    waiting: int
    mixed_seconds: float


class Scheduler:
    """The waiting and the running queue.

    Attributes
    ----------
    leaving : a running sequence that is to be preempted once no batch in flight has rows of it:
        it gets no more of them.
    """

    def __init__(self, states: StateManager, limits: EngineLimits) -> None:
        self.states, self.limits = states, limits
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.leaving: Sequence | None = None

    def add(self, sequence: Sequence) -> None:
        """Append a sequence to the waiting queue; RequestError when it is full."""
        if len(self.waiting) >= self.limits.waiting:
            raise RequestError(
                f"{len(self.waiting)} requests are waiting", hint="try again when some have ended"
            )
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence from the queue it is in."""
        for queue in (self.waiting, self.running):
            if sequence in queue:
                queue.remove(sequence)

    def going(
        self, in_flight: bool, failed: Callable[[Sequence, Exception], None]
    ) -> list[Sequence]:
        """Return the running sequences that can have rows in the next batch.

        What they attend to besides their own rows is stored first, unless a batch is in flight.

        Parameters
        ----------
        failed : called with a sequence for which that cannot be done, and the reason.
        """
        if not in_flight:
            store_all(self.states.executable, self.running, failed)
        return [s for s in self.running if not (s.done or s is self.leaving or s.lacks_encoded)]

    def admit_next(self, in_flight: Callable[[Sequence], bool]) -> Sequence | None:
        """Admit the most urgent waiting sequence; return it, or None if nothing was admitted.

        No other sequence overtakes it, so small requests cannot starve a big one. When memory is
        short, a running sequence of lower priority is preempted.

        Parameters
        ----------
        in_flight : whether a batch in flight has rows of a sequence.

        Raises
        ------
        AdmissionError : the sequence can never be admitted; it holds the reason.
        """
        while self.waiting and len(self.running) < self.limits.sequences:
            sequence = min(self.waiting, key=service_order)
            try:
                allocated = self.states.allocate(sequence, self.running, in_flight)
            except Exception as error:
                raise AdmissionError(sequence, error) from error
            if allocated:
                self.waiting.remove(sequence)
                self.running.append(sequence)
                return sequence
            if not self._preempt_for(sequence, in_flight):
                return None
        return None

    def _preempt_for(self, sequence: Sequence, in_flight: Callable[[Sequence], bool]) -> bool:
        """Preempt a running sequence of lower priority; return whether one was.

        The victim must be less urgent too, or it would be the next to be admitted again.
        """
        lower = [
            s
            for s in self.running
            if s.priority < sequence.priority
            and service_order(s) > service_order(sequence)
            and s.can_be_preempted
        ]
        if not lower:
            return False
        at_rest = [s for s in lower if not in_flight(s)]
        if not at_rest:
            self.leaving = max(lower, key=service_order)
            return False
        self.preempt(max(at_rest, key=service_order))
        return True

    def preempt(self, sequence: Sequence, keep: int = 0) -> None:
        """Drop a running sequence's rows from `keep` on; see `Engine.preempt`."""
        sequence.preempted_at = sequence.generated
        if keep > 0:
            with attributed_to(self.states.backend):
                sequence.fed = sequence.live_state().rewind(min(keep, sequence.fed))
            return
        self.running.remove(sequence)
        self.states.release_to_cache(sequence, CacheRole.BRANCH)
        sequence.fed = 0
        sequence.stats.preempted += 1
        self.waiting.append(sequence)


class AdmissionError(Exception):
    """A sequence that cannot be admitted, and the reason."""

    def __init__(self, sequence: Sequence, error: Exception) -> None:
        super().__init__(str(error))
        self.sequence, self.error = sequence, error


def service_order(sequence: Sequence) -> tuple[int, int]:
    """Return the sort key of a sequence: the least is served first."""
    return urgency(sequence.served, sequence.priority, sequence.number)
