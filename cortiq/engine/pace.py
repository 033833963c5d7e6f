"""Prompt rows beside decoding sequences: as many as are computed in the time aimed at."""

from __future__ import annotations

from cortiq.engine.row_budget import STEP

LEAST_ROWS = 256
"""Prompt rows a batch may always have: fewer would leave most of a device idle."""
KEPT = 0.75
"""Weight of what was measured before."""


class Pace:
    """Learns how many rows a second an executable computes in batches of many rows.

    Parameters
    ----------
    seconds : duration aimed at.
    most : rows of a batch at most.
    """

    def __init__(self, seconds: float, most: int) -> None:
        self.seconds, self.most = seconds, most
        self._rate = 0.0

    def record(self, rows: int, seconds: float) -> None:
        """Take a batch into account; one of few rows says nothing of many."""
        if rows < LEAST_ROWS or seconds <= 0:
            return
        rate = rows / seconds
        self._rate = KEPT * self._rate + (1 - KEPT) * rate if self._rate else rate

    @property
    def prompt_rows(self) -> int:
        """Most rows of prompts in a batch that decodes too."""
        rows = min(self._rate * self.seconds, self.most)
        return max(LEAST_ROWS, int(rows) // STEP * STEP)
