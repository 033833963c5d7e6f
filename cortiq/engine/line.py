"""The line: who waits, who has a place, and who has to give it up."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.arguments import instance_of
from cortiq.engine.places import Places
from cortiq.engine.roles import Role
from cortiq.engine.schedule import urgency
from cortiq.engine.sequence import Sequence
from cortiq.errors import RequestError
from cortiq.runtime.blame import blamed_on


@dataclass(frozen=True)
class EngineOptions:
    """Bounds of an engine; none changes a token.

    Attributes
    ----------
    batch_rows : rows of a batch at most.
    sequences : at work at once; others wait.
    waiting : requests that may wait; more are refused.
    """

    batch_rows: int = 256
    sequences: int = 64
    waiting: int = 1 << 16


DEFAULTS = EngineOptions()


class Line:
    """Sequences that wait and sequences that run.

    Attributes
    ----------
    blocked : whether somebody waits for a place that cannot be taken while a batch is under way.
    """

    def __init__(self, places: Places, options: EngineOptions) -> None:
        instance_of(options, EngineOptions, "options")
        self.places, self.options = places, options
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.blocked = False

    def join(self, sequence: Sequence) -> None:
        """Wait; RequestError where too many do."""
        if len(self.waiting) >= self.options.waiting:
            raise RequestError(
                f"{len(self.waiting)} requests are waiting", hint="try again when some have ended"
            )
        self.waiting.append(sequence)

    def leave(self, sequence: Sequence) -> None:
        """Be gone from wherever it is."""
        for queue in (self.waiting, self.running):
            if sequence in queue:
                queue.remove(sequence)

    def next(self, still: bool) -> Sequence | None:
        """Give a place to the most urgent of those that wait; who got it, None if nobody did.

        Nobody overtakes it, so a big request is not passed over for ever by small ones. One of
        lower priority gives up its place when there is none.

        Parameters
        ----------
        still : whether no batch is under way.

        Raises
        ------
        Refusal : it can have no place, and why.
        """
        while self.waiting and len(self.running) < self.options.sequences:
            sequence = min(self.waiting, key=order)
            try:
                found = self.places.find(sequence, self.running, still)
            except Exception as error:
                raise Refusal(sequence, error) from error
            if found:
                self.waiting.remove(sequence)
                self.running.append(sequence)
                return sequence
            if not self._preempt_for(sequence, still):
                return None
        return None

    def _preempt_for(self, sequence: Sequence, still: bool) -> bool:
        """Take the place of one of lower priority; whether it was taken.

        It must be less urgent too, or it would be the first to get its place back.
        """
        lower = [
            s
            for s in self.running
            if s.priority < sequence.priority and order(s) > order(sequence) and s.may_forget
        ]
        self.blocked = bool(lower) and not still
        if not lower or not still:
            return False
        self.preempt(max(lower, key=order))
        return True

    def preempt(self, sequence: Sequence, keep: int = 0) -> None:
        """Let a running sequence forget its rows from `keep` on; see `Engine.preempt`."""
        sequence.forgot_at = sequence.generated
        if keep > 0:
            with blamed_on(self.places.backend):
                sequence.fed = sequence.held_state().rewind(min(keep, sequence.fed))
            return
        self.running.remove(sequence)
        self.places.retire(sequence, Role.BRANCH)
        sequence.fed = 0
        sequence.stats.preempted += 1
        self.waiting.append(sequence)


class Refusal(Exception):
    """A sequence that can have no place, and why."""

    def __init__(self, sequence: Sequence, error: Exception) -> None:
        super().__init__(str(error))
        self.sequence, self.error = sequence, error


def order(sequence: Sequence) -> tuple[int, int]:
    """Order in which sequences are served."""
    return urgency(sequence.served, sequence.priority, sequence.number)
