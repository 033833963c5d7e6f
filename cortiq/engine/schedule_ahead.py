"""Whether the next batch can be submitted before the one in flight is read."""

from __future__ import annotations

from collections.abc import Sequence as Several

from cortiq.backend import Executable
from cortiq.engine.sequence import Sequence


def runs_ahead(executable: Executable, running: Several[Sequence]) -> bool:
    """Return whether a batch can be submitted before the one in flight is read.

    The reason why it cannot is counted in the statistics of every running sequence.
    """
    if not executable.asynchronous:
        return False
    reasons = {reason for sequence in running if (reason := sequence.waits_for)}
    for reason in reasons:
        for sequence in running:
            sequence.stats.waited[reason] += 1
    return not reasons
