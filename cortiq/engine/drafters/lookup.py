"""Drafts copied from the text itself: quotations, edits of code, lists, repetitions.

Nothing is computed for them, so they cost what their rows cost; a text without repetitions gets
none, and is generated as if there were no drafter.
"""

from __future__ import annotations

from collections.abc import Sequence

from cortiq.backend import Want
from cortiq.engine.drafters.ngrams import GRAM, NgramIndex
from cortiq.engine.drafting import NOTHING, Draft, Task
from cortiq.engine.policy.adaptive import DepthLimits
from cortiq.engine.session import RowResult

RAMP = 3
"""Ids drafted for every id that agrees beyond the shortest match: short ones are coincidences."""

LIMITS = DepthLimits(start=7, deepest=15, acceptance=(0.6, 0.9, 0.95, 0.97), afforded=0.0)
"""A copy that goes on mostly keeps going on; the first id after a short match is doubtful. Where
nothing was copied nothing is drafted, so that tries need no purse: a copy is noticed soon.
"""


def trusted(length: int, count: int) -> int:
    """Return how many of `count` ids to draft after a match of this length."""
    return min(count, 1 + RAMP * (length - GRAM))


class LookupDrafting:
    """The index of one sequence."""

    wants: tuple[Want, ...] = ()

    def __init__(self) -> None:
        self.index = NgramIndex()

    def propose(self, ids: Sequence[int], count: int) -> Draft:
        """Draft what followed the longest earlier occurrence of the end of `ids`."""
        self.index.follow(ids)
        match = self.index.match()
        if not match.length:
            return NOTHING
        return Draft(self.index.continuation(match, trusted(match.length, count)))

    def observe(self, position: int, rows: Sequence[RowResult], ids: Sequence[int]) -> None:
        """Do nothing: `propose` sees all ids."""

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


class LookupDrafter:
    """Prompt lookup: `--draft lookup`."""

    name = "lookup"

    def open(self, task: Task) -> LookupDrafting:
        """Begin on a sequence."""
        return LookupDrafting()
