"""Drafters on real executables: whatever they draft, the text is the plain one."""

from __future__ import annotations

import pytest
from graphs import examples
from hypothesis import given
from hypothesis import strategies as st
from rounds import speculated

import cortiq
from cortiq.backend import Argmax, Draw
from cortiq.engine.drafters.combined import COPYING, CombinedDrafter, PolicyWithLookup
from cortiq.engine.drafters.lookup import LookupDrafter
from cortiq.engine.drafters.model import ModelDrafter
from cortiq.engine.drafters.scripted import ScriptedDrafter, planted, replayed
from cortiq.engine.drafting import FixedDepth, Round, Task
from cortiq.errors import RequestError
from cortiq.numerics.sampling import Sampling

PROMPT = [1, 5, 9, 200, 77, 3, 5, 9]
COUNT = 40
SAMPLINGS = {
    "greedy": None,
    "sampled": Sampling(temperature=0.9, top_p=0.95, seed=11),
    "penalised": Sampling(0.8, repetition_penalty=1.4, frequency_penalty=0.2, seed=3),
}


@pytest.fixture(scope="module", params=["tiny-llama", "tiny-lfm2"])
def target(request):
    with cortiq.load(f"synthetic:{request.param}", backend="cpu", threads=1) as model:
        yield model.executable


@pytest.fixture(scope="module")
def other():
    with cortiq.load("synthetic:tiny-llama?seed=5", backend="cpu", threads=1) as model:
        yield model.executable


def asking(sampling):
    return (lambda ids: Argmax()) if sampling is None else (lambda ids: Draw(sampling))


def plain(executable, sampling, count=COUNT):
    nothing = ScriptedDrafter(lambda ids, wanted: [])
    return speculated(executable, PROMPT, asking(sampling), nothing, lambda i: 0, count).ids


@pytest.mark.parametrize("name", SAMPLINGS)
def test_model_that_is_the_target_drafts_what_the_target_draws(target, name):
    sampling = SAMPLINGS[name]
    drafter = ModelDrafter(target)
    trace = speculated(target, PROMPT, asking(sampling), drafter, lambda i: 1 + i % 4, COUNT)
    assert trace.ids == plain(target, sampling)
    assert trace.accepted == trace.drafted > 20


@pytest.mark.parametrize("name", SAMPLINGS)
def test_model_that_is_another_changes_nothing(target, other, name):
    sampling = SAMPLINGS[name]
    for drafter in (ModelDrafter(other), CombinedDrafter(ModelDrafter(other), extra=2)):
        trace = speculated(target, PROMPT, asking(sampling), drafter, lambda i: 5, COUNT)
        assert trace.ids == plain(target, sampling)
        assert trace.accepted < trace.drafted


@pytest.mark.parametrize("name", SAMPLINGS)
def test_lookup_changes_nothing_and_finds_repetitions(target, name):
    sampling = SAMPLINGS[name]
    trace = speculated(target, PROMPT, asking(sampling), LookupDrafter(), lambda i: 7, COUNT)
    assert trace.ids == plain(target, sampling)


def test_counts_are_those_of_the_pattern(target):
    expected = plain(target, None, 60)
    pattern = [3, 0, 4, 1, 2, 4, 0]
    script = planted(PROMPT + expected, lambda i: pattern[i % 7], 320)
    trace = speculated(target, PROMPT, asking(None), ScriptedDrafter(script), lambda i: 4, 60)
    assert trace.ids == expected
    full = [pattern[i % 7] for i, (proposed, _) in enumerate(trace.rounds) if proposed == 4]
    assert [accepted for proposed, accepted in trace.rounds if proposed == 4] == full
    right = ScriptedDrafter(replayed(PROMPT + expected))
    trace = speculated(target, PROMPT, asking(None), right, lambda i: 9, 60)
    assert trace.accepted == trace.drafted == 60 - 6
    assert len(trace.rounds) == 6


@examples(12)
@given(
    st.lists(st.integers(0, 319), max_size=7), st.lists(st.integers(0, 6), min_size=1), st.data()
)
def test_any_drafts_at_any_depth(target, wrong, depths, data):
    sampling = data.draw(st.sampled_from(list(SAMPLINGS.values())))
    expected = plain(target, sampling, 12)
    truth = PROMPT + expected

    def script(ids, count):
        right = data.draw(st.integers(0, count))
        return [*truth[len(ids) : len(ids) + right], *wrong][:count]

    drafter = ScriptedDrafter(script)
    depth = lambda i: depths[i % len(depths)]  # noqa: E731
    assert speculated(target, PROMPT, asking(sampling), drafter, depth, 12).ids == expected


def test_draft_model_feeds_each_committed_id_once(target):
    fed = []
    real = target.forward

    def counting(batch):
        fed.append(len(batch.rows))
        return real(batch)

    task = Task(tuple(PROMPT), 64, asking(None), target, lambda: None)
    drafting = ModelDrafter(target).open(task)
    target.forward = counting
    try:
        first = drafting.propose(PROMPT, 3).ids
        assert fed == [len(PROMPT) - 1, 1, 1, 1]
        fed.clear()
        drafting.propose([*PROMPT, *first, 7], 2)  # all held: the last draft was never fed
        assert fed == [1, 1, 1]
        fed.clear()
        drafting.propose([*PROMPT, first[0], 8], 2)
        assert drafting.fed[: len(PROMPT) + 2] == [*PROMPT, first[0], 8]
        assert sum(fed) == 2 or fed[0] > 1  # one row a draft; a ring has more to replay
    finally:
        del target.forward
        drafting.close()


def test_draft_model_stops_at_its_limit(target):
    task = Task(tuple(PROMPT), len(PROMPT) + 1, asking(None), target, lambda: None)
    drafting = ModelDrafter(target).open(task)
    assert len(drafting.propose(PROMPT, 5).ids) == 2
    assert drafting.propose([*PROMPT, 1, 2], 5).ids == ()
    drafting.close()


def test_draft_model_of_another_vocabulary_is_refused(target):
    with (
        cortiq.load("synthetic:tiny-mimo", backend="cpu", threads=1) as mimo,
        pytest.raises(RequestError, match="the draft model has 64 tokens, the model 320"),
    ):
        ModelDrafter(mimo.executable).open(Task((1,), 9, asking(None), target, lambda: None))


def test_lookup_lengthens_a_chain_and_takes_over_a_copy():
    chain = ScriptedDrafter(lambda ids, count: [7, 8][:count])
    drafting = CombinedDrafter(chain, extra=3).open(None)
    assert drafting.propose([*range(20, 40), 1, 2, 3], 5).ids == (7, 8)
    known = [1, 2, 3, 7, 8, 70, 71, 72, *range(20, 40), 1, 2, 3]
    draft = drafting.propose(known, 5)
    assert (draft.ids, draft.extended) == ((7, 8, 70, 71, 72), 3)
    drafting.observe(len(known) - 1, [], [*known, *draft.ids, 9])
    assert drafting.gain.average > 2
    copy = [*range(40), *range(COPYING)]
    draft = drafting.propose(copy, 6)
    assert (draft.ids, draft.extended) == (tuple(range(COPYING, COPYING + 6)), 6)


def test_lookup_behind_a_chain_rests_when_it_adds_nothing():
    chain = ScriptedDrafter(lambda ids, count: [7][:count])
    drafting = CombinedDrafter(chain, extra=3).open(None)
    known, lengthened = [1, 2, 3, 7, 70, 71, 72], []
    for i in range(40):
        known = [*known, 100 + i, 1, 2, 3]
        draft = drafting.propose(known, 4)
        lengthened.append(bool(draft.extended))
        drafting.observe(len(known) - 1, [], [*known, 7, 200 + i])
    rest = lengthened.index(False)
    assert lengthened[rest : rest + 24] == [False] * 24
    assert lengthened[rest + 24]


def test_depth_kept_for_a_lookup_is_not_the_chain_s():
    told = []

    class Inner(FixedDepth):
        def record(self, round_):
            told.append(round_)

    policy = PolicyWithLookup(Inner(3), 4)
    assert policy.choose(0, 100) == 7 and policy.choose(0, 6) == 5
    policy.record(Round(0, 9, 99, asked=7, proposed=5, extended=2))
    assert told[0].asked == 3
    assert PolicyWithLookup(FixedDepth(0)).choose(0, 100) == 0
