"""Progress on stderr: a moving line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from cortiq_conformance.case import Case
from cortiq_conformance.report import CaseOutcome, CaseResult

SECONDS = 10.0
"""Between two lines where stderr is no terminal."""


class Progress:
    """Counts results against the listed cases, as a context manager around a run."""

    def __init__(self, listed: Iterable[Case], clock: Callable[[], float] = time.monotonic) -> None:
        self._totals = Counter(case.level for case in listed)
        self._done: Counter[int] = Counter()
        self._failed, self._clock = 0, clock
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Progress:
        self._moves = sys.stderr.isatty()
        self._started = self._said = self._clock()
        return self

    def step(self, result: CaseResult) -> None:
        """Count one more case."""
        level = result.case.level
        self._done[level] += 1
        self._failed += result.outcome is not CaseOutcome.SAME
        if self._moves:
            self._say(f"\r\x1b[K{sum(self._done.values())} {result.case.id[:100]}")
        elif self._done[level] == self._totals[level] or self._clock() - self._said >= SECONDS:
            self._said = self._clock()
            seconds = self._said - self._started
            counts = f"level {level}: {self._done[level]} of {self._totals[level]} cases"
            self._say(f"{counts}, {self._failed} not passed so far, {seconds:.0f} s\n")

    def running(self, ids: Sequence[str]) -> None:
        """Note the cases under way; the first of them is named once it takes long."""
        if self._timer is not None:
            self._timer.cancel()
        if ids and not self._moves:
            text = f"running {ids[0][:100]}: {SECONDS:.0f} s so far\n"
            self._timer = threading.Timer(SECONDS, self._say, (text,))
            self._timer.daemon = True
            self._timer.start()
        elif ids:
            self._say(f"\r\x1b[K{sum(self._done.values())} {ids[0][:100]}")

    def _say(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    def __exit__(self, *error: object) -> None:
        self.running(())
        if self._moves:
            self._say("\r\x1b[K")
