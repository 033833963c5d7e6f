"""Measurements of a draft head on a text: acceptance rates, and activations of its layers.

Every position of the text is drafted from through the path that drafting takes, each draft going
on from the text itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cortiq.backend import Argmax, Batch, Executable, Named, Row, State
from cortiq.backend.error_attribution import failure_hint
from cortiq.engine.drafters.heads import HeadDrafting, final_rows, head_of
from cortiq.engine.drafting import Task
from cortiq.engine.session import check_outcome

Doubles = npt.NDArray[np.float64]
CHUNK_ROWS = 128


def teacher_forced(executable: Executable, ids: Sequence[int], count: int) -> list[list[int]]:
    """Return the greedy drafts after ids[: t + 2], for every t: one row a position, `count` each.

    Position t has read ids up to t + 1; its drafts are for t + 2 and on, each made from the true
    ids before it. The last position is the one whose first draft has an id to be compared with.
    """
    state = executable.open(len(ids) + count)
    try:
        task = Task(tuple(ids), state.limit, lambda text: Argmax(), executable, lambda: state)
        drafting, table = HeadDrafting(head_of(executable.program), task), []
        for t in range(len(ids) - 2):
            _feed(executable, state, "trunk", ids[t : t + 1], t)
            known = ids[: t + 2]
            table.append(drafting.drafts(known, count, ids[t + 2 : t + 2 + count]))
        return table
    finally:
        state.release()


def prefix_rates(table: Sequence[Sequence[int]], ids: Sequence[int]) -> list[float]:
    """Return for each depth the share of positions whose drafts up to it are right."""
    rates = []
    for depth in range(1, len(table[0]) + 1 if table else 1):
        whole = [t for t in range(len(table)) if t + 2 + depth <= len(ids)]
        held = sum(list(table[t][:depth]) == list(ids[t + 2 : t + 2 + depth]) for t in whole)
        rates.append(held / len(whole) if whole else 0.0)
    return rates


@dataclass(frozen=True)
class MLPActivations:
    """Activations of a draft module's MLP over a text: arrays [width], and the rows seen.

    Attributes
    ----------
    mass, squared : sums of |a| and a², in float64, rows in order.
    """

    rows: int
    mass: Doubles
    squared: Doubles


def feed_forward(
    executable: Executable, ids: Sequence[int], chunk_rows: int = CHUNK_ROWS
) -> list[MLPActivations]:
    """Measure the MLP of every module over a text; the width of chunks changes nothing."""
    head, state = head_of(executable.program), executable.open(len(ids))
    try:
        for start in range(0, len(ids), chunk_rows):
            _feed(executable, state, "trunk", ids[start : start + chunk_rows], start)
        return [
            _statistics(executable, state, entry, ids, depth, chunk_rows)
            for depth, entry in enumerate(head.entries)
        ]
    finally:
        state.release()


def _statistics(
    executable: Executable,
    state: State,
    entry: str,
    ids: Sequence[int],
    depth: int,
    chunk_rows: int,
) -> MLPActivations:
    count, want = final_rows(len(ids), len(ids), depth), Named(f"{entry}.mlp.product")
    rows: list[Doubles] = []
    for start in range(0, count, chunk_rows):
        tokens = ids[start + depth + 1 : min(start + chunk_rows, count) + depth + 1]
        rows += _feed(executable, state, entry, tokens, start, want)
    mass, squared = np.zeros((2, *rows[0].shape))
    for row in rows:
        mass = mass + np.abs(row)
        squared = squared + row * row
    return MLPActivations(count, mass, squared)


def _feed(
    executable: Executable,
    state: State,
    entry: str,
    tokens: Sequence[int],
    start: int,
    want: Named | None = None,
) -> list[Doubles]:
    wants = () if want is None else (want,)
    rows = [Row(state, start + i, token, wants) for i, token in enumerate(tokens)]
    result = executable.forward(Batch(rows, entry)).result()
    check_outcome(result.outcomes[state], start + len(rows) - 1, failure_hint(executable))
    return [] if want is None else [np.asarray(row[want], np.float64) for row in result.rows]
