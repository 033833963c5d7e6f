"""Choice among several drafters: the one that brought most tokens a second lately.

A drafter that is not known has its turn first. Known ones are compared by what their last rounds
brought and took; the one in turn gives way only to one that is clearly better, and then waits.
After the wait it is unknown again: texts change. Whether any of them pays at all is for each one's
own policy to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import mean, median

from cortiq.engine.drafting import DepthPolicy, Round
from cortiq.engine.policy.adaptive import batch_bucket, is_clean_round

CLEARLY = 1.05
"""What a drafter must be better than the one in turn."""
RECENT = 8
"""Rounds that a drafter is judged by."""
TURN, FULL_TURN = 5, 16
"""Rounds that a turn lasts at least; and those after which a drafter was right to have it."""
TINY = 1e-12
WAIT, LONGEST_WAIT, DIP = 48, 768, 8
"""Rounds of others before the next turn: after a short one (doubled by the next short one), at
most, and after a full one.
"""


@dataclass(frozen=True)
class Arm:
    """One drafter's recent rounds.

    Attributes
    ----------
    rounds : of this turn, or of its last one.
    recent : seconds and tokens of its last rounds; empty: not known.
    wait, back : rounds of others left before its next turn, and how many it waits the next time.
    """

    rounds: int = 0
    recent: tuple[tuple[float, float], ...] = ()
    wait: int = 0
    back: int = WAIT

    @property
    def rate(self) -> float:
        """Tokens a second: their mean by the median of the times, so that one slow round decides
        nothing. More than any other's where it is not known.
        """
        if not self.recent:
            return inf
        seconds, tokens = zip(*self.recent, strict=True)
        return mean(tokens) / max(median(seconds), TINY)

    def after(self, seconds: float, tokens: float) -> Arm:
        """Return the arm after a round of its own; the first of a turn catches up, untimed."""
        recent = (*self.recent, (seconds, tokens))[-RECENT:] if self.rounds else self.recent
        return replace(self, rounds=self.rounds + 1, recent=recent)

    def waited(self) -> Arm:
        """Return the arm after a round of another; after its wait it is unknown again."""
        return Arm(back=self.back) if self.wait == 1 else replace(self, wait=max(0, self.wait - 1))

    def lost(self) -> Arm:
        """Return the arm after losing its turn."""
        if self.rounds >= FULL_TURN:
            return replace(self, wait=DIP, back=WAIT)
        return replace(self, wait=self.back, back=min(2 * self.back, LONGEST_WAIT))


@dataclass(frozen=True)
class DrafterTurns:
    """All drafters, and the index of the one in turn."""

    arms: tuple[Arm, ...]
    at: int = 0

    def after_round(self, seconds: float, tokens: float) -> DrafterTurns:
        """Return the turns after a round of the drafter in turn."""
        arms = [arm.waited() for arm in self.arms]
        arms[self.at] = self.arms[self.at].after(seconds, tokens)
        return replace(self, arms=tuple(arms))

    def silent(self) -> DrafterTurns:
        """Return the turns after the drafter in turn proposed nothing."""
        return self if self.arms[self.at].wait else self._lost(self.at)

    def among(self, awake: Sequence[bool]) -> DrafterTurns:
        """Return the turns with the drafter of the next round, among those that want to draft."""
        now = self.arms[self.at]
        others = [i for i, wants in enumerate(awake) if wants and i != self.at]
        ready = [i for i in others if not self.arms[i].wait]
        best = max(ready, key=lambda i: self.arms[i].rate, default=self.at)
        if awake[self.at] and not now.wait:
            if best == self.at or now.rounds < TURN:
                return self
            if not self.arms[best].recent:
                return self._give(best)
            if self.arms[best].rate > CLEARLY * now.rate:
                return self._lost(self.at)._give(best)
            return self._lost(*ready)
        if best == self.at and not awake[self.at] and others:
            best = others[0]  # one that waits is better than none
        return self if best == self.at else self._give(best)

    def _lost(self, *which: int) -> DrafterTurns:
        arms = [arm.lost() if i in which else arm for i, arm in enumerate(self.arms)]
        return replace(self, arms=tuple(arms))

    def _give(self, at: int) -> DrafterTurns:
        arms = list(self.arms)
        arms[at] = replace(arms[at], rounds=0, wait=0)
        return DrafterTurns(tuple(arms), at)


class TurnPolicy(DepthPolicy):
    """The policy of a sequence that several drafters draft for (`drafting.DepthPolicy`).

    Parameters
    ----------
    policies : one for each of them: how deep, and whether at all.
    first : index of the drafter of the first round; `publish` gets each later one.
    """

    def __init__(
        self,
        policies: Sequence[DepthPolicy],
        first: int = 0,
        publish: Callable[[int], None] = lambda at: None,
    ) -> None:
        self.policies, self.publish = policies, publish
        self.turns = DrafterTurns((Arm(),) * len(policies), first)
        self._bucket = 0

    @property
    def wakes(self) -> int:
        """Number of generated tokens before which no drafter drafts."""
        return min(policy.wakes for policy in self.policies)

    def choose(self, generated: int, room: int) -> int:
        """Return the depth of the next round of the drafter in turn, 0 where none wants to draft.

        Nobody drafts while one of them times plain tokens: the others learn from these as well.
        """
        depths = [policy.choose(generated, room) for policy in self.policies]
        if not any(depths) or any(policy.timing for policy in self.policies):
            return 0
        before, self.turns = self.turns.at, self.turns.among([depth > 0 for depth in depths])
        if self.turns.at != before:
            self.publish(self.turns.at)
        return depths[self.turns.at]

    def record(self, round_: Round) -> None:
        """Record a round for the drafter that made it, a plain token for all."""
        if round_.proposed:
            self._after_round(round_)
            return
        for policy in self.policies:
            policy.record(round_)
        if round_.asked and not round_.shortened:
            self.turns = self.turns.silent()

    def _after_round(self, round_: Round) -> None:
        """Compare round times within batches of similar size only."""
        self.policies[self.turns.at].record(round_)
        now, others = batch_bucket(round_.sequences), round_.sequences - 1
        if now != self._bucket:
            self._bucket = now
            self.turns = replace(self.turns, arms=(Arm(),) * len(self.turns.arms))
        if is_clean_round(round_) and not round_.shortened:
            tokens = (others + round_.emitted) / round_.sequences
            self.turns = self.turns.after_round(round_.wall_seconds, tokens)


class TurnPolicyFactory:
    """Makes the policy of every sequence: the last one's best drafter begins."""

    def __init__(self, makers: Sequence[Callable[[int], DepthPolicy]]) -> None:
        self.makers, self.first = makers, 0

    def __call__(self, prompt_tokens: int) -> TurnPolicy:
        """Make the policy of a sequence with a prompt of this many tokens."""
        policies = [maker(prompt_tokens) for maker in self.makers]
        return TurnPolicy(policies, self.first, self._keep)

    def _keep(self, at: int) -> None:
        self.first = at
