"""What was measured of a drafter on one executable: how drafts hold, what rounds take."""

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
    """Averages of a drafter nothing is known of, for this many depths; the last one repeats."""
    return (hold + hold[-1:] * deepest)[:deepest]


@dataclass(frozen=True)
class DrafterProfile:
    """The averages; every method returns the account after what it was told.

    Attributes
    ----------
    hold : `depth.hold_after`, for as many depths as are ever drafted.
    walls : seconds of a round of 1, 2, … drafts with its drafting, 0 before it was timed.
    runs : rounds by depth; the first of a depth is not timed.
    plain_seconds, plain_runs : of a plain token; the first one is not timed.
    plain_position : where it was timed last.
    losses : 1 where the last try of it failed.
    """

    hold: AcceptanceRates
    walls: tuple[float, ...]
    runs: tuple[int, ...]
    plain_seconds: float = 0.0
    plain_runs: int = 0
    plain_position: int = 0
    losses: int = 0

    @classmethod
    def new(cls, deepest: int, hold: AcceptanceRates = ACCEPTANCE_PRIOR) -> DrafterProfile:
        """Nothing was measured yet."""
        return cls(prior(deepest, hold), (0.0,) * deepest, (0,) * deepest)

    def after_drafts(self, depth: int, accepted: int) -> DrafterProfile:
        """After `depth` drafts of which `accepted` held."""
        return replace(self, hold=updated_acceptance(self.hold, depth, accepted))

    def after_round(self, depth: int, seconds: float) -> DrafterProfile:
        """After a round of this depth and length; deeper ones than the account's have no price."""
        if depth > len(self.walls):
            return self
        at, walls, runs = depth - 1, list(self.walls), list(self.runs)
        walls[at] = _moved(walls[at], seconds, runs[at])
        runs[at] += 1
        return replace(self, walls=tuple(walls), runs=tuple(runs))

    def without_price(self, depth: int) -> DrafterProfile:
        """The account with a depth's price forgotten; its next round is timed at once."""
        walls = [0.0 if k == depth else wall for k, wall in enumerate(self.walls, 1)]
        return replace(self, walls=tuple(walls))

    def after_plain(self, position: int, seconds: float) -> DrafterProfile:
        """After a plain token at this position."""
        return replace(
            self,
            plain_seconds=_moved(self.plain_seconds, seconds, self.plain_runs),
            plain_runs=self.plain_runs + 1,
            plain_position=position,
        )

    def prices(self) -> tuple[float, ...]:
        """The walls; where one depth alone was timed, the plain token makes a price of a second.

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

    def promises(self, margin: float) -> bool:
        """Whether, by what held and what rounds took, some depth is better than plain tokens."""
        pairs = zip(self.walls, expected_tokens(self.hold), strict=True)
        rates = [tokens * self.plain_seconds / wall for wall, tokens in pairs if wall > 0]
        return max(rates, default=0.0) > margin

    def for_prompt(self, tokens: int) -> DrafterProfile:
        """The account for a sequence of this prompt: without a plain time taken too near."""
        if tokens <= FAR_FACTOR * self.plain_position + FAR_PROMPT:
            return self
        return replace(self, plain_seconds=0.0, plain_runs=0)


def _moved(average: float, seconds: float, runs: int) -> float:
    """The first time is left out: it pays for set-up. The second sets the average."""
    if runs == 0:
        return average
    return seconds if average == 0 else average + WALL_WEIGHT * (seconds - average)
