"""Values of rounds of one drafter beside another's, for recorded texts.

Each side chooses its depth by how its own drafts held so far and has its own profile of lookups,
as in drafting; prices are given, in plain tokens. So two drafters can be compared on the same text
without running either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cortiq.engine.drafters.ngrams import lookup_continuation
from cortiq.engine.policy.depth import (
    ACCEPTANCE_PRIOR,
    AcceptanceRates,
    planned_depth,
    updated_acceptance,
)
from cortiq.engine.policy.lookup_gain import LookupGain
from cortiq.engine.radix_tree import common_prefix_length

REAL = 3
"""Committed ids that a lookup behind drafts must agree with besides the drafts."""


class RoundValue(NamedTuple):
    """Tokens of a round, and its cost in plain tokens."""

    tokens: int
    cost: float


@dataclass(frozen=True)
class RoundStart:
    """A position at which a round could begin.

    Attributes
    ----------
    ids : committed so far. after : what truly follows.
    drafts : what the drafter says, at its deepest.
    """

    ids: Sequence[int]
    after: Sequence[int]
    drafts: Sequence[int]


@dataclass(frozen=True)
class RoundCosts:
    """Costs of a drafter's rounds, in plain tokens.

    Attributes
    ----------
    cost : of verifying 1, 2, … drafts. draft, step : of drafting, once a round and once a draft.
    acceptance : how drafts are taken to hold before any were seen.
    """

    cost: Sequence[float]
    draft: float = 0.0
    step: float = 0.0
    acceptance: AcceptanceRates = field(default=ACCEPTANCE_PRIOR)

    def round(self, depth: int, drafts: int) -> float:
        """Return the cost of a round of `depth` own drafts, `drafts` with looked-up ones."""
        at = max(1, min(drafts, len(self.cost)))
        return self.cost[at - 1] + self.draft + self.step * depth


def round_values(starts: Iterable[RoundStart], prices: RoundCosts) -> Iterator[RoundValue]:
    """Yield the value of a round at each start, in order; each learns from those before."""
    hold, gain, most = prices.acceptance, LookupGain(), len(prices.cost)
    for start in starts:
        depth, _ = planned_depth(prices.cost, hold, prices.draft, prices.step)
        own = list(start.drafts[: max(1, min(depth, len(start.drafts)))])
        depth, more = len(own), list[int]()
        if gain.rest and depth < most:
            gain = gain.rested()
        elif depth < most:
            more += lookup_continuation([*start.ids, *own], depth + REAL, most - depth)
        kept = common_prefix_length([*own, *more], start.after)
        if more:
            gain = gain.after(depth + len(more), len(more), kept)
        hold = updated_acceptance(hold, depth, min(kept, depth))
        yield RoundValue(1 + kept, prices.round(depth, depth + len(more)))
