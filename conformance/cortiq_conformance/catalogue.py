"""Every case, from one generator: the command line, Python and pytest only present it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

from cortiq_conformance import graphs, heads, layer_runs, layers, overlays, streams, together
from cortiq_conformance.case import Case
from cortiq_conformance.level0 import (
    blocks,
    compressed,
    crossed,
    elementwise,
    exports,
    far,
    foundations,
    keys,
    long,
    matrices,
    ngrams,
    packages,
    recurrences,
    robustness,
    runs,
    scaling,
    sequences,
    states,
    steps,
    tails,
    windows,
)
from cortiq_conformance.level0 import overlays as overlays0

LEVEL0 = (
    foundations,
    elementwise,
    scaling,
    matrices,
    sequences,
    recurrences,
    blocks,
    keys,
    compressed,
    ngrams,
    packages,
    far,
    runs,
    long,
    tails,
    states,
    steps,
    exports,
    windows,
    overlays0,
    crossed,
    robustness,
)
LEVELS = (0, 1, 2, 3, 4)


def cases(
    levels: Iterable[int] = LEVELS, profile: str = "quick", models: Sequence[str] | None = None
) -> Iterator[Case]:
    """Yield the cases of these levels in order; nothing is built.

    Parameters
    ----------
    profile : `quick`, or `full`: all schedules and prompts on the real models too.
    models : run levels 2 to 4 on these only (names, files or folders); None for those of the
        profile.
    """
    wanted = set(levels)
    if 0 in wanted:
        for module in LEVEL0:
            yield from module.cases()
    if 1 in wanted:
        yield from layers.cases()
        yield from layer_runs.cases()
        yield from crossed.layer_cases()
    if 2 in wanted:
        yield from graphs.cases(profile, models)
        yield from heads.graph_cases(models)
    if 3 in wanted:
        yield from streams.greedy_cases(profile, models)
        yield from together.cases(3, models)
        yield from overlays.cases(3, models)
        yield from heads.stream_cases(3, models)
    if 4 in wanted:
        yield from streams.sampled_cases(profile, models)
        yield from together.cases(4, models)
        yield from overlays.cases(4, models)
        yield from heads.stream_cases(4, models)


def list_hash(listed: Iterable[Case]) -> str:
    """Return a SHA-256 over the ids, which tells a trimmed list from a complete one."""
    return hashlib.sha256("\n".join(case.id for case in listed).encode()).hexdigest()[:16]
