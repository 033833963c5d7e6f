"""Waiting and running queues; admission by urgency, and preemption."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.arguments import instance_of
from cortiq.backend.error_attribution import attributed_to
from cortiq.engine.cache_roles import CacheRole
from cortiq.engine.row_budget import urgency
from cortiq.engine.sequence import Sequence
from cortiq.engine.state_manager import StateManager
from cortiq.errors import RequestError


@dataclass(frozen=True)
class EngineOptions:
    """Bounds of an engine; none changes a token.

    Attributes
    ----------
    batch_rows : most rows of a batch.
    sequences : most sequences that run at once; others wait.
    waiting : most requests that wait; more are refused.
    """

    batch_rows: int = 256
    sequences: int = 64
    waiting: int = 1 << 16


DEFAULT_OPTIONS = EngineOptions()


class Scheduler:
    """The waiting and the running queue.

    Attributes
    ----------
    blocked : whether a preemption waits for the batch in flight to end.
    """

    def __init__(self, states: StateManager, options: EngineOptions) -> None:
        instance_of(options, EngineOptions, "options")
        self.states, self.options = states, options
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.blocked = False

    def add(self, sequence: Sequence) -> None:
        """Append a sequence to the waiting queue; RequestError when it is full."""
        if len(self.waiting) >= self.options.waiting:
            raise RequestError(
                f"{len(self.waiting)} requests are waiting", hint="try again when some have ended"
            )
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence from the queue it is in."""
        for queue in (self.waiting, self.running):
            if sequence in queue:
                queue.remove(sequence)

    def admit_next(self, quiescent: bool) -> Sequence | None:
        """Admit the most urgent waiting sequence; return it, or None if nothing was admitted.

        No other sequence overtakes it, so small requests cannot starve a big one. When memory is
        short, a running sequence of lower priority is preempted.

        Parameters
        ----------
        quiescent : whether no batch is in flight.

        Raises
        ------
        AdmissionError : the sequence can never be admitted; it holds the reason.
        """
        while self.waiting and len(self.running) < self.options.sequences:
            sequence = min(self.waiting, key=service_order)
            try:
                allocated = self.states.allocate(sequence, self.running, quiescent)
            except Exception as error:
                raise AdmissionError(sequence, error) from error
            if allocated:
                self.waiting.remove(sequence)
                self.running.append(sequence)
                return sequence
            if not self._preempt_for(sequence, quiescent):
                return None
        return None

    def _preempt_for(self, sequence: Sequence, quiescent: bool) -> bool:
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
        self.blocked = bool(lower) and not quiescent
        if not lower or not quiescent:
            return False
        self.preempt(max(lower, key=service_order))
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
