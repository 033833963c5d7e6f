"""Every request ends within a bound on steps, whoever takes places away and whoever comes after."""

from __future__ import annotations

import numpy as np
import pytest
from engines import engine, request
from graphs import examples
from hypothesis import given
from hypothesis import strategies as st
from scripted import VOCABULARY, tiny_program

from cortiq.backend import (
    Argmax,
    BatchResult,
    Digest,
    Draw,
    Finished,
    OptionalCapabilities,
    Outcome,
    Status,
)
from cortiq.engine import row_budget as schedule
from cortiq.engine.state_manager import StateManager
from cortiq.numerics.digest import digest

PATIENCE = 4
"""Instead of 256 steps, so that turns come in tests."""


class Rows:
    """A sequence's state: ids, and how many rows it has reserved of its owner's."""

    def __init__(self, owner, limit):
        self.owner, self.limit, self.reserved, self.tokens = owner, limit, 0, []

    def length(self, entry="trunk"):
        return len(self.tokens)

    def reserve(self, rows):
        wanted = len(self.tokens) + rows
        if wanted - self.reserved > self.owner.free:
            return False
        self.owner.free -= wanted - self.reserved
        self.reserved = wanted
        return True

    def rewind(self, length, entry="trunk"):
        del self.tokens[length:]
        return length

    def release(self):
        self.owner.free += self.reserved
        self.reserved = 0


class Memory(OptionalCapabilities):
    """An executable with room for so many rows; the token after position p is (7p + 3) mod 250."""

    asynchronous = False

    def __init__(self, rows):
        self.program, self.free, self.fed = tiny_program(128), rows, 0
        self.placement = {node.name: "memory" for node in self.program.trunk.nodes}

    def open(self, limit):
        return Rows(self, limit)

    def state_bytes(self, rows):
        return rows

    def free_bytes(self):
        return self.free

    def forward(self, batch):
        for row in batch.rows:
            assert row.position == len(row.state.tokens)
            row.state.tokens.append(row.token)
        self.fed += len(batch.rows)
        outcomes = {row.state: Outcome(Status.COMPLETED) for row in batch.rows}
        return Finished(BatchResult(outcomes, [self.answers(row) for row in batch.rows]))

    def answers(self, row):
        logits = np.zeros(VOCABULARY, np.float32)
        found = {Argmax: after(row.position), Draw: after(row.position), Digest: digest(logits)}
        return {want: found[type(want)] for want in row.wants}


def after(position):
    return (7 * position + 3) % 250


def text(wanted):
    start = len(wanted.prompt)
    return tuple(after(p - 1) for p in range(start, start + wanted.max_tokens))


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Turns come soon; and places are looked for a bounded number of times in a step."""
    monkeypatch.setattr(schedule, "PATIENCE", PATIENCE)
    allocate = StateManager.allocate

    def counted(self, *given):
        self.looked = getattr(self, "looked", 0) + 1
        assert self.looked < 1000, "places are given and taken without a step"
        return allocate(self, *given)

    monkeypatch.setattr(StateManager, "allocate", counted)


def step(mine):
    mine._states.looked = 0
    return mine.step()


def rows_of(wanted):
    """Rows that a request feeds at most: all of them at first, and again for every token."""
    return (wanted.max_tokens + 2) * wanted.limit


REQUESTS = st.builds(
    lambda length, tokens, priority: (request([5] * length, tokens), priority),
    st.integers(1, 24), st.integers(1, 6), st.integers(-1, 2),
)  # fmt: skip
MOVES = st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0, 0, 0, 1, 3, 9])), max_size=4)


@given(
    wanted=st.lists(REQUESTS, min_size=1, max_size=6),
    later=st.lists(st.tuples(st.integers(0, 60), REQUESTS), max_size=6),
    moves=st.lists(MOVES, min_size=1, max_size=5),
    room=st.integers(30, 70),
    rows=st.sampled_from([1, 2, 4, 64]),
    sequences=st.integers(1, 4),
)
@examples(25)
def test_an_adversary_without_end_ends_nobody(wanted, later, moves, room, rows, sequences):
    """It takes rows or places of running sequences at every step, for ever: every text ends, is
    what it must be, and no more rows are fed than a loss for each token explains."""
    on = Memory(room)
    coming, made, steps = list(later), [], 0
    with engine(on, batch_rows=rows, sequences=sequences) as mine:
        made += [mine.submit(one, priority=priority) for one, priority in wanted]
        bound = sum(rows_of(one) for one, _ in [*wanted, *(r for _, r in later)]) + 60
        while not mine.idle or coming:
            for when, (one, priority) in [c for c in coming if c[0] <= steps]:
                made.append(mine.submit(one, priority=priority))
                coming.remove((when, (one, priority)))
            for which, keep in moves[steps % len(moves)]:
                if mine.running:
                    mine.preempt(mine.running[which % len(mine.running)], keep)
            fed = on.fed
            step(mine)
            steps += 1
            assert on.fed > fed or mine.idle, "a step that fed no row"
            assert steps <= bound
    assert on.free == room
    for one in made:
        assert one.error is None and tuple(one.output.token_ids) == text(one.request)
        assert one.stats.preempted <= one.request.max_tokens


@given(
    length=st.integers(1, 12),
    tokens=st.integers(1, 4),
    others=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(-1, 1)),
                    min_size=1, max_size=4),
    room=st.integers(16, 40),
    rows=st.sampled_from([1, 2, 3, 16]),
    sequences=st.integers(1, 4),
    adversary=st.booleans(),
)  # fmt: skip
@examples(30)
def test_one_request_ends_though_others_never_stop_coming(
    length, tokens, others, room, rows, sequences, adversary
):
    """A row within a turn of everybody and the patience that priorities are worth, each time."""
    on = Memory(room)
    turn = 3 * PATIENCE + sequences + len(others) + 3
    with engine(on, batch_rows=rows, sequences=sequences) as mine:
        mine.submit(request([5], 3))
        step(mine)
        old = mine.submit(request([5] * length, tokens))
        bound = rows_of(old.request) * turn
        for _ in range(bound + 1):
            while len(mine.waiting) < 3:
                size, count, priority = others[mine._numbers % len(others)]
                mine.submit(request([5] * size, count), priority=priority)
            if adversary and old in mine.running:
                mine.preempt(old)
            step(mine)
            if old.done:
                break
        for one in [*mine.waiting, *mine.running]:
            one.cancel()
    assert old.error is None and tuple(old.output.token_ids) == text(old.request)


def test_the_most_urgent_does_not_get_back_the_place_that_was_taken_from_it():
    """One that was not served for long is more urgent than who takes places: it keeps its own."""
    on = Memory(70)
    with engine(on, batch_rows=1, sequences=3) as mine:
        hog = mine.submit(request([5], 40), priority=3)
        low = mine.submit(request([5] * 8, 10))
        for _ in range(2 * PATIENCE + 2):
            step(mine)
        mine.submit(request([5] * 8, 20), priority=1)
        step(mine)
        assert low in mine.running and hog in mine.running and low.stats.preempted == 0
        mine.run()


@pytest.mark.parametrize("priority", [0, 1])
def test_a_prompt_is_fed_though_decoding_sequences_fill_every_batch(priority):
    on = Memory(90)
    with engine(on, batch_rows=2, sequences=4) as mine:
        old = mine.submit(request([5] * 12, 3))
        for _ in range(12 * (3 * PATIENCE + 8)):
            while len(mine.waiting) + len(mine.running) < 4:
                mine.submit(request([5], 5), priority=priority)  # decodes from its first row on
            step(mine)
        assert old.done and tuple(old.output.token_ids) == text(old.request)
        for one in [*mine.waiting, *mine.running]:
            one.cancel()


def test_a_loss_is_made_up_for_before_the_next():
    on = Memory(64)
    with engine(on, batch_rows=4) as mine:
        one = mine.submit(request([5] * 20, 8))
        for _ in range(2):
            mine.step()
        mine.preempt(one)
        assert one.state is None and one.stats.preempted == 1
        for keep in (0, 1, 0, 5):
            mine.step()
            fed, drawn = one.fed, one.generated
            mine.preempt(one, keep)
            assert (one.fed, one.stats.preempted) == (fed, 1) or drawn
        while not one.generated:
            mine.step()
        mine.preempt(one)
        assert one.stats.preempted == 2
        mine.run()
    assert tuple(one.output.token_ids) == text(one.request)
