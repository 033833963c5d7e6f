"""Adaptive depth policy: depth by acceptance and round times, rests where nothing pays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from cortiq.engine.drafting import Round
from cortiq.engine.policy.depth import ACCEPTANCE_PRIOR, AcceptanceRates, depth_by_walls
from cortiq.engine.policy.depth_trial import (
    AFFORDED,
    MARGIN,
    Decided,
    DepthTrial,
    PayoffMonitor,
    Timing,
    Trying,
)
from cortiq.engine.policy.drafter_profile import DrafterProfile

MORE, LESS = 0.75, 0.4
"""Shares of a round's drafts that hold above which depth grows, below which it shrinks."""
SHARE_START, SHARE_WEIGHT = 0.6, 0.2
STALE = 64
"""Rounds after which the price of a depth that is not drafted any more is forgotten: one slow round
must not rule a depth out for ever.
"""
DWELL = 6
"""Rounds that a depth chosen by price is kept."""
SAMPLED = 16
"""While a drafter rests one plain token of so many is timed: their price hardly moves, and noticing
costs time too.
"""


@dataclass(frozen=True)
class DepthLimits:
    """Bounds and start of the depth.

    Attributes
    ----------
    least, start, deepest : depths.
    enough : tokens a round that pay without a timed plain token; None: time one.
    acceptance : what is assumed of the drafter before it was seen.
    afforded : share of a text that tries may cost (`DepthTrial`).
    """

    least: int = 1
    start: int = 3
    deepest: int = 7
    enough: float | None = None
    acceptance: AcceptanceRates = ACCEPTANCE_PRIOR
    afforded: float = AFFORDED

    def profile(self) -> DrafterProfile:
        """Return the profile of a drafter without measurements."""
        return DrafterProfile.new(self.deepest, self.acceptance)


def batch_bucket(sequences: int) -> int:
    """Return the bucket of a batch size, each with times of its own: 1, 2, 3 to 4, 5 to 8, …"""
    return (sequences - 1).bit_length()


def is_clean_round(round_: Round, deepest: int = 7) -> bool:
    """Return whether a round's wall has no share of some prompt's rows."""
    others = round_.rows - 1 - round_.proposed
    return others <= (round_.sequences - 1) * (1 + deepest)


class AdaptiveDepth:
    """Depth for one sequence (`drafting.DepthPolicy`), from profiles and recorded rounds.

    While fewer than two depths were timed, depth moves by the share of drafts that hold; from then
    on by `depth_by_walls`. Whether to draft at all is the trial's to say. A round that the room
    shortened moves no profile, ids that a second drafter added count for no depth, and the wall of
    such a round has no price. Nor has that of a batch which prompt rows rode in.

    A batch of more sequences has prices of its own. There a round is charged its share of the time
    that all drafted rows added, and credited with its own tokens: the others would have had theirs.

    Parameters
    ----------
    profiles : measured so far, by `batch_bucket`; `publish` gets every new one.
    prompt_tokens : length of the prompt.
    """

    def __init__(
        self,
        profiles: Mapping[int, DrafterProfile] | None = None,
        prompt_tokens: int = 0,
        limits: DepthLimits | None = None,
        publish: Callable[[int, DrafterProfile], None] = lambda bucket, profile: None,
    ) -> None:
        self.limits = limits or DepthLimits()
        known = profiles or {}
        self._profiles = {k: profile.for_prompt(prompt_tokens) for k, profile in known.items()}
        self._bucket, self.publish = 0, publish
        self.profile = self._profiles.get(0) or self.limits.profile()
        self.trial = DepthTrial(
            monitor=PayoffMonitor(enough=self.limits.enough),
            losses=self.profile.losses,
            afforded=self._afforded(),
        )
        self.wakes = 0
        self.depth = self.limits.start
        self._share, self._dwell = SHARE_START, 0
        self._rounds, self._timed_at = 0, dict[int, int]()

    @property
    def timing(self) -> bool:
        """Whether plain tokens are to be timed now."""
        return isinstance(self.trial.state, Timing)

    def choose(self, generated: int, room: int) -> int:
        """Depth of the next round, 0 for a plain token."""
        if generated < self.wakes:
            return 0
        self.trial = self.trial.at_step(generated)
        self.wakes = self.trial.wakes
        if not self.trial.speculates:
            return 0
        depth = min(self.depth, self.limits.start) if self.trial.doubted else self.depth
        return max(0, min(depth, room - 1))

    def record(self, round_: Round) -> None:
        """Learn from a round; one that nothing was proposed in is a plain token."""
        if round_.generated < self.wakes and round_.generated % SAMPLED and not self.timing:
            return
        self._switch_bucket(batch_bucket(round_.sequences))
        if round_.proposed:
            self._after_round(round_)
        else:
            self._after_plain(round_)
        self.wakes = self.trial.wakes
        self._note_failure()
        self.publish(self._bucket, self.profile)

    def _note_failure(self) -> None:
        """Note for later sequences whether the last try failed."""
        failed = min(1, self.trial.losses)
        if failed != self.profile.losses:
            self.profile = replace(self.profile, losses=failed)

    def _switch_bucket(self, now: int) -> None:
        """Switch to the profile of another batch size; acceptance and rests carry over."""
        if now == self._bucket:
            return
        self._profiles[self._bucket] = self.profile
        known, hold = self._profiles.get(now) or self.limits.profile(), self.profile.acceptance
        self._bucket, self.profile = now, replace(known, acceptance=hold)
        resting = isinstance(self.trial.state, Decided) and not self.trial.state.speculate
        state = self.trial.state if resting else Trying()
        self.trial = replace(
            self.trial, state=state, monitor=PayoffMonitor(enough=self.limits.enough)
        )

    def _wall(self, round_: Round) -> float:
        """Return a round's time without other sequences' drafts, whose rows are taken to cost
        alike.
        """
        plain, drafted = self.profile.plain_seconds, round_.rows - round_.sequences
        if round_.sequences == 1 or not plain or drafted < round_.proposed:
            return round_.wall_seconds
        added = max(0.0, round_.wall_seconds - plain)
        return plain + added * round_.proposed / drafted

    def _after_plain(self, round_: Round) -> None:
        if round_.rows != round_.sequences:  # some sequence drafts, or reads a prompt
            return
        profile = self.profile.after_plain(round_.position, round_.wall_seconds)
        generated = round_.generated + round_.emitted
        self.profile = profile
        if profile.plain_seconds:
            trial = replace(self.trial, afforded=self._afforded())
            self.trial = trial.after_plain(generated, profile.plain_seconds)

    def _afforded(self) -> float:
        """Return the share that tries may cost; a drafter with a good record may cost anything."""
        return 0.0 if self.profile.is_promising(MARGIN) else self.limits.afforded

    def _after_round(self, round_: Round) -> None:
        others = round_.sequences - 1
        produced = (others + round_.emitted) / round_.sequences
        trial = self.trial.with_plain_seconds(self.profile.plain_seconds)
        trial = replace(trial, afforded=self._afforded())
        generated = round_.generated + round_.emitted
        if is_clean_round(round_, self.limits.deepest):
            own = not others or self.profile.plain_seconds > 0
            self.trial = trial.after_round(generated, self._wall(round_), produced, own)
        if not round_.shortened:
            self._learn(round_, others)

    def _learn(self, round_: Round, others: int) -> None:
        own = round_.proposed - round_.extended
        held = min(round_.accepted, own)
        if not own:
            return
        self.profile = self.profile.after_drafts(own, held)
        if not round_.extended and is_clean_round(round_, self.limits.deepest):
            self.profile = self.profile.after_round(own, self._wall(round_))
            self._forget_stale(own)
        self._move(own, held, others)

    def _forget_stale(self, now: int) -> None:
        self._rounds += 1
        self._timed_at[now] = self._rounds
        for depth, wall in enumerate(self.profile.walls, 1):
            seen = self._timed_at.setdefault(depth, self._rounds)
            if wall and self._rounds - seen > STALE:
                self.profile = self.profile.without_price(depth)

    def _move(self, own: int, held: int, others: int) -> None:
        """Set the next depth: by times where they are known, else by the share accepted."""
        limits, profile = self.limits, self.profile
        priced = depth_by_walls(
            profile.acceptance, profile.prices(), self.depth, limits.least, limits.deepest, others
        )
        self._share += SHARE_WEIGHT * (held / own - self._share)
        if priced is None:
            step = (self._share >= MORE) - (self._share < LESS)
            chosen = max(limits.least, min(self.depth + step, limits.deepest))
        elif self._dwell:
            self._dwell -= 1
            return
        else:
            chosen, self._dwell = priced, DWELL if priced != self.depth else 0
        if chosen != self.depth:
            self.depth, self._share = chosen, SHARE_START


class AdaptiveDepthFactory:
    """Makes a policy for every sequence, each beginning with what the ones before measured."""

    def __init__(self, limits: DepthLimits | None = None) -> None:
        self.limits = limits or DepthLimits()
        self.profiles: dict[int, DrafterProfile] = {}

    def __call__(self, prompt_tokens: int) -> AdaptiveDepth:
        """Make the policy of a sequence with a prompt of this many tokens."""
        return AdaptiveDepth(dict(self.profiles), prompt_tokens, self.limits, self._keep)

    def _keep(self, bucket: int, profile: DrafterProfile) -> None:
        self.profiles[bucket] = profile
