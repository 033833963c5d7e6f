"""Measurements of a drafter on one executable: acceptance rates and round times."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cortiq.engine.policy.depth import (
    ACCEPTANCE_PRIOR,
    AcceptanceRates,
    expected_tokens,
    updated_acceptance,
)

WALL_WEIGHT = 0.2
FAR_PROMPT, FAR_FACTOR = 1024, 2
"""A plain token's time serves for prompts of up to twice the position it was measured at, and this
many tokens more.
"""


def prior(deepest: int, hold: AcceptanceRates = ACCEPTANCE_PRIOR) -> AcceptanceRates:
    """Return the rates assumed of an unknown drafter at these depths; the last one repeats."""
    return (hold + hold[-1:] * deepest)[:deepest]


@dataclass(frozen=True)
class DrafterProfile:
    """Running averages; every method returns a new profile.

    Attributes
    ----------
    acceptance : `depth.updated_acceptance`, for as many depths as are ever drafted.
    walls : seconds of a round of 1, 2, … drafts with its drafting, 0 before it was timed.
    runs : rounds by depth; the first of a depth is not timed.
    plain_seconds, plain_runs : of a plain token; the first one is not timed.
    plain_position : where it was timed last.
    losses : 1 where the last try of it failed.
    """

    acceptance: AcceptanceRates
    walls: tuple[float, ...]
    runs: tuple[int, ...]
    plain_seconds: float = 0.0
    plain_runs: int = 0
    plain_position: int = 0
    losses: int = 0

    @classmethod
    def new(cls, deepest: int, hold: AcceptanceRates = ACCEPTANCE_PRIOR) -> DrafterProfile:
        """Return a profile without measurements."""
        return cls(prior(deepest, hold), (0.0,) * deepest, (0,) * deepest)

    def after_drafts(self, depth: int, accepted: int) -> DrafterProfile:
        """Return the profile after `depth` drafts of which `accepted` held."""
        return replace(self, acceptance=updated_acceptance(self.acceptance, depth, accepted))

    def after_round(self, depth: int, seconds: float) -> DrafterProfile:
        """Return the profile after a round of this depth and time; ignore depths beyond its own."""
        if depth > len(self.walls):
            return self
        at, walls, runs = depth - 1, list(self.walls), list(self.runs)
        walls[at] = _moved(walls[at], seconds, runs[at])
        runs[at] += 1
        return replace(self, walls=tuple(walls), runs=tuple(runs))

    def without_price(self, depth: int) -> DrafterProfile:
        """Return the profile with a depth's time dropped; its next round is timed at once."""
        walls = [0.0 if k == depth else wall for k, wall in enumerate(self.walls, 1)]
        return replace(self, walls=tuple(walls))

    def after_plain(self, position: int, seconds: float) -> DrafterProfile:
        """Return the profile after a plain token at this position."""
        return replace(
            self,
            plain_seconds=_moved(self.plain_seconds, seconds, self.plain_runs),
            plain_runs=self.plain_runs + 1,
            plain_position=position,
        )

    def prices(self) -> tuple[float, ...]:
        """Return the round times; where one depth alone was timed, extrapolate a second.

        A plain token is a round of no drafts: the line through the two is all that is known.
        """
        timed = [k for k, wall in enumerate(self.walls, 1) if wall > 0]
        if len(timed) != 1 or not self.plain_seconds or len(self.walls) < 2:
            return self.walls
        depth, walls = timed[0], list(self.walls)
        slope = (walls[depth - 1] - self.plain_seconds) / depth
        other = 1 if depth > 1 else 2
        walls[other - 1] = self.plain_seconds + max(0.0, slope) * other
        return tuple(walls)

    def is_promising(self, margin: float) -> bool:
        """Return whether some depth is better than plain tokens, by the averages."""
        pairs = zip(self.walls, expected_tokens(self.acceptance), strict=True)
        rates = [tokens * self.plain_seconds / wall for wall, tokens in pairs if wall > 0]
        return max(rates, default=0.0) > margin

    def for_prompt(self, tokens: int) -> DrafterProfile:
        """Return the profile for a prompt, without a plain time from a much shorter one."""
        if tokens <= FAR_FACTOR * self.plain_position + FAR_PROMPT:
            return self
        return replace(self, plain_seconds=0.0, plain_runs=0)


def _moved(average: float, seconds: float, runs: int) -> float:
    """Update a running average: the first time pays for set-up and is dropped."""
    if runs == 0:
        return average
    return seconds if average == 0 else average + WALL_WEIGHT * (seconds - average)
