"""Driving sequences of an executable in tests, and comparing what comes back bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from cortiq.backend import (
    Argmax,
    Batch,
    BatchResult,
    Digest,
    Draw,
    Drawn,
    Executable,
    ExportedState,
    KVPlanes,
    Row,
    State,
    Status,
    Want,
)
from cortiq.numerics.sampling import Sampling

PENALISED = Sampling(temperature=0.8, repetition_penalty=1.3, frequency_penalty=0.1, seed=7)
"""Draws that depend on every id so far."""
WANTS: tuple[Want, ...] = (Digest(), Digest("hidden"), Argmax(), Draw(PENALISED))
Answers = list[dict[Want, Any]]
Token = int | Drawn


def rows(
    state: State, ids: Sequence[Token], wants: Sequence[Want] = WANTS, entry: str = "trunk"
) -> list[Row]:
    """Rows that go on where the sequence ends."""
    start = state.length(entry)
    return [Row(state, start + i, token, tuple(wants)) for i, token in enumerate(ids)]


def forward(executable: Executable, *groups: Sequence[Row], entry: str = "trunk") -> BatchResult:
    """One batch of the groups of rows."""
    return executable.forward(Batch([row for group in groups for row in group], entry)).result()


def completed(executable: Executable, *groups: Sequence[Row], entry: str = "trunk") -> Answers:
    """The answers to a batch in which every sequence completes, all rows one after the other."""
    result = forward(executable, *groups, entry=entry)
    assert all(o.status is Status.COMPLETED for o in result.outcomes.values()), result.outcomes
    return [dict(answers) for answers in result.rows]


def feed(
    executable: Executable, state: State, ids: Sequence[Token], wants: Sequence[Want] = WANTS
) -> Answers:
    """Feed ids to a sequence in one batch of its own."""
    return completed(executable, rows(state, ids, wants))


def in_chunks(
    executable: Executable,
    state: State,
    ids: Sequence[int],
    sizes: Sequence[int],
    wants: Sequence[Want] = WANTS,
) -> Answers:
    """Feed ids in chunks of these sizes, over and over."""
    edges = [0]
    while edges[-1] < len(ids):
        edges.append(edges[-1] + sizes[(len(edges) - 1) % len(sizes)])
    return [a for start, stop in pairwise(edges)
            for a in feed(executable, state, ids[start:stop], wants)]  # fmt: skip


def alone(
    executable: Executable, ids: Sequence[int], wants: Sequence[Want] = WANTS
) -> tuple[Answers, ExportedState]:
    """Return a new sequence's results for these ids in one chunk, and the state they leave."""
    state = executable.open(len(ids))
    answers = feed(executable, state, ids, wants)
    exported = state.export()
    state.release()
    return answers, exported


def same(a: Any, b: Any) -> bool:
    """Whether two answers, or lists or mappings of them, are equal bit for bit."""
    if isinstance(a, KVPlanes | ExportedState):
        return type(a) is type(b) and same(vars(a), vars(b))
    if isinstance(a, Mapping):
        return set(a) == set(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def alive(answers: Answers) -> bool:
    """Whether the answers are those of a model that computes: rows differ from each other."""
    return len({answer[Digest()] for answer in answers}) > len(answers) // 2
