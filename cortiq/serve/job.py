"""A job: the sequences of one request, and what has come of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence as Several
from dataclasses import dataclass, field

from cortiq.engine.output import TokenLogprobs
from cortiq.engine.request import Request
from cortiq.engine.sequence import Sequence


@dataclass(frozen=True)
class Update:
    """What one step brought of one choice.

    Attributes
    ----------
    choice : its index. text, token_ids, logprobs : new since the last update.
    finish : why it ended; empty while it goes on. error : what ended it badly.
    progress : prompt rows done and in all, while the prompt is read.
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


@dataclass(eq=False)
class Job:
    """The sequences of one request; made on the event loop, worked on by a `Worker`.

    Attributes
    ----------
    requests : one for each choice; those of one prompt are neighbours.
    updates : what came of them, for the event loop.
    sequences : by number of the choice, as far as they are submitted; the worker's.
    told : tokens of each choice that were told of, and whether its end was.
    cancelled : whether nobody waits for it any more. cancelled_at : steps begun by then.
    """

    requests: Several[Request]
    updates: asyncio.Queue[Update] = field(default_factory=asyncio.Queue)
    sequences: dict[int, Sequence] = field(default_factory=dict)
    told: dict[int, tuple[int, bool]] = field(default_factory=dict)
    cancelled: bool = False
    cancelled_at: int | None = None

    def __post_init__(self) -> None:
        self._pending: dict[int, int] = {}  # choices to submit, and the first of the same prompt
        first = 0
        for choice, request in enumerate(self.requests):
            first = first if request.prompt is self.requests[first].prompt else choice
            self._pending[choice] = first

    def news(self, choice: int) -> Update | None:
        """What came of a choice since it was last asked about; None for nothing."""
        sequence, (told, over) = self.sequences[choice], self.told.get(choice, (0, False))
        output = sequence.output
        count = len(output.token_ids)
        if over or (count == told and not sequence.done):
            return None
        self.told[choice] = count, sequence.done
        return Update(
            choice,
            "".join(sequence.take()),
            tuple(output.token_ids[told:]),
            tuple(output.logprobs[told:]),
            output.finish_reason if sequence.done and sequence.error is None else "",
            sequence.error,
        )

    @property
    def waiting(self) -> list[int]:
        """Choices that are to be submitted now: the first of a prompt, which reads it, and the
        others once that is done, who go on from its rows.
        """
        return [choice for choice, first in self._pending.items() if self._may_start(choice, first)]

    def _may_start(self, choice: int, first: int) -> bool:
        leader = self.sequences.get(first)
        return first == choice or (leader is not None and (leader.generated > 0 or leader.done))

    def began(self, choice: int, sequence: Sequence) -> None:
        """Take note of a choice that was submitted."""
        del self._pending[choice]
        self.sequences[choice] = sequence

    @property
    def late_steps(self) -> int:
        """Steps it had rows in that began after it was cancelled."""
        if self.cancelled_at is None:
            return 0
        last = max((sequence.served for sequence in self.sequences.values()), default=0)
        return max(0, last + 1 - self.cancelled_at)

    @property
    def done(self) -> bool:
        """Whether nothing more will come of it."""
        begun = self.cancelled or not self._pending
        return begun and all(sequence.done for sequence in self.sequences.values())
