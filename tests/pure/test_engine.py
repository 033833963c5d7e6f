"""The engine: whoever rides in a batch, and whatever is drafted, no token changes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from engines import (
    PENALISED,
    SEEDED,
    WAYS,
    Deferred,
    Scripted,
    alone,
    backends,
    engine,
    executable,
    facts,
    oracle,
    prompt,
    request,
    speculation,
)
from scripted import END, ScriptedExecutable
from small_program import bound, small_program

from cortiq.backend import CompileOptions
from cortiq.engine.cache_roles import CachePoint, CacheRole
from cortiq.engine.drafting import Speculation
from cortiq.engine.policy.adaptive import AdaptiveDepthFactory, DepthLimits
from cortiq.engine.prefixes import PrefixCache
from cortiq.engine.row_budget import RowDemand, RowGrant, divide_rows, urgency
from cortiq.errors import BackendError, RequestError, SequenceFailedError

MODELS = ("tiny-llama", "tiny-lfm2")
EVERYWHERE = [(backend, model) for backend in backends() for model in MODELS]


def sixteen():
    """Requests of many lengths, ways to draw, and ends."""
    ways = list(WAYS.values())
    return [
        request(prompt(i, 3 + 7 * i % 90), 4 + i, chunk_rows=[5, 64, 256][i % 3], **ways[i % 3])
        for i in range(16)
    ]


@pytest.mark.parametrize(("backend", "model"), EVERYWHERE)
def test_batch_of_sixteen_in_any_order_is_each_one_alone(backend, model):
    on, wanted = executable(backend, model), sixteen()
    wanted = wanted if backend == "cpu" else wanted[::2]
    count = len(wanted)
    expected = [alone(on, one) for one in wanted]
    for seed, rows in ((1, 256), (2, 20))[backend != "cpu" :]:
        chance = random.Random(seed)
        order = list(range(count))
        chance.shuffle(order)
        found = {}
        with engine(on, batch_rows=rows, sequences=chance.choice([3, 16])) as mine:
            for index in order:
                found[index] = mine.submit(wanted[index], priority=chance.randrange(3))
                for _ in range(chance.randrange(3)):
                    mine.step()
            mine.run()
        assert [facts(found[i]) for i in range(count)] == expected


@pytest.mark.parametrize("model", MODELS)
def test_batches_submitted_ahead_change_nothing(model):
    """On a slow device, with marks, kept prefixes, cancels, priorities and little memory."""
    on = executable("cpu", model)
    wanted = [replace(one, cache_points=(CachePoint(9, CacheRole.SYSTEM),)) for one in sixteen()]
    expected = [alone(on, one) for one in wanted]
    limited = executable("cpu", model, memory_limit=9 * on.state_bytes(64))
    device = Deferred(limited)
    cache = PrefixCache(device, 3)
    with engine(device, prefixes=cache, batch_rows=40) as mine:
        made = [mine.submit(one, priority=i % 2) for i, one in enumerate(wanted)]
        for victim in made[::5]:
            again = mine.submit(victim.request)
            mine.step()
            again.cancel()
        mine.run()
        assert [facts(one) for one in made] == expected
        drafted = mine.submit(wanted[0], speculation=speculation(Scripted(lambda i, n: [1]), 2))
        mine.run()
    assert facts(drafted) == expected[0]
    assert device.most == 2 and device.pending == []
    cache.clear()


class Timed:
    """Computes; a batch takes a second, and a fifth more for every further row."""

    def __init__(self, inner):
        self.inner, self.seconds = inner, 0.0

    def forward(self, batch):
        self.seconds += 1 + 0.2 * (len(batch.rows) - 1)
        return self.inner.forward(batch)


@pytest.mark.parametrize("honest", [False, True])
def test_steps_run_ahead_while_a_drafter_rests(honest):
    on, wanted = executable("cpu", "tiny-llama"), request(prompt(3, 20), 120)
    expected, device, ahead = alone(on, wanted), Deferred(on), []
    device.inner = timed = Timed(on)
    drafter = oracle([*wanted.prompt, *expected[0]], lambda place, i: not honest)
    drafted = Speculation(drafter, AdaptiveDepthFactory(DepthLimits(start=1)))
    with engine(device, clock=lambda: timed.seconds) as mine:
        made = mine.submit(wanted, speculation=drafted, record=True)
        while mine.step():
            ahead.append(len(device.pending))
    assert facts(made) == expected
    assert ahead.count(1) > 90 if not honest else ahead.count(1) < 9
    assert sum(r.wall_seconds for r in made.rounds) <= timed.seconds  # no second counts twice
    plain = [r.wall_seconds for r in made.rounds if r.generated > 12 and not r.proposed]
    assert all(seconds == pytest.approx(1.0) for seconds in plain)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("backend", "model"), EVERYWHERE)
def test_no_drafter_at_any_depth_changes_a_token(backend, model, way):
    on, wanted = executable(backend, model), request(prompt(3, 20), 24, **WAYS[way])
    expected = alone(on, wanted)
    truth = [*wanted.prompt, *expected[0]]
    chance = random.Random(4)
    drafters = {
        "right": oracle(truth, lambda place, i: False),
        "wrong": oracle(truth, lambda place, i: True),
        "right until 2": oracle(truth, lambda place, i: i >= 2),
        "random": Scripted(lambda ids, count: [chance.randrange(320) for _ in range(count)]),
        "silent": Scripted(lambda ids, count: []),
        "too much": Scripted(lambda ids, count: [1] * (count + 3)),
        "no ids": Scripted(lambda ids, count: [5, -1, 10**9]),
    }
    for depth in (1, 3, 8) if backend == "cpu" else (3,):
        for name, drafter in drafters.items():
            with engine(on) as mine:
                made = mine.submit(wanted, speculation=speculation(drafter, depth))
                mine.run()
            assert facts(made) == expected, (name, depth)
            drafts = made.stats.drafts
            if name == "right":
                assert drafts.accepted == drafts.drafted > 0
                rounds = drafts.drafters["script"].rounds + drafts.plain_rounds
                assert rounds == 1 + -(-23 // (depth + 1))
            if name == "wrong":
                assert drafts.accepted == 0 < drafts.drafted
            assert [d.closed for d in drafter.opened] == [1]
            drafter.opened.clear()


@pytest.mark.parametrize("backend", backends())
def test_drafts_and_kept_prefixes_over_every_kind_of_slot(backend):
    """Rows, a ring and a recurrence in one model."""
    program, weights = bound(small_program())
    on = backends()[backend]().compile(program, weights, CompileOptions(threads=1))
    chance = random.Random(3)
    cache = PrefixCache(on, 4)
    with engine(on, prefixes=cache, batch_rows=40) as mine:
        made, expected = [], []
        for number in range(6):
            ids = (*(7 * i % 50 for i in range(12 + 3 * number)), number)
            wanted = replace(request([1], 16, **PENALISED), prompt=ids)
            wanted = replace(wanted, cache_points=(CachePoint(10, CacheRole.SYSTEM),))
            expected.append(alone(on, wanted))
            truth = [*ids, *expected[-1][0]]
            drafter = oracle(truth, lambda place, i: chance.random() < 0.3)
            drafter.answer = lambda ids, count, known=drafter.answer: [
                t % 50 for t in known(ids, count)
            ]
            made.append(mine.submit(wanted, speculation=speculation(drafter, 3)))
            mine.step()
        mine.run()
    assert [facts(one) for one in made] == expected
    assert sum(one.stats.drafts.accepted for one in made) > 20
    assert sum(one.stats.reused_tokens for one in made) > 20
    cache.clear()
    on.close()


@pytest.mark.parametrize("copies", [True, False])
def test_states_that_cannot_go_back_are_restored_or_fed_again(monkeypatch, copies):
    """A rewind may reach nothing: with a copy of before the round only its rows are fed again."""
    on, wanted = executable("reference"), request(prompt(3, 20), 24, **PENALISED)
    expected = alone(on, wanted)
    drafter = oracle([*wanted.prompt, *expected[0]], lambda place, i: place % 3 == 0)
    kind = type(on.open(8))
    plain = kind.rewind

    def rewind(self, length, entry="trunk"):
        return plain(self, 0 if length < self.length(entry) else length, entry)

    monkeypatch.setattr(kind, "rewind", rewind)
    rows = []
    forward = on.forward
    monkeypatch.setattr(on, "forward", lambda batch: rows.append(len(batch.rows)) or forward(batch))
    with engine(on) as mine:
        mine._costly = copies
        made = mine.submit(wanted, speculation=speculation(drafter, 4))
        mine.run()
    assert facts(made) == expected
    assert made.stats.drafts.accepted > 0
    assert (sum(rows) < 110) == copies
    assert not copies or max(rows[1:]) <= 5


def test_accepted_counts_are_the_planted_pattern():
    on, wanted = executable(), request(prompt(3, 20), 60, **SEEDED)
    truth = [*wanted.prompt, *alone(on, wanted)[0]]
    drafter = oracle(truth, lambda place, i: place % 5 == 0)
    with engine(on) as mine:
        made = mine.submit(wanted, speculation=speculation(drafter, 4), record=True)
        mine.run()
    position = len(wanted.prompt)
    assert made.rounds[0].proposed == 0  # the prompt's own step
    position += 1
    for found in made.rounds[1:]:
        held = 0
        while held < found.proposed and (position + held) % 5:
            held += 1
        assert (found.position, found.accepted) == (position, held)
        position += held + 1
    assert sum(r.emitted for r in made.rounds) == 60
    tally = made.stats.drafts.as_dict()["drafters"]["script"]
    assert tally["drafted"] == sum(int(n[0]) for n in tally["by_depth"].values())
    assert tally["accepted"] == sum(int(k) * n for k, n in tally["accepted_lengths"].items())


@pytest.mark.parametrize("way", WAYS)
def test_text_that_ends_inside_a_round_ends_there(way):
    on = executable()
    base = request(prompt(3, 20), 24, **WAYS[way])
    tokens = alone(on, base)[0]
    truth = [*base.prompt, *tokens]
    for end in (1, 5, 6, 7):
        wanted = replace(base, end_ids=frozenset({tokens[end]}))
        expected = alone(on, wanted)
        assert expected[2] == "stop"
        with engine(on) as mine:
            drafter = oracle(truth, lambda place, i: False)
            made = mine.submit(wanted, speculation=speculation(drafter, 8), record=True)
            mine.run()
        assert facts(made) == expected
        assert sum(r.emitted for r in made.rounds) == len(expected[0])


def test_drafters_see_what_the_target_kept_and_nothing_else():
    on, wanted = executable(), request(prompt(3, 20), 24, chunk_rows=7)
    truth = [*wanted.prompt, *alone(on, wanted)[0]]
    drafter = oracle(truth, lambda place, i: place % 3 == 0)
    with engine(on) as mine:
        mine.submit(wanted, speculation=speculation(drafter, 4))
        mine.run()
    fed = drafter.opened[0].fed
    assert [start for start, _ in fed] == [0, *(s + n for s, n in fed[:-1])]
    assert sum(n for _, n in fed) == 20 + 24 - 1


def test_drafter_that_fails_is_used_no_further_and_named():
    def broken(ids, count):
        raise ValueError("no idea")

    on, wanted = executable(), request(prompt(3, 20), 12)
    drafter = Scripted(broken)
    with engine(on) as mine:
        made = mine.submit(wanted, speculation=speculation(drafter, 4))
        mine.run()
    assert facts(made) == alone(on, wanted)
    assert made.stats.drafts.error == "ValueError: no idea"
    assert drafter.opened[0].closed == 1


def test_confidence_and_trace_have_one_true_entry_a_token_also_for_drafted_ones():
    on = executable()
    options = {"confidence": True, "trace": True, "calibration": 1.5, **PENALISED}
    wanted = request(prompt(3, 20), 24, **options)
    with engine(on) as mine:
        plain = mine.submit(wanted)
        mine.run()
        truth = plain.ids
        drafter = oracle(truth, lambda place, i: place % 4 == 0)
        drafted = mine.submit(wanted, speculation=speculation(drafter, 6))
        mine.run()
    assert facts(plain) == facts(drafted) == alone(on, request(prompt(3, 20), 24, **PENALISED))
    for made in (plain, drafted):
        assert len(made.output.confidence) == len(made.output.trace) == 24
        assert [row.index for row in made.output.trace] == list(range(24))
        assert [row.token_id for row in made.output.trace] == made.output.token_ids
        assert [row.confidence for row in made.output.trace] == made.output.confidence
        assert all(0 < p <= 1 for p in made.output.confidence)
    assert plain.output.confidence == drafted.output.confidence
    from_draft = [row.drafter for row in drafted.output.trace].count("script")
    assert from_draft == drafted.stats.drafts.accepted > 0
    assert not any(row.drafter for row in plain.output.trace)


def test_cancel_at_every_step_leaves_the_others_and_the_engine_alone():
    on = executable()
    first, second = request(prompt(1, 40), 10, chunk_rows=8), request(prompt(2, 9), 14, **SEEDED)
    expected, other = alone(on, first), alone(on, second)
    for steps in range(0, 14, 3):
        with engine(on) as mine:
            one, two = mine.submit(first), mine.submit(second)
            for _ in range(steps):
                mine.step()
            one.cancel()
            mine.run()
            assert one.output.finish_reason == ("cancelled" if steps < 13 else "length")
            assert tuple(one.output.token_ids) == expected[0][: len(one.output.token_ids)]
            assert facts(two) == other
            again = mine.submit(first)
            mine.run()
            assert facts(again) == expected


def test_preempted_and_rewound_sequences_feed_again_what_they_lost():
    on = executable()
    wanted = [request(prompt(i, 20), 20, **SEEDED) for i in range(3)]
    expected = [alone(on, one) for one in wanted]
    with engine(on) as mine:
        made = [mine.submit(one) for one in wanted]
        for keep in (0, 7, 1, 30):
            for _ in range(4):
                mine.step()
            mine.preempt(made[keep % 3], keep)
        mine.run()
    assert [facts(one) for one in made] == expected
    assert sum(one.stats.preempted for one in made) == 1


def test_batches_smaller_than_a_replay_get_it_done():
    on, wanted = executable(), request(prompt(1, 20), 30)
    with engine(on, batch_rows=4) as mine:
        made = mine.submit(wanted)
        while made.generated < 20:
            mine.step()
        mine.preempt(made, 25)
        for _ in range(40):
            mine.step()
        assert made.done
    assert facts(made) == alone(on, wanted)


def test_more_urgent_request_takes_the_memory_of_one_that_is_less_so():
    on = executable(memory_limit=executable().state_bytes(64) + 1000)
    with engine(on) as mine:
        low = mine.submit(request(prompt(1, 10), 40))
        for _ in range(6):
            mine.step()
        high = mine.submit(request(prompt(2, 10), 40, **SEEDED), priority=1)
        mine.step()
        assert (low.state, low.stats.preempted) == (None, 1)
        mine.run()
    assert facts(low) == alone(on, low.request) and facts(high) == alone(on, high.request)


def test_requests_wait_for_memory_and_one_that_never_fits_is_refused():
    on = executable(memory_limit=2 * executable().state_bytes(64) + 1000)
    with engine(on) as mine:
        made = [mine.submit(request(prompt(i, 10), 40)) for i in range(5)]
        mine.step()
        assert (len(mine.running), len(mine.waiting)) == (2, 3)
        mine.run()
        assert len({facts(one) for one in made}) == 5
        big = mine.submit(request(prompt(9, 10), 300))
        after = mine.submit(request(prompt(0, 10), 40))
        mine.run()
    assert isinstance(big.error, RequestError) and "positions take" in str(big.error)
    assert facts(after) == facts(made[0])
    assert on.free_bytes() > 2 * on.state_bytes(64)


def test_too_many_that_wait_are_refused():
    with engine(executable(), waiting=2) as mine:
        for _ in range(2):
            mine.submit(request([1, 2], 2))
        with pytest.raises(RequestError, match="2 requests are waiting"):
            mine.submit(request([1, 2], 2))


def test_failed_sequence_does_not_concern_its_neighbours_nor_the_engine():
    on = ScriptedExecutable(lambda p: END if p > 8 else 65, failing=[4], asynchronous=False)
    with engine(on) as mine:
        made = mine.submit(request([1, 2], 20))
        mine.run()
        assert isinstance(made.error, SequenceFailedError)
        on.failing.clear()
        made = mine.submit(request([1, 2], 5))
        mine.run()
        assert facts(made)[0] == (65,) * 5
    assert all(state.released for state in on.states)


def test_backend_that_raises_ends_the_batch_with_its_error_and_nothing_more():
    on = ScriptedExecutable(lambda p: 65, asynchronous=False)
    plain = on.forward
    with engine(on) as mine:
        made = mine.submit(request([1, 2], 5))
        on.forward = lambda batch: 1 / 0
        mine.run()
        assert isinstance(made.error, BackendError)
        on.forward = plain
        made = mine.submit(request([1, 2], 5))
        mine.run()
        assert facts(made)[2] == "length"
    assert all(state.released for state in on.states)


def test_a_text_that_repeats_itself_ends_as_a_loop():
    cycle = [65, 66, 67]
    on = ScriptedExecutable(lambda p: cycle[p % 3], asynchronous=False)
    with engine(on) as mine:
        made = mine.submit(request([1, 2], 50, loop_tokens=12))
        mine.run()
    assert (made.output.finish_reason, len(made.output.token_ids)) == ("loop", 12)
    assert facts(made)[0] == tuple(cycle[p % 3] for p in range(2, 14))


def test_rows_go_to_decoding_sequences_first_then_to_drafts_and_prompts():
    decoding = [RowDemand(1, 64, True, 4, (i, i)) for i in range(3)]
    prompts = [RowDemand(100, 64, False, 0, (0, 9)), RowDemand(5, 64, False, 0, (1, 10))]
    assert divide_rows(decoding, 256) == [RowGrant(1, 4)] * 3
    assert divide_rows([*decoding, *prompts], 23) == [
        RowGrant(1, 4), RowGrant(1, 4), RowGrant(1, 2), RowGrant(10), RowGrant(0),
    ]  # fmt: skip
    assert divide_rows([*decoding, *prompts], 2) == [
        RowGrant(1),
        RowGrant(1),
        RowGrant(),
        RowGrant(),
        RowGrant(),
    ]
    first = RowDemand(
        100, 64, False, 0, (-1, 9)
    )  # a prompt more urgent than all of them gets a row
    assert divide_rows([*decoding, first], 2) == [RowGrant(1), RowGrant(), RowGrant(), RowGrant(1)]
    assert divide_rows([*decoding, first], 1) == [RowGrant(), RowGrant(), RowGrant(), RowGrant(1)]
    assert divide_rows([*prompts], 256) == [RowGrant(64), RowGrant(5)]
    replay = RowDemand(20, 64, True, 4, (0, 0))
    assert divide_rows([replay, decoding[1]], 8) == [RowGrant(8), RowGrant()]
    assert divide_rows([replay], 22) == [RowGrant(20, 2)]


def test_nobody_waits_for_ever():
    """Whatever the priorities of those that keep coming, an old request's turn comes."""
    old = urgency(0, -2, 0)
    assert old > urgency(100, 3, 1)
    assert old < urgency(5 * 256 + 1, 3, 1)
