"""A drafter and prompt lookup together: the lookup extends the drafter's chain.

Where the text is visibly being copied the lookup drafts alone, at no cost. Elsewhere the chain
does, and a continuation is looked up behind it: at least `REAL` committed ids must agree besides
the chain's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cortiq.backend import Want
from cortiq.engine.drafters.batched import DraftSteps, StepwiseDrafting, draft_steps
from cortiq.engine.drafters.ngrams import NgramIndex
from cortiq.engine.drafting import (
    NOTHING,
    DepthPolicy,
    Draft,
    Drafter,
    Drafting,
    Round,
    Task,
)
from cortiq.engine.policy.lookup_gain import LookupGain
from cortiq.engine.session import RowResult

REAL = 3
COPYING = 8
"""Ids that agree from which on a text counts as being copied."""
EXTRA = 4
"""Depth kept for the lookup."""


class CombinedDrafting(StepwiseDrafting):
    """One sequence of a drafter, and the index of its ids."""

    def __init__(self, chain: Drafting, extra: int) -> None:
        self.chain, self.extra = chain, extra
        self.wants: tuple[Want, ...] = chain.wants
        self.index, self.gain = NgramIndex(), LookupGain()
        self._draft, self._start = NOTHING, 0

    def steps(self, ids: Sequence[int], count: int) -> DraftSteps[Draft]:
        """Propose a copy while the text is being copied, else the chain and a lookup behind it."""
        self.index.follow(ids)
        self._start = len(ids)
        match = self.index.match()
        if match.length >= COPYING:
            copied = self.index.continuation(match, count)
            self._draft = NOTHING
            return Draft(copied, extended=len(copied))
        drafted = yield from draft_steps(self.chain, ids, max(1, count - self.extra))
        self._draft = self._lengthened(drafted, count - len(drafted.ids))
        return self._draft

    def _lengthened(self, drafted: Draft, room: int) -> Draft:
        if room < 1 or not drafted.ids:
            return drafted
        if self.gain.rest:
            self.gain = self.gain.rested()
            return drafted
        self.index.extend(drafted.ids)
        match = self.index.match()
        enough = match.length >= len(drafted.ids) + REAL
        more = self.index.continuation(match, room) if enough else ()
        self.index.truncate(self._start)
        return Draft(drafted.ids + more, drafted.extended + len(more))

    def observe(self, position: int, rows: Sequence[RowResult], ids: Sequence[int]) -> None:
        """Measure the gain of the lookup; pass the rows to the chain."""
        draft, self._draft = self._draft, NOTHING
        if draft.extended:
            came = ids[self._start : self._start + len(draft.ids)]
            pairs = zip(draft.ids, came, strict=False)
            accepted = next((i for i, (a, b) in enumerate(pairs) if a != b), len(came))
            self.gain = self.gain.after(len(draft.ids), draft.extended, accepted)
        self.chain.observe(position, rows, ids)

    def close(self) -> None:
        """Close the chain."""
        self.chain.close()


@dataclass(frozen=True)
class CombinedDrafter:
    """A drafter whose chains are lengthened by prompt lookup: `--draft model:PATH` does it."""

    chain: Drafter
    extra: int = EXTRA

    @property
    def name(self) -> str:
        """Both names."""
        return f"{self.chain.name}+lookup"

    def open(self, task: Task) -> CombinedDrafting:
        """Begin on a sequence."""
        return CombinedDrafting(self.chain.open(task), self.extra)


@dataclass(frozen=True)
class PolicyWithLookup(DepthPolicy):
    """A policy for the chain of a `CombinedDrafter`: its depth, and `extra` for the lookup."""

    policy: DepthPolicy
    extra: int = EXTRA

    @property
    def wakes(self) -> int:
        """Tokens before which nothing is drafted, of the chain's policy."""
        return self.policy.wakes

    @property
    def timing(self) -> bool:
        """Whether plain tokens are to be timed now."""
        return self.policy.timing

    def choose(self, generated: int, room: int) -> int:
        """Return the chain's depth and the lookup's together, cut to the room."""
        depth = self.policy.choose(generated, room)
        return min(depth + self.extra, room - 1) if depth else 0

    def record(self, round_: Round) -> None:
        """Record the round with the chain's own depth."""
        self.policy.record(replace(round_, asked=max(0, round_.asked - self.extra)))
