"""Whether speculative rounds pay at all: tried, timed against plain tokens, decided, re-checked.

`Trying` runs rounds; `Timing` runs plain tokens to learn what one takes; `Decided` keeps one of the
two, and tries again later where it was the plain one. Counts are of tokens generated; clocks are
numbers that the caller read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FIRST_WEIGHT, WEIGHT = 1.0, 0.3
MARGIN = 1.03
"""A round must be worth this much more than the plain tokens of its time."""
ZERO_ROUNDS = 3
"""Rounds in a row without an accepted draft that end a try; good drafters show two."""
TRIED_ROUNDS = 5
LOSING_ROUNDS = 4
PLAIN_TOKENS = 8
FEW_ROUNDS, RECHECK_SOON, RECHECK = 6, 32, 128
LONGEST_REST = 1024
NEVER = 1 << 62


@dataclass(frozen=True)
class Monitor:
    """What rounds and plain tokens took so far, in running averages.

    Attributes
    ----------
    round_seconds, tokens : of a round; two averages, since the mean of their ratios would
        misjudge rounds of different length.
    plain_seconds : of a plain token, 0 before one was timed.
    rounds : since the averages began; the first pays for set-up and is not timed.
    losing : rounds in a row after which speculation did not pay.
    zeros : rounds in a row without an accepted draft.
    enough : tokens a round that pay wherever plain ones were never timed; None: time them.
    """

    round_seconds: float = 0.0
    tokens: float = 0.0
    plain_seconds: float = 0.0
    rounds: int = 0
    losing: int = 0
    zeros: int = 0
    enough: float | None = None

    def after(self, seconds: float, produced: float) -> Monitor:
        """After a round that brought `produced` tokens in `seconds`."""
        zeros = self.zeros + 1 if produced <= 1 else 0
        moved = replace(self, rounds=self.rounds + 1, zeros=zeros)
        if moved.rounds == 1:
            return moved
        weight = FIRST_WEIGHT if moved.rounds == 2 else WEIGHT
        return replace(
            moved,
            round_seconds=self.round_seconds + weight * (seconds - self.round_seconds),
            tokens=self.tokens + weight * (produced - self.tokens),
        )

    def pays(self) -> bool:
        """Whether a round's tokens would take longer without it."""
        if self.plain_seconds > 0:
            return self.tokens * self.plain_seconds > MARGIN * self.round_seconds
        return self.enough is not None and self.tokens >= self.enough


@dataclass(frozen=True)
class Trying:
    """Rounds run and are timed; `rounds` of them so far."""

    rounds: int = 0


@dataclass(frozen=True)
class Timing:
    """Plain tokens run and are timed, since this many were generated."""

    since: int


@dataclass(frozen=True)
class Decided:
    """One of the two, until this many tokens were generated."""

    speculate: bool
    until: int = NEVER


State = Trying | Timing | Decided


@dataclass(frozen=True)
class Trial:
    """The state, its monitor, and how often in a row speculation was found not to pay.

    Every such finding doubles the rest that follows: a text that nothing is right about is tried
    ever more rarely.
    """

    state: State = Trying()
    monitor: Monitor = Monitor()
    losses: int = 0

    @property
    def speculates(self) -> bool:
        """Whether the next step is a speculative round."""
        state = self.state
        return isinstance(state, Trying) or (isinstance(state, Decided) and state.speculate)

    def begun(self, generated: int) -> Trial:
        """At the top of the loop: a rest that is over becomes another try."""
        state = self.state
        if isinstance(state, Decided) and not state.speculate and generated >= state.until:
            return replace(self, state=Trying(), monitor=replace(self.monitor, rounds=0, zeros=0))
        return self

    def after_round(self, generated: int, seconds: float, produced: float) -> Trial:
        """After a speculative round; `generated` counts its tokens."""
        trial = replace(self, monitor=self.monitor.after(seconds, produced))
        if isinstance(self.state, Trying):
            return trial._tried(generated, self.state.rounds + 1)
        return trial._kept(generated)

    def _tried(self, generated: int, rounds: int) -> Trial:
        monitor = self.monitor
        if monitor.zeros >= ZERO_ROUNDS:
            return self._without(generated)
        if rounds < TRIED_ROUNDS:
            return replace(self, state=Trying(rounds))
        if monitor.plain_seconds > 0 or monitor.pays():
            return self._by_pay(generated)
        return replace(self, state=Timing(generated))

    def _without(self, generated: int) -> Trial:
        """A try that nothing came of: plain tokens are timed, or are known."""
        if self.monitor.plain_seconds > 0:
            return self._rest(generated)
        return replace(self, state=Timing(generated))

    def _kept(self, generated: int) -> Trial:
        """A round while speculation is decided on: four losing ones in a row end it."""
        monitor = self.monitor
        if monitor.pays():
            return replace(self, monitor=replace(monitor, losing=0), losses=0)
        trial = replace(self, monitor=replace(monitor, losing=monitor.losing + 1))
        return trial if trial.monitor.losing < LOSING_ROUNDS else trial._without(generated)

    def after_plain(self, generated: int, seconds: float) -> Trial:
        """After plain tokens; `seconds` is what one takes by now, `generated` counts them."""
        if not isinstance(self.state, Timing):
            return self
        if generated - self.state.since < PLAIN_TOKENS:
            return self
        trial = replace(self, monitor=replace(self.monitor, plain_seconds=seconds))
        return trial._by_pay(generated)

    def knowing(self, plain_seconds: float) -> Trial:
        """The same with what a plain token takes, from other rounds or an earlier sequence."""
        return replace(self, monitor=replace(self.monitor, plain_seconds=plain_seconds))

    def _by_pay(self, generated: int) -> Trial:
        if not self.monitor.pays():
            return self._rest(generated)
        monitor = replace(self.monitor, losing=0)
        return replace(self, state=Decided(True), monitor=monitor, losses=0)

    def _rest(self, generated: int) -> Trial:
        """Plain tokens until the next try."""
        monitor = replace(self.monitor, losing=0)
        until = generated + rest_after(self.monitor.rounds, self.losses)
        return replace(self, state=Decided(False, until), monitor=monitor, losses=self.losses + 1)


def rest_after(rounds: int, losses: int = 0) -> int:
    """Plain tokens before the next try: few when few rounds told, doubled by every loss before."""
    rest = RECHECK_SOON if rounds < FEW_ROUNDS else RECHECK
    return min(rest << losses, LONGEST_REST)
