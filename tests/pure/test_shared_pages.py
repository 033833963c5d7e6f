"""Forks and snapshots share pages until somebody writes; rings keep what is needed and no more."""

from __future__ import annotations

import gc
import random

import numpy as np
import pytest
from engines import executable, prompt
from sequences import alone, feed, same

from cortiq.backend.windows import ROLLBACK_ROWS
from cortiq.errors import BackendError

pytest.importorskip("cortiq_cpu")
try:
    from cortiq_cpu.native import supported_isas

    supported_isas()
except BackendError as error:
    pytest.skip(str(error), allow_module_level=True)

PAGE = 64
IDS = prompt(1, 5 * PAGE - 10)


@pytest.fixture(params=["tiny-llama", "tiny-lfm2"])
def on(request):
    return executable("cpu", request.param, memory_limit=1 << 26)


def pages_of(on):
    """Pages of rows that there are."""
    return sum(on.pages.counts[group.number] for group in on.layout.groups)


def test_fork_shares_whole_pages_and_copies_the_one_that_is_written(on):
    gc.collect()
    before, free = pages_of(on), on.free_bytes()
    state = on.open(512)
    feed(on, state, IDS, ())
    assert pages_of(on) == before + 5
    children = [state.fork() for _ in range(3)]
    assert pages_of(on) == before + 5
    feed(on, children[0], [1])
    assert pages_of(on) == before + 6
    feed(on, state, [2])
    assert pages_of(on) == before + 7
    for holder in (*children, state):
        holder.release()
    assert (pages_of(on), on.free_bytes()) == (before, free)


def test_snapshots_give_their_pages_back_when_they_are_forgotten(on):
    gc.collect()
    before = pages_of(on)
    state = on.open(512)
    feed(on, state, IDS, ())
    snapshot = state.snapshot()
    state.release()
    assert pages_of(on) == before + 5
    other = on.open(512)
    other.restore(snapshot)
    del snapshot
    gc.collect()
    assert pages_of(on) == before + 5
    assert same(feed(on, other, [3]), alone(on, [*IDS, 3])[0][-1:])
    other.release()
    assert pages_of(on) == before


def test_a_family_of_forks_at_any_length_each_goes_on_as_if_alone(on):
    chance = random.Random(7)
    known = [(on.open(512), [])]
    for _ in range(60):
        state, ids = chance.choice(known)
        move = chance.random()
        if move < 0.5 and len(ids) < 300:
            more = prompt(chance.randrange(10**6), chance.choice([1, 3, 40, 70]))
            feed(on, state, more, ())
            ids += more
        elif move < 0.75 and len(known) < 8:
            known.append((state.fork(), list(ids)))
        elif ids:
            reached = state.rewind(chance.randrange(max(0, len(ids) - ROLLBACK_ROWS), len(ids)))
            del ids[reached:]
    for state, ids in known:
        brought, left = alone(on, [*ids, 9])
        assert same(feed(on, state, [9]), brought[-1:])
        assert same(state.export(), left)
        state.release()


def test_rings_do_not_grow_with_the_text_and_go_back_as_far_as_they_say():
    on = executable("cpu", "tiny-lfm2", memory_limit=1 << 26)
    state = on.open(512)
    feed(on, state, IDS, ())
    held = on.pages.nbytes - pages_of(on) * on.layout.page_bytes
    length = len(IDS)
    rings = on.layout.fixed.values()
    assert held == sum(4 * (slot.length + ROLLBACK_ROWS) * slot.width for slot in rings)
    assert state.rewind(length - ROLLBACK_ROWS) == length - ROLLBACK_ROWS
    back = feed(on, state, IDS[length - ROLLBACK_ROWS :])
    assert same(back, alone(on, IDS)[0][-ROLLBACK_ROWS:])
    assert state.rewind(length - ROLLBACK_ROWS - 1) == 0
    assert same(feed(on, state, IDS[:5]), alone(on, IDS[:5])[0])
    assert on.pages.nbytes - pages_of(on) * on.layout.page_bytes == held
    state.release()


def test_fork_needs_no_memory_for_pages_it_shares():
    on = executable("cpu", memory_limit=6 * executable("cpu").layout.page_bytes)
    state = on.open(512)
    feed(on, state, IDS, ())
    child = state.fork()
    assert child.reserve(64 - len(IDS) % 64)
    assert not child.reserve(200)
    assert np.array_equal(child.export().tokens, IDS)
    child.release(), state.release()
