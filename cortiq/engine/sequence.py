"""A running sequence: it owns its counters, and everything else is derived from them.

`ids` is the prompt and every token committed; `fed` of them have rows in the state. Whatever is
not fed will be fed, and the row of the last id draws the next token: a prompt, a decode step, a
replay after a rewind and a resumed preempted sequence are one case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cortiq.arguments import function_of, instance_of
from cortiq.backend import State
from cortiq.engine.drafting import DepthPolicy, Drafting, Round, Speculation
from cortiq.engine.output import Output
from cortiq.engine.request import Request
from cortiq.engine.session import Progress
from cortiq.engine.statistics import Statistics
from cortiq.errors import RequestError

REPLAY_ROWS = 32
"""A decoding sequence that has to feed at most so many ids again does it in one step."""


@dataclass(eq=False)
class Sequence:
    """One submitted request; made by `Engine.submit`, and the caller's handle on it.

    Attributes
    ----------
    output : text, ids, confidence and trace so far.
    stats : its counts and times.
    error : the exception that ended it, if any.
    done : whether it has ended.
    rounds : every step as recorded, if `Engine.submit` was asked to.
    priority : each point ages the request by `PATIENCE` steps; may be negative.
    served : number of the step it last had rows in, or was submitted in.
    preempted_at : number of tokens drawn when it was last preempted; -1 before.
    """

    request: Request
    output: Output
    stats: Statistics
    number: int
    priority: int = 0
    served: int = 0
    speculation: Speculation | None = None
    progress: Progress | None = None
    rounds: list[Round] | None = None
    ids: list[int] = field(default_factory=list)
    fed: int = 0
    state: State | None = None
    drafting: Drafting | None = None
    policy: DepthPolicy | None = None
    error: BaseException | None = None
    done: bool = False
    cancelled: Callable[[], bool] = lambda: False
    preempted_at: int = -1

    def __post_init__(self) -> None:
        self._check()
        self.ids = list(self.request.prompt)
        self._cancelled = False
        self._taken = 0

    def _check(self) -> None:
        """Check the arguments of `Engine.submit`; RequestError."""
        instance_of(self.priority, int, "priority")
        instance_of(self.stats, Statistics, "stats")
        if self.speculation is not None:
            instance_of(self.speculation, Speculation, "speculation")
        function_of(self.progress, "progress")
        if function_of(self.cancelled, "cancelled") is None:
            raise RequestError("a function is wanted, not None", where="cancelled")

    @property
    def keys(self) -> list[int]:
        """Ids by which its rows are found again; those of images are their digests."""
        images = self.request.images
        return images.keys(self.ids) if images is not None and images.spans else self.ids

    @property
    def lacks_encoded(self) -> bool:
        """Whether its state has yet to store what its rows attend to besides one another."""
        request = self.request  # asked at every step
        encoded = request.encoded if request.images is None else request.attended
        return encoded is not None and self.state is not None and not encoded.is_stored(self.state)

    def cancel(self) -> None:
        """End the sequence before the next step, as `cancelled`; any thread may call this."""
        self._cancelled = True

    @property
    def is_cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._cancelled or self.cancelled()

    def take(self) -> list[str]:
        """Return the pieces of text that became certain since the last call."""
        pieces = self.output.pieces[self._taken :]
        self._taken += len(pieces)
        return pieces

    @property
    def generated(self) -> int:
        """Tokens drawn so far."""
        return len(self.output.token_ids)

    @property
    def room(self) -> int:
        """Tokens that may still be drawn."""
        return self.output.room

    @property
    def pending(self) -> int:
        """Number of ids whose rows have to be fed."""
        return len(self.ids) - self.fed

    @property
    def can_be_preempted(self) -> bool:
        """Whether its rows may be dropped: once for each token that it draws.

        So every admission yields a token, however often it is preempted.
        """
        return self.generated > self.preempted_at

    @property
    def waits_for_drafts(self) -> bool:
        """Whether its next step can be scheduled only once its ids are known, which its drafter
        proposes others after. Not while that rests: a step that runs ahead drafts nothing.
        """
        if self.drafting is None:
            return False
        wakes = 0 if self.policy is None else self.policy.wakes
        return self.generated + 1 >= wakes

    @property
    def ready(self) -> bool:
        """Whether the next step can draw its next token: it decodes."""
        return self.pending == 1 or (self.generated > 0 and self.pending <= REPLAY_ROWS)

    def live_state(self) -> State:
        """Return the state of a running sequence."""
        assert self.state is not None
        return self.state

    def next_cache_point(self, start: int) -> int | None:
        """Return the first cache point after `start`, where a chunk has to end, if any."""
        after = [p.position for p in self.request.cache_points if p.position > start]
        return min(after, default=None)
