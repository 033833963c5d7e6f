"""The bitwise promises on the two real models, with prompts of 70 tokens.

As `tests/pure/test_bitwise.py` states them over random programs. Logits are compared where a
whole head over 70 rows would take long: the last rows; hidden states everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from sequences import PENALISED, Answers, completed, feed, forward, rows, same

from cortiq.backend import (
    Argmax,
    CompileOptions,
    Digest,
    Draw,
    Drawn,
    Executable,
    ExportedState,
    Row,
    State,
    Status,
)
from cortiq.formats.checkpoint import open_checkpoint
from cortiq.models import load_program
from cortiq.placement.place import place_split
from cortiq_reference.backend import ReferenceBackend

LENGTH, LIMIT = 70, 90
PROMPT = [11 + (7 * i) % 83 + 997 * (i % 5) for i in range(LENGTH)]
OTHER = [5000 - 13 * i for i in range(6)]
ROW = (Digest("hidden"),)
TAIL = (Digest("hidden"), Digest(), Argmax(), Draw(PENALISED))
REFERENCE = ReferenceBackend()


class Real(NamedTuple):
    """A real model, compiled once, and what PROMPT in one chunk gives."""

    executable: Executable
    loaded: Any
    expected: Answers
    left: ExportedState


@pytest.fixture(scope="module", params=["smollm2_path", "gemma3_path"])
def real(request: pytest.FixtureRequest) -> Iterator[Real]:
    checkpoint = open_checkpoint(request.getfixturevalue(request.param))
    loaded = load_program(checkpoint, context=2048)
    executable = REFERENCE.compile(loaded.program, loaded.weights, CompileOptions(threads=2))
    state = executable.open(LIMIT)
    expected = completed(executable, prompt(state, 0))
    assert len({answer[ROW[0]] for answer in expected}) == LENGTH
    yield Real(executable, loaded, expected, state.export())
    executable.close()
    checkpoint.close()


def prompt(state: State, start: int, stop: int = LENGTH) -> list[Row]:
    """Rows of PROMPT; the last three want logits too."""
    return [Row(state, i, PROMPT[i], TAIL if i >= LENGTH - 3 else ROW) for i in range(start, stop)]


def fed(executable: Executable, state: State, size: int, start: int = 0) -> Answers:
    """The rest of PROMPT in chunks."""
    chunks = range(start, LENGTH, size)
    return [a for at in chunks
            for a in completed(executable, prompt(state, at, min(at + size, LENGTH)))]  # fmt: skip


@pytest.mark.parametrize(
    ("whole", "size"), [(60, 1), pytest.param(0, 7, marks=pytest.mark.slow), (0, 64)]
)
def test_in_chunks(real, whole, size):
    """After `whole` rows in one chunk: row by row across the border of a tile, at 64."""
    state = real.executable.open(LENGTH)
    before = completed(real.executable, prompt(state, 0, whole)) if whole else []
    assert same([*before, *fed(real.executable, state, size, whole)], real.expected)
    assert same(state.export(), real.left)


def test_in_a_batch_of_three_one_of_which_fails(real):
    """One sequence at its end, one at its start, and one that meets a NaN."""
    executable, cut = real.executable, 67
    last, bad, first = executable.import_(real.left, LIMIT), *map(executable.open, (LIMIT,) * 2)
    last.rewind(cut)
    width = real.loaded.program.trunk.values["embed"].shape[0]
    group = rows(bad, OTHER, ROW)
    group[2] = replace(group[2], inputs={"embed": np.full(width, np.nan, np.float32)})
    result = forward(executable, prompt(last, cut), group, prompt(first, 0, 20))
    assert result.outcomes[bad].status is Status.FAILED
    assert bad.length() == 0
    answers = [dict(row) for row in result.rows]
    assert same(answers[: LENGTH - cut], real.expected[cut:])
    assert answers[LENGTH - cut : LENGTH - cut + len(OTHER)] == [{}] * len(OTHER)
    assert same(answers[LENGTH - cut + len(OTHER) :], real.expected[:20])
    assert same(last.export(), real.left)
    assert same(completed(executable, prompt(bad, 0, 20)), real.expected[:20])


def test_rewind_snapshot_and_fork(real):
    executable = real.executable
    state = executable.import_(real.left, LIMIT)
    feed(executable, state, OTHER, ())
    assert state.rewind(66) == 66
    snapshot = state.snapshot()
    feed(executable, state, OTHER, ())
    state.restore(snapshot)
    child, early = state.fork(), state.fork(65)
    feed(executable, child, OTHER, ())
    assert same(fed(executable, early, 64, 65), real.expected[65:])
    assert same(fed(executable, state, 64, 66), real.expected[66:])
    assert same(state.export(), real.left)
    assert same(early.export(), real.left)


def test_three_steps_chained_by_drawn(real):
    executable, want = real.executable, Draw(PENALISED)
    chained, driven = (executable.import_(real.left, LIMIT) for _ in range(2))
    for state in (chained, driven):
        state.rewind(LENGTH - 1)
    wants, tickets, answers = (want, Digest()), [], []
    token: Any = PROMPT[-1]
    for _ in range(4):
        answers += feed(executable, driven, [token], wants)
        token = answers[-1][want]
    token = PROMPT[-1]
    for _ in range(4):
        tickets += feed(executable, chained, [token], wants)
        token = Drawn(0)
    assert same(tickets, answers)
    assert answers[0][want] == real.expected[-1][want]
    assert same(chained.export(), driven.export())


def test_exported_into_other_pages_and_threads(real):
    options = CompileOptions(threads=1, page_rows=23, extra={"poison": True})
    other = REFERENCE.compile(real.loaded.program, real.loaded.weights, options)
    state = real.executable.import_(real.left, LIMIT)
    state.rewind(64)
    moved = other.import_(state.export(), LIMIT)
    assert same(fed(other, moved, 4, 64), real.expected[64:])
    assert same(moved.export(), real.left)
    other.close()


def test_split_over_two_executables(real):
    layers = real.loaded.program.facts["layers"]
    parts = [(REFERENCE, CompileOptions(threads=2, page_rows=pages)) for pages in (64, 10)]
    program, weights = real.loaded.program, real.loaded.weights
    chain = place_split(parts, program, weights, [f"layers.{layers // 2}"])
    state = chain.open(LIMIT)
    assert same(fed(chain, state, 40), real.expected)
    assert same(state.export(), real.left)
    chain.close()
