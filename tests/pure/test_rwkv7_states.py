"""Sequences of RWKV-7 in pieces, going back, branching off and drafted."""

from __future__ import annotations

import engines
import numpy as np
import pytest
from rounds import forward

from cortiq.backend import Digest
from cortiq.engine.prefixes import PrefixCache


def run(executable, state, start, ids):
    return forward(executable, state, start, ids, [Digest("logits")] * len(ids))


@pytest.fixture(scope="module")
def straight():
    """The ids of a sequence, and what the reference gives in one piece."""
    ids = np.random.default_rng(5).integers(0, 320, 70).tolist()
    executable = engines.executable("reference", "mini-rwkv7")
    return ids, run(executable, executable.open(512), 0, ids)


@pytest.mark.parametrize("backend", engines.backends())
def test_chunks_a_rewind_and_a_fork_give_the_bits_of_the_reference(straight, backend):
    (ids, wanted), executable = straight, engines.executable(backend, "mini-rwkv7")
    state = executable.open(512)
    first = run(executable, state, 0, ids[:33])
    assert first + run(executable, state, 33, ids[33:66]) == wanted[:66]
    run(executable, state, 66, [1, 2, 3])
    assert state.rewind(66) == 66
    fork = state.fork()
    assert run(executable, state, 66, ids[66:]) == wanted[66:]
    assert run(executable, fork, 66, ids[66:]) == wanted[66:]


def test_drafts_and_a_kept_prefix_change_nothing():
    on = engines.executable("cpu", "mini-rwkv7")
    wanted = engines.request(engines.prompt(3, 40), max_tokens=10)
    plain = engines.alone(on, wanted)
    drafter = engines.oracle([*wanted.prompt, *plain[0]], lambda place, i: i >= 2)
    cache = PrefixCache(on, 4)
    with engines.engine(on, prefixes=cache) as mine:
        for _ in range(2):
            sequence = mine.submit(wanted, speculation=engines.speculation(drafter, 3))
            mine.run()
            assert engines.facts(sequence) == plain
    cache.clear()
