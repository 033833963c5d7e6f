"""Trials of speculation: rounds are timed against plain tokens, and tried again later.

`Trying` runs rounds; `Timing` runs plain tokens to learn what one takes; `Decided` keeps one of the
two, and tries again later where it was the plain one. Counts are of tokens generated; clocks are
numbers that the caller read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FIRST_WEIGHT, WEIGHT = 1.0, 0.3
MARGIN = 1.03
"""A round must be worth this much more than the plain tokens of its time to be decided for; it is
kept as long as it is worth no less.
"""
ZERO_ROUNDS = 3
"""Rounds in a row without an accepted draft that end a try; good drafters show two."""
ZERO_AGAIN = 2
"""The same after a try that failed: less is believed then, and the next one may take longer."""
TRIED_ROUNDS = 5
LOSING_ROUNDS = 4
PLAIN_TOKENS = 8
FIRST_REST, LONGEST_REST = 32, 1024
"""Plain tokens before the next try; each failure doubles them."""
AFFORDED = 0.01
"""Share of the tokens since drafting last paid that tries may cost."""
LONGEST_FACTOR = 8
"""How many times the rest that counts alone give one may be that the cost of tries asks for."""
NEVER = 1 << 62


@dataclass(frozen=True)
class PayoffMonitor:
    """Running averages of the time of rounds and of plain tokens.

    Attributes
    ----------
    round_seconds, tokens : of a round; two averages, since the mean of their ratios would
        misjudge rounds of different length.
    plain_seconds : of a plain token, 0 before one was timed.
    rounds : since the averages began; the first pays for set-up and is not timed.
    losing : rounds in a row after which speculation did not pay.
    zeros : rounds in a row without an accepted draft.
    counted, spent, brought : rounds of a try, their seconds and tokens, but for those whose
        seconds are not what another one would take.
    enough : tokens a round that pay wherever plain ones were never timed; None: time them.
    """

    round_seconds: float = 0.0
    tokens: float = 0.0
    plain_seconds: float = 0.0
    rounds: int = 0
    losing: int = 0
    zeros: int = 0
    counted: int = 0
    spent: float = 0.0
    brought: float = 0.0
    enough: float | None = None

    def restarted(self) -> PayoffMonitor:
        """Return the monitor at the start of another try; averages stay until it has its own."""
        return replace(self, rounds=0, zeros=0, counted=0, spent=0.0, brought=0.0)

    def after(self, seconds: float, produced: float, counts: bool = False) -> PayoffMonitor:
        """Return the monitor after a round that brought `produced` tokens in `seconds`.

        Parameters
        ----------
        counts : whether this is what a try costs, set-up and other sequences' drafts left out.
        """
        zeros = self.zeros + 1 if produced <= 1 else 0
        moved = replace(self, rounds=self.rounds + 1, zeros=zeros)
        if counts:
            moved = replace(
                moved,
                counted=self.counted + 1,
                spent=self.spent + seconds,
                brought=self.brought + produced,
            )
        if moved.rounds == 1:
            return moved
        weight = FIRST_WEIGHT if moved.rounds == 2 else WEIGHT
        return replace(
            moved,
            round_seconds=self.round_seconds + weight * (seconds - self.round_seconds),
            tokens=self.tokens + weight * (produced - self.tokens),
        )

    def pays(self, margin: float = MARGIN) -> bool:
        """Return whether a round's tokens would take longer without it."""
        if self.plain_seconds > 0:
            return self.tokens * self.plain_seconds > margin * self.round_seconds
        return self.enough is not None and self.tokens >= self.enough

    @property
    def loss(self) -> float:
        """Plain tokens that the time of a try would have brought beyond its own."""
        if self.plain_seconds <= 0 or not self.counted:
            return 0.0
        counted = self.spent / self.plain_seconds - self.brought
        return max(0.0, counted * self.rounds / self.counted)


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


TrialState = Trying | Timing | Decided


@dataclass(frozen=True)
class DepthTrial:
    """State of the trial, its monitor, and the cost of speculation that did not pay.

    Every such finding doubles the rest that follows: a text that nothing is right about is tried
    ever more rarely. Where tries are dear, rests are longer still.

    Attributes
    ----------
    losses, lost : such findings since speculation last paid, and the plain tokens they cost.
    since : tokens generated when it last paid.
    afforded : what share of the tokens since may be lost; 0: nothing says that much will be, and
        rests go by counts alone.
    """

    state: TrialState = Trying()
    monitor: PayoffMonitor = PayoffMonitor()
    losses: int = 0
    lost: float = 0.0
    since: int = 0
    afforded: float = 0.0

    @property
    def speculates(self) -> bool:
        """Whether the next step is a speculative round."""
        state = self.state
        return isinstance(state, Trying) or (isinstance(state, Decided) and state.speculate)

    @property
    def wakes(self) -> int:
        """Tokens generated before which no round is speculative."""
        state = self.state
        if isinstance(state, Timing):
            return state.since + PLAIN_TOKENS
        return state.until if isinstance(state, Decided) and not state.speculate else 0

    @property
    def doubted(self) -> bool:
        """Whether the last try failed and no draft of this one was accepted: drafts stay short."""
        nothing_held = self.monitor.zeros == self.monitor.rounds
        failed = self.losses > 0 and self.afforded > 0
        return isinstance(self.state, Trying) and failed and nothing_held

    def at_step(self, generated: int) -> DepthTrial:
        """Return the trial at the start of a step: a rest that is over becomes another try."""
        state = self.state
        if isinstance(state, Decided) and not state.speculate and generated >= state.until:
            return replace(self, state=Trying(), monitor=self.monitor.restarted())
        return self

    def after_round(
        self, generated: int, seconds: float, produced: float, own: bool = True
    ) -> DepthTrial:
        """Return the trial after a speculative round; `generated` counts its tokens.

        Parameters
        ----------
        own : whether `seconds` are this sequence's and not, in part, for drafts of others.
        """
        first = self.monitor.rounds == 0 and not self.losses
        monitor = self.monitor.after(seconds, produced, counts=own and not first)
        trial = replace(self, monitor=monitor)
        if isinstance(self.state, Trying):
            return trial._after_trial_round(generated, self.state.rounds + 1)
        return trial._after_steady_round(generated)

    def _after_trial_round(self, generated: int, rounds: int) -> DepthTrial:
        monitor = self.monitor
        if monitor.zeros >= (ZERO_AGAIN if self.losses and self.afforded else ZERO_ROUNDS):
            return self._end_try(generated)
        if rounds < TRIED_ROUNDS:
            return replace(self, state=Trying(rounds))
        if monitor.plain_seconds > 0 or monitor.pays():
            return self._by_pay(generated)
        return replace(self, state=Timing(generated))

    def _end_try(self, generated: int) -> DepthTrial:
        """End a try without gain: time plain tokens, or rest where their time is known."""
        if self.monitor.plain_seconds > 0:
            return self._rest(generated)
        return replace(self, state=Timing(generated))

    def _after_steady_round(self, generated: int) -> DepthTrial:
        """Return the trial after a round in steady state: four losing ones in a row end it."""
        monitor = self.monitor
        if monitor.pays(margin=1.0):
            return self._with_gain(generated)
        trial = replace(self, monitor=replace(monitor, losing=monitor.losing + 1))
        return trial if trial.monitor.losing < LOSING_ROUNDS else trial._end_try(generated)

    def after_plain(self, generated: int, seconds: float) -> DepthTrial:
        """Return the trial after plain tokens; `seconds` is the time of one, `generated` counts
        them.
        """
        if not isinstance(self.state, Timing):
            return self
        if generated - self.state.since < PLAIN_TOKENS:
            return self
        trial = replace(self, monitor=replace(self.monitor, plain_seconds=seconds))
        return trial._by_pay(generated)

    def with_plain_seconds(self, plain_seconds: float) -> DepthTrial:
        """Return the trial with the time of a plain token, measured elsewhere."""
        return replace(self, monitor=replace(self.monitor, plain_seconds=plain_seconds))

    def _by_pay(self, generated: int) -> DepthTrial:
        if not self.monitor.pays():
            return self._rest(generated)
        return replace(self._with_gain(generated), state=Decided(True))

    def _with_gain(self, generated: int) -> DepthTrial:
        """Return the trial with its losses cleared."""
        monitor = replace(self.monitor, losing=0)
        return replace(self, monitor=monitor, losses=0, lost=0.0, since=generated)

    def _rest(self, generated: int) -> DepthTrial:
        """Return the trial at rest: plain tokens until the next try."""
        loss = self.monitor.loss
        least, lost = rest_after(self.losses), self.lost + loss
        rest = least
        if self.afforded:
            # The next try has more rows to catch up with: it is taken to cost twice as much.
            enough = self.since + int((lost + 2 * loss) / self.afforded) - generated
            rest = max(least, min(enough, LONGEST_FACTOR * least))
        return replace(
            self,
            state=Decided(False, generated + rest),
            monitor=replace(self.monitor, losing=0),
            losses=self.losses + 1,
            lost=lost,
        )


def rest_after(losses: int) -> int:
    """Return the plain tokens before the next try, after so many failures before the last one."""
    return min(FIRST_REST << losses, LONGEST_REST)
