"""Whoever computes its nodes, a program gives the bits of the reference alone."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from chains import CHAINS, IDS, PENALISED, WANTS, alone, feed, placed_by_name, rows, same
from hypothesis import given, settings
from hypothesis import strategies as st
from small_program import CONTEXT, VOCABULARY

from cortiq.backend import Argmax, Batch, Digest, Draw, Drawn, Named, Row, State, Status

CUT_DIFFERENTLY = (
    "linear and norm", "attention layer", "store without attend", "conv and route",
    "delta rule only", "draft only", "in three", "beside a shared slot",
)  # fmt: skip
"""Chains whose parts hold different kinds of slots: what is said of states holds on these."""
every_chain = pytest.mark.parametrize("kind", CHAINS)
chains_of_states = pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=[] if k in CUT_DIFFERENTLY else pytest.mark.slow) for k in CHAINS],
)


@pytest.fixture(scope="module")
def expected() -> list[dict]:
    """Return the reference's own results for every row of IDS."""
    executable = alone()
    answers = feed(executable, executable.open(CONTEXT), IDS)
    assert len({row[Digest()] for row in answers}) == len(IDS)
    assert all(np.abs(row[Named("logits")]).max() > 0.1 for row in answers)
    return answers


@every_chain
def test_in_chunks_of_any_size(kind: str, expected: list[dict]) -> None:
    executable = CHAINS[kind]()
    for size in (1, 4, len(IDS)):
        state = executable.open(CONTEXT)
        chunks = [IDS[i : i + size] for i in range(0, len(IDS), size)]
        assert same([r for c in chunks for r in feed(executable, state, c)], expected)


@chains_of_states
def test_rows_that_want_nothing_change_nothing(kind: str, expected: list[dict]) -> None:
    executable = CHAINS[kind]()
    state = executable.open(CONTEXT)
    assert feed(executable, state, IDS[:-1], ()) == [{}] * (len(IDS) - 1)
    assert same(feed(executable, state, IDS[-1:]), expected[-1:])


@every_chain
def test_in_a_batch_of_others(kind: str, expected: list[dict]) -> None:
    executable = CHAINS[kind]()
    first, second, third = (executable.open(CONTEXT) for _ in range(3))
    feed(executable, third, [8, 8, 8])
    batch = Batch([*rows(first, IDS), *rows(third, [1, 2]), *rows(second, IDS[:5])])
    result = executable.forward(batch).result()
    assert {o.status for o in result.outcomes.values()} == {Status.COMPLETED}
    assert same(list(result.rows[: len(IDS)]), expected)
    assert same(list(result.rows[len(IDS) + 2 :]), expected[:5])


@chains_of_states
def test_rewind_is_never_having_gone_ahead(kind: str, expected: list[dict]) -> None:
    executable = CHAINS[kind]()
    state = executable.open(CONTEXT)
    feed(executable, state, [*IDS[:6], 40, 41, 42])
    assert state.rewind(6) == state.length() == 6
    assert same(feed(executable, state, IDS[6:]), expected[6:])


@chains_of_states
def test_snapshot_and_restore(kind: str, expected: list[dict]) -> None:
    executable = CHAINS[kind]()
    state = executable.open(CONTEXT)
    feed(executable, state, IDS[:6])
    snapshot = state.snapshot()
    for _ in range(2):
        feed(executable, state, [40, 41, 42])
        state.restore(snapshot)
        assert state.length() == 6
    assert same(feed(executable, state, IDS[6:]), expected[6:])


@chains_of_states
def test_a_fork_is_separate(kind: str, expected: list[dict]) -> None:
    executable = CHAINS[kind]()
    state = executable.open(CONTEXT)
    feed(executable, state, IDS[:9])
    fork, earlier = state.fork(), state.fork(4)
    assert (fork.length(), earlier.length()) == (9, 4)
    feed(executable, fork, [40, 41])
    assert same(feed(executable, earlier, IDS[4:]), expected[4:])
    earlier.release()
    assert same(feed(executable, state, IDS[9:]), expected[9:])


@chains_of_states
def test_a_sequence_moves_between_executables(kind: str, expected: list[dict]) -> None:
    chain, whole = CHAINS[kind](), alone()
    for source, target in ((chain, whole), (whole, chain), (chain, CHAINS[kind]())):
        state = source.open(CONTEXT)
        feed(source, state, IDS[:7])
        exported = state.export()
        assert exported.lengths == {"trunk": 7}
        assert exported.tokens.tolist() == IDS[:7]
        moved = target.import_(exported, CONTEXT)
        assert same(feed(target, moved, IDS[7:]), expected[7:])


@every_chain
def test_exports_are_those_of_the_whole(kind: str) -> None:
    chain, whole = CHAINS[kind](), alone()
    ours, theirs = chain.open(CONTEXT), whole.open(CONTEXT)
    feed(chain, ours, IDS)
    feed(whole, theirs, IDS)
    slots, wanted = ours.export().slots, theirs.export().slots
    assert set(slots) == set(wanted)
    for name, rows_ in wanted.items():
        planes = vars(rows_) if hasattr(rows_, "key_high") else {"": rows_}
        other = vars(slots[name]) if hasattr(rows_, "key_high") else {"": slots[name]}
        assert all(same(planes[k], other[k]) for k in planes), name


@chains_of_states
@pytest.mark.parametrize("want", [Argmax(), Draw(PENALISED)])
def test_chained_draws_are_those_driven_from_the_host(kind: str, want: Any) -> None:
    chain, whole = CHAINS[kind](), alone()
    state, other = whole.open(CONTEXT), chain.open(CONTEXT)
    token = feed(whole, state, IDS, (want,))[-1][want]
    driven = []
    for _ in range(4):
        driven.append(token)
        token = feed(whole, state, [token], (want,))[0][want]
    tickets = [chain.forward(Batch(rows(other, IDS, (want,))))]
    for last in (len(IDS) - 1, 0, 0):
        tickets.append(chain.forward(Batch(rows(other, [Drawn(last)], (want,)))))
    assert [ticket.result().rows[-1][want] for ticket in tickets] == driven


@every_chain
def test_an_embedding_can_be_given(kind: str, expected: list[dict]) -> None:
    chain, whole = CHAINS[kind](), alone()
    probe = whole.open(CONTEXT)
    given = feed(whole, probe, [17], (Named("embed"),))[0][Named("embed")]
    answers = []
    for executable in (chain, whole):
        state = executable.open(CONTEXT)
        feed(executable, state, IDS[:3])
        row = Row(state, 3, IDS[3], WANTS, {"embed": given})
        answers.append(executable.forward(Batch([row])).result().rows[0])
    assert same(*map(dict, answers))
    assert not same(dict(answers[0]), expected[3])


@chains_of_states
def test_a_second_entry_graph(kind: str) -> None:
    answers = []
    for executable in (CHAINS[kind](head=True), alone(head=True)):
        state = executable.open(CONTEXT)
        hidden = Named("hidden")
        trunk = feed(executable, state, IDS, (hidden, Digest()))
        drafts = [
            Row(state, i, IDS[i], (Digest(), Argmax()), {"hidden": trunk[i][hidden]})
            for i in range(8)
        ]
        first = executable.forward(Batch(drafts, "draft")).result().rows
        assert (state.length(), state.length("draft")) == (len(IDS), 8)
        assert state.rewind(5, "draft") == 5
        again = executable.forward(Batch(drafts[5:], "draft")).result().rows
        assert same(list(map(dict, again)), list(map(dict, first[5:])))
        answers.append([*map(dict, first), *feed(executable, state, [1, 2])])
    assert same(*answers)


def poisoned(state: State, width: int = 32) -> Row:
    return Row(state, state.length(), 1, WANTS, {"embed": np.full(width, np.inf, np.float32)})


@chains_of_states
def test_a_failing_sequence_is_cleared_and_concerns_no_other(
    kind: str, expected: list[dict]
) -> None:
    executable = CHAINS[kind]()
    good, bad, late = (executable.open(CONTEXT) for _ in range(3))
    feed(executable, bad, IDS)
    batch = Batch([*rows(good, IDS[:5]), poisoned(bad), *rows(late, IDS)])
    result = executable.forward(batch).result()
    assert result.outcomes[bad].status is Status.FAILED
    assert result.outcomes[bad].reason
    assert result.rows[5] == {}
    assert same([dict(r) for r in (*result.rows[:5], *result.rows[6:])], expected[:5] + expected)
    assert bad.length() == 0
    assert same(feed(executable, bad, IDS), expected)
    assert same(feed(executable, good, IDS[5:]), expected[5:])


@chains_of_states
def test_what_cannot_be_done_is_declined_before_anything_moves(
    kind: str, expected: list[dict]
) -> None:
    executable = CHAINS[kind]()
    state, other = executable.open(len(IDS)), executable.open(CONTEXT)
    feed(executable, state, IDS[:5])
    refused = [
        [Row(state, 6, 1)],
        [Row(state, 5, 1), Row(state, 7, 1)],
        [Row(state, 5, VOCABULARY)],
        [Row(state, 5, Drawn(99))],
        [Row(state, 5 + i, 1) for i in range(11)],
    ]
    for bad in refused:
        batch = Batch([*bad, *rows(other, [IDS[other.length()]])])
        result = executable.forward(batch).result()
        assert result.outcomes[state].status is Status.DECLINED
        assert result.outcomes[other].status is Status.COMPLETED
        assert result.rows[0] == {}
        assert same(dict(result.rows[-1]), expected[other.length() - 1])
        assert state.length() == 5
    assert same(feed(executable, state, IDS[5:]), expected[5:])


@chains_of_states
def test_memory_is_reserved_in_all_parts_or_declined(kind: str) -> None:
    executable = CHAINS[kind]()
    assert executable.state_bytes(64) >= alone().state_bytes(64)
    state = executable.open(64)
    assert state.limit == 64
    assert state.reserve(64)
    assert not state.reserve(65)
    assert executable.free_bytes() > 0


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), share=st.integers(1, 9))
def test_any_choice_of_nodes_gives_the_same_bits(
    expected: list[dict], seed: int, share: int
) -> None:
    executable = placed_by_name(lambda node: zlib.crc32(node.name.encode(), seed) % 10 < share)
    state = executable.open(CONTEXT)
    answers = [row for ids in (IDS[:6], IDS[6:]) for row in feed(executable, state, ids)]
    assert same(answers, expected)
