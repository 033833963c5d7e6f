"""Counts of drafted and accepted ids, by drafter and depth."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from cortiq.engine.drafting import Round


@dataclass
class DrafterStatistics:
    """Counts and times of one drafter.

    Attributes
    ----------
    rounds : in which it proposed anything.
    drafted, accepted : ids in all. lengths : rounds by the number of accepted ids.
    drafted_at, accepted_at : ids by their depth in the draft, from 1.
    draft_seconds, wall_seconds : spent proposing, and in its rounds in all.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    lengths: Counter[int] = field(default_factory=Counter)
    drafted_at: Counter[int] = field(default_factory=Counter)
    accepted_at: Counter[int] = field(default_factory=Counter)
    draft_seconds: float = 0.0
    wall_seconds: float = 0.0

    def add(self, round_: Round) -> None:
        """Count a round."""
        self.rounds += 1
        self.drafted += round_.proposed
        self.accepted += round_.accepted
        self.lengths[round_.accepted] += 1
        self.drafted_at.update(range(1, round_.proposed + 1))
        self.accepted_at.update(range(1, round_.accepted + 1))
        self.draft_seconds += round_.draft_seconds
        self.wall_seconds += round_.wall_seconds

    def as_dict(self) -> dict[str, Any]:
        """Return the counts for JSON; `by_depth` has drafted and accepted ids of each depth."""
        tokens = (self.accepted + self.rounds) / self.rounds if self.rounds else 0.0
        return {
            "rounds": self.rounds,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "tokens_per_round": round(tokens, 4),
            "accepted_lengths": {str(k): n for k, n in sorted(self.lengths.items())},
            "by_depth": {
                str(depth): [count, self.accepted_at[depth]]
                for depth, count in sorted(self.drafted_at.items())
            },
            "draft_seconds": round(self.draft_seconds, 6),
            "wall_seconds": round(self.wall_seconds, 6),
        }


@dataclass
class DraftStatistics:
    """Counts of all drafters of a sequence.

    Attributes
    ----------
    drafters : by name.
    plain_rounds : steps without a draft.
    error : why drafting was given up, if it was.
    """

    drafters: dict[str, DrafterStatistics] = field(default_factory=dict)
    plain_rounds: int = 0
    error: str = ""

    def add(self, round_: Round) -> None:
        """Count a round."""
        if round_.proposed:
            self.drafters.setdefault(round_.drafter, DrafterStatistics()).add(round_)
        else:
            self.plain_rounds += 1

    @property
    def drafted(self) -> int:
        """Ids that were verified."""
        return sum(tally.drafted for tally in self.drafters.values())

    @property
    def accepted(self) -> int:
        """Ids that were accepted."""
        return sum(tally.accepted for tally in self.drafters.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the counts for JSON."""
        found = {name: tally.as_dict() for name, tally in self.drafters.items()}
        made: dict[str, Any] = {"plain_rounds": self.plain_rounds, "drafters": found}
        return made | ({"error": self.error} if self.error else {})
