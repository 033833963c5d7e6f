"""Gain of a lookup behind a drafter's ids: used while it pays, rested while it does not."""

from __future__ import annotations

from dataclasses import dataclass, replace

START, PAYS, TRY_AGAIN = 2.0, 1.0, 1.6
WEIGHT, REST = 0.2, 24


@dataclass(frozen=True)
class LookupGain:
    """Running average of accepted ids beyond the drafter's own, a round.

    Attributes
    ----------
    average : of rounds that a lookup lengthened; others leave it untouched.
    rest : rounds left without a lookup.
    """

    average: float = START
    rest: int = 0

    def rested(self) -> LookupGain:
        """Return the gain after a round that a rest kept from lengthening."""
        return replace(self, rest=max(0, self.rest - 1))

    def after(self, proposed: int, extended: int, accepted: int) -> LookupGain:
        """Return the gain after a round of `proposed` ids whose last `extended` came from the
        lookup.
        """
        extra = max(0, accepted - (proposed - extended))
        average = self.average + WEIGHT * (extra - self.average)
        if average < PAYS:
            return LookupGain(TRY_AGAIN, REST)
        return LookupGain(average)
