"""The sequences of one completion request and the updates they produce."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from typing import Any

from cortiq.engine.output import TokenLogprobs
from cortiq.engine.request import Request
from cortiq.engine.sequence import Sequence


@dataclass(frozen=True)
class ChoiceUpdate:
    """New output of one choice since the last update.

    Attributes
    ----------
    choice : its index. text, token_ids, logprobs : new since the last update.
    finish : the finish reason; empty while the choice runs. error : the exception that ended it.
    progress : prompt rows done and in total, during prefill.
    """

    choice: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish: str = ""
    error: BaseException | None = None
    progress: tuple[int, int] | None = None

    @property
    def last(self) -> bool:
        """Whether the choice has ended."""
        return bool(self.finish) or self.error is not None

    def joined(self, later: ChoiceUpdate) -> ChoiceUpdate | None:
        """Return this update and the next one of its choice as one, or None where they stay two."""
        apart = self.choice != later.choice or self.progress or later.progress or later.error
        if apart or self.last:
            return None
        return ChoiceUpdate(
            self.choice,
            self.text + later.text,
            self.token_ids + later.token_ids,
            self.logprobs + later.logprobs,
            later.finish,
        )


@dataclass(eq=False)
class GenerationJob:
    """The sequences of one request; created on the event loop, advanced by a `Worker`.

    Attributes
    ----------
    requests : one for each choice; those of one prompt are neighbours.
    updates : output for the event loop.
    sequences : submitted sequences by choice; owned by the worker.
    delivered : by choice, tokens delivered so far, and whether its end was.
    cancelled : whether the client is gone. cancelled_at : engine steps begun by then.
    priority : of its sequences among the waiting ones.
    issue : called with a choice that has ended; returns its receipt if the response has one.
    """

    requests: Several[Request]
    updates: asyncio.Queue[ChoiceUpdate] = field(default_factory=asyncio.Queue)
    sequences: dict[int, Sequence] = field(default_factory=dict)
    delivered: dict[int, tuple[int, bool]] = field(default_factory=dict)
    cancelled: bool = False
    cancelled_at: int | None = None
    priority: int = 0
    issue: Callable[[int], Any] = lambda choice: None

    def __post_init__(self) -> None:
        self._pending: dict[int, int] = {}  # choices to submit, and the first of the same prompt
        first = 0
        for choice, request in enumerate(self.requests):
            first = first if request.prompt is self.requests[first].prompt else choice
            self._pending[choice] = first

    def take_update(self, choice: int) -> ChoiceUpdate | None:
        """Return a choice's output since the last call, or None if there is nothing new."""
        sequence, (delivered, over) = self.sequences[choice], self.delivered.get(choice, (0, False))
        output = sequence.output
        count = len(output.token_ids)
        if over or (count == delivered and not sequence.done):
            return None
        self.delivered[choice] = count, sequence.done
        return ChoiceUpdate(
            choice,
            "".join(sequence.take()),
            tuple(output.token_ids[delivered:]),
            tuple(output.logprobs[delivered:]),
            output.finish_reason if sequence.done and sequence.error is None else "",
            sequence.error,
        )

    def waiting_updates(self, first: ChoiceUpdate) -> list[ChoiceUpdate]:
        """Take what has come since an update was put, neighbours of one choice joined.

        Where the event loop is behind the engine, a client gets the tokens of several steps as one
        piece, which costs the loop as much as the piece of one token.
        """
        made = [first]
        while not self.updates.empty():
            later = self.updates.get_nowait()
            if (both := made[-1].joined(later)) is None:
                made.append(later)
            else:
                made[-1] = both
        return made

    def end_unsubmitted(self) -> None:
        """End every choice before it begins, as if it had reached its length at once."""
        self._pending.clear()
        self.updates.put_nowait(ChoiceUpdate(0))
        for choice in range(len(self.requests)):
            self.updates.put_nowait(ChoiceUpdate(choice, finish="length"))

    @property
    def ready_choices(self) -> list[int]:
        """Choices to submit now: the first of a prompt at once, the others when its prefill is
        done, so that they reuse it.
        """
        return [choice for choice, first in self._pending.items() if self._may_start(choice, first)]

    def _may_start(self, choice: int, first: int) -> bool:
        leader = self.sequences.get(first)
        return first == choice or (leader is not None and (leader.generated > 0 or leader.done))

    def note_submitted(self, choice: int, sequence: Sequence) -> None:
        """Record the sequence of a submitted choice."""
        del self._pending[choice]
        self.sequences[choice] = sequence

    @property
    def late_steps(self) -> int:
        """Steps that computed rows of this job although they began after its cancellation."""
        if self.cancelled_at is None:
            return 0
        last = max((sequence.served for sequence in self.sequences.values()), default=0)
        return max(0, last + 1 - self.cancelled_at)

    @property
    def done(self) -> bool:
        """Whether all its sequences have ended."""
        begun = self.cancelled or not self._pending
        return begun and all(sequence.done for sequence in self.sequences.values())
