"""A row's bits depend on its sequence's ids only: not on chunks, batches, detours or hosts.

Each test states one such theorem over random programs, see `graphs`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graphs import CONTEXT, Bound, examples, ids, overflowing, programs
from hypothesis import given
from hypothesis import strategies as st
from sequences import (
    PENALISED,
    alive,
    alone,
    completed,
    feed,
    forward,
    in_chunks,
    rows,
    same,
)

from cortiq.backend import Argmax, CompileOptions, Digest, Draw, Drawn, Executable, Status
from cortiq_reference.backend import ReferenceBackend

PROMPTS = ids(st.integers(65, 140))
"""Prompts that reach into a second or third tile of 64 keys."""


def compiled(bound: Bound, *, threads: int = 1, page_rows: int = 64, **extra: Any) -> Executable:
    options = CompileOptions(threads=threads, page_rows=page_rows, extra=extra)
    return ReferenceBackend().compile(bound.program, bound.weights, options)


@examples(5)
@given(programs(), PROMPTS, st.lists(st.integers(1, 40), min_size=1, max_size=4))
def test_a_prompt_in_chunks_of_any_size(bound, prompt, sizes):
    executable = compiled(bound)
    expected, left = alone(executable, prompt)
    assert alive(expected)
    for chunks in ([1], [7], [64], sizes):
        state = executable.open(len(prompt))
        assert same(in_chunks(executable, state, prompt, chunks), expected)
        assert same(state.export(), left)


@examples(2)
@given(programs(blocks=(1, 2)), ids(st.integers(1030, 1060)))
def test_a_prompt_that_crosses_a_run_of_tiles(bound, prompt):
    executable = compiled(bound)
    expected, left = alone(executable, prompt)
    state, other = executable.open(CONTEXT), executable.open(CONTEXT)
    assert same(in_chunks(executable, state, prompt, [64]), expected)
    assert same(state.export(), left)
    feed(executable, other, prompt[:1000], ())
    assert same(in_chunks(executable, other, prompt[1000:], [1]), expected[1000:])


@examples(6)
@given(
    programs(),
    st.lists(st.tuples(ids(st.integers(2, 90)), st.floats(0, 1)), min_size=2, max_size=5),
    st.randoms(use_true_random=False),
)
def test_in_a_batch_of_others(bound, prompts, order):
    """Sequences of other lengths, at other positions, some of them one row from their end."""
    executable = compiled(bound)
    expected = [alone(executable, prompt) for prompt, _ in prompts]
    started = []
    for (prompt, share), (answers, left) in zip(prompts, expected, strict=True):
        state, done = executable.open(len(prompt)), int(share * (len(prompt) - 1))
        if done:
            feed(executable, state, prompt[:done], ())
        started.append((state, prompt[done:], answers[done:], left))
    order.shuffle(started)
    batch = completed(executable, *(rows(state, rest) for state, rest, _, _ in started))
    assert same(batch, [row for _, _, answers, _ in started for row in answers])
    assert all(same(state.export(), left) for state, _, _, left in started)


@examples(6)
@given(programs(), PROMPTS, ids(st.integers(1, 70)), st.floats(0, 1))
def test_rewind_is_never_having_gone_ahead(bound, prompt, ahead, share):
    executable, kept = compiled(bound), int(share * len(prompt))
    expected, left = alone(executable, prompt)
    state = executable.open(len(prompt) + len(ahead))
    feed(executable, state, [*prompt[:kept], *ahead])
    reached = state.rewind(kept)
    assert reached == state.length() == kept
    if kept < len(prompt):
        assert same(feed(executable, state, prompt[kept:]), expected[kept:])
    assert same(state.export(), left)


@examples(5)
@given(programs(), PROMPTS, ids(st.integers(1, 70)))
def test_snapshots_are_copies(bound, prompt, ahead):
    executable, half = compiled(bound), len(prompt) // 2
    expected, left = alone(executable, prompt)
    state = executable.open(CONTEXT)
    feed(executable, state, prompt[:half])
    snapshot = state.snapshot()
    for tail in (ahead, ahead[::-1]):
        feed(executable, state, tail)
        state.restore(snapshot)
        assert state.length() == half
    state.rewind(half // 2)
    state.restore(snapshot)
    assert same(feed(executable, state, prompt[half:]), expected[half:])
    assert same(state.export(), left)


@examples(4)
@given(programs(), ids(st.integers(2, 100)), ids(40), ids(40), st.floats(0, 1))
def test_forks_are_separate(bound, prompt, tail, other_tail, share):
    """Parent and children go on in turns, with other ids, from the end and from earlier."""
    executable, cut = compiled(bound), int(share * len(prompt))
    parent = executable.open(CONTEXT)
    feed(executable, parent, prompt)
    child, early = parent.fork(), parent.fork(cut)
    paths = {
        parent: [*prompt, *tail],
        child: [*prompt, *other_tail],
        early: [*prompt[:cut], *other_tail[::-1]],
    }
    for start in range(0, len(tail), 8):
        for state, path in paths.items():
            expected = alone(executable, path)[0] if start == 32 else None
            new = path[state.length() : state.length() + 8]
            answers = feed(executable, state, new)
            if expected:
                assert same(answers, expected[len(path) - 8 :])
    for state, path in paths.items():
        assert same(state.export(), alone(executable, path)[1])
    child.release()
    assert same(parent.export(), alone(executable, paths[parent])[1])


@examples(6)
@given(programs(), ids(st.integers(1, 80)), st.sampled_from([Argmax(), Draw(PENALISED, 1)]))
def test_steps_chained_by_drawn_are_those_driven_from_the_host(bound, prompt, want):
    executable = compiled(bound)
    driven, chained, other = (executable.open(CONTEXT) for _ in range(3))
    answers = [feed(executable, driven, prompt, (want, Digest()))[-1]]
    for _ in range(3):
        answers.append(feed(executable, driven, [answers[-1][want]], (want, Digest()))[0])
    batch = (rows(other, prompt[::-1]), rows(chained, prompt, (want, Digest())))
    tickets = [completed(executable, *batch)[-1]]
    row = 2 * len(prompt) - 1
    for _ in range(3):
        made = completed(executable, rows(chained, [Drawn(row)], (want, Digest())))
        tickets.append(made[-1])
        row = 0
    assert same(tickets, answers)
    assert same(chained.export(), driven.export())


@examples(6)
@given(programs(), PROMPTS, st.integers(1, 100), st.floats(0, 1))
def test_a_sequence_moves_to_another_executable(bound, prompt, page_rows, share):
    here, there = compiled(bound), compiled(bound, threads=2, page_rows=page_rows)
    cut = int(share * (len(prompt) - 1))
    expected, left = alone(here, prompt)
    state = here.open(CONTEXT)
    if cut:
        feed(here, state, prompt[:cut])
    moved = there.import_(state.export(), CONTEXT)
    assert moved.length() == cut
    assert same(moved.export(), state.export())
    assert same(in_chunks(there, moved, prompt[cut:], [30]), expected[cut:])
    back = here.import_(moved.export(), CONTEXT)
    assert same(back.export(), left)
    reached = back.rewind(len(prompt) // 2)
    assert reached <= len(prompt) // 2
    assert same(feed(here, back, prompt[reached:]), expected[reached:])
    there.close()


DAMAGES = {
    "NaN": ("embed", np.nan),
    "infinity": ("embed", -np.inf),
    "2^50": ("embed", 2.0**50),
    "overflow in the first mixer": ("layers.0.mixer.norm", None),
    "overflow in the head": ("hidden", None),
}
"""A value that a row supplies, and what with; `None` is for what overflows in the next product."""


def damage(bound: Bound, kind: str) -> dict[str, np.ndarray]:
    name, value = DAMAGES[kind]
    width = bound.program.trunk.values[name].shape
    return {name: overflowing(bound, name) if value is None else np.full(width, value, np.float32)}


@pytest.mark.parametrize("kind", DAMAGES)
@examples(5)
@given(programs(), ids(st.integers(66, 100)), st.integers(0, 9))
def test_a_failing_sequence_concerns_no_other(kind, bound, prompt, at):
    executable = compiled(bound)
    first, bad, last = (executable.open(CONTEXT) for _ in range(3))
    expected, left = alone(executable, prompt)
    feed(executable, bad, prompt[:20])
    group = rows(bad, prompt[20:30])
    group[at] = replace(group[at], inputs=damage(bound, kind))
    feed(executable, last, prompt[:-1], ())
    result = forward(executable, rows(first, prompt), group, rows(last, prompt[-1:]))
    assert result.outcomes[bad].status is Status.FAILED
    assert result.outcomes[bad].reason
    assert list(result.rows[len(prompt) : len(prompt) + 10]) == [{}] * 10
    assert same([dict(row) for row in result.rows[: len(prompt)]], expected)
    assert same(dict(result.rows[-1]), expected[-1])
    assert same(first.export(), left)
    assert same(last.export(), left)
    assert bad.length() == 0
    assert same(feed(executable, bad, prompt), expected)
    assert same(bad.export(), left)
