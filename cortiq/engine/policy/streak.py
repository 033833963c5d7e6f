"""Full-vocabulary drafting: while a text uses ids far beyond the shortlist."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

FAR = 131072
"""Ids from here on, and past the shortlist, are those of other scripts in most vocabularies."""
STREAK = 16


@dataclass(frozen=True)
class Streak:
    """The number of tokens left for which the whole vocabulary is computed.

    Attributes
    ----------
    shortlist : ids that are looked at otherwise.
    left : 0 for a fresh sequence.
    """

    shortlist: int
    left: int = 0

    def after(self, ids: Iterable[int]) -> Streak:
        """Return the streak after committed ids: a far one restarts it, others count it down."""
        left, far = self.left, max(self.shortlist, FAR)
        for token in ids:
            left = STREAK if token >= far else max(0, left - 1)
        return Streak(self.shortlist, left)

    @property
    def full(self) -> bool:
        """Whether all rows are to be computed now."""
        return self.left > 0
