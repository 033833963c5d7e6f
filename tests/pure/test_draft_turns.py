"""Several drafters for one text: whose turn it is, and that no turn changes a token."""

from __future__ import annotations

import random
from itertools import count

import pytest
from block_drafters import write_drafter
from engines import backends, oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from test_draft_policies import FLAT, steep

import cortiq
from cortiq.bench.simulated_rounds import RoundCosts, RoundStart, RoundValue, round_values
from cortiq.engine.drafters.kinds import find_kinds, speculation
from cortiq.engine.drafters.turns import in_turns
from cortiq.engine.drafting import FixedDepth, Round, Speculation
from cortiq.engine.engine import Engine
from cortiq.engine.policy.adaptive import AdaptiveDepth, AdaptiveDepthFactory, DepthLimits
from cortiq.engine.policy.turns import (
    DIP,
    LONGEST_WAIT,
    TURN,
    WAIT,
    Arm,
    DrafterTurns,
    TurnPolicy,
    TurnPolicyFactory,
)
from cortiq.engine.request import make_request
from cortiq.errors import RequestError
from cortiq.model.drafter_factory import DrafterFactory, heads_of
from cortiq.models.head_names import split_heads_option
from cortiq.options import GenerateOptions

BLOCK_HOLD = (0.85, 0.82, *(0.80,) * 5)
WAYS = {"greedy": {}, "sampled": {"temperature": 0.9, "seed": 4, "repetition_penalty": 1.1}}


def test_t03_value_of_a_block_round_beside_a_chain_s():
    ids, after = list(range(100, 140)), list(range(10, 30))

    def values(drafts, prices):
        return list(round_values([RoundStart(ids, after, drafts)] * 40, prices))

    block = values(list(range(10, 17)), RoundCosts(FLAT, draft=0.44, acceptance=BLOCK_HOLD))
    chain = values([10, *[99] * 6], RoundCosts(FLAT))
    assert (block[0], chain[0]) == (RoundValue(7, 1.70 + 0.44), RoundValue(2, 1.275))
    assert (block[-1], chain[-1]) == (RoundValue(8, 1.76 + 0.44), RoundValue(2, 1.10))
    assert block[-1].tokens / block[-1].cost > chain[-1].tokens / chain[-1].cost


def test_what_is_looked_up_behind_drafts_counts_in_a_round_s_value():
    """The text repeats itself: two drafts are right, and the lookup goes on with five more."""
    ids = [*range(9), *range(5)]
    start = RoundStart(ids, [5, 6, 7, 8, 0, 1, 2], [5, 6])
    (first, *_, last) = round_values([start] * 30, RoundCosts(FLAT))
    assert first == RoundValue(8, 1.76) == last
    wrong = RoundStart(ids, [5, 6, 50, 51, 52, 53, 54], [5, 6])
    values = list(round_values([wrong] * 30, RoundCosts(FLAT)))
    assert values[0] == RoundValue(3, 1.76)
    assert RoundValue(3, 1.275) in values  # lookups rest


def shown(bring, rounds=200, start=0):
    """Return the arm of each round; arm i yields `bring(i, round)` tokens in a second."""
    turns, found = DrafterTurns((Arm(), Arm()), start), []
    for number in range(rounds):
        turns = turns.among([True, True])
        found.append(turns.at)
        turns = turns.after_round(1.0, bring(turns.at, number))
    return found


@pytest.mark.parametrize("better", [0, 1])
@pytest.mark.parametrize("first", [0, 1])
def test_the_better_drafter_has_most_turns_whoever_begins(better, first):
    at = shown(lambda arm, _: 3.0 if arm == better else 2.0, 400, first)
    assert at[:TURN] == [first] * TURN and at[TURN : 2 * TURN] == [1 - first] * TURN
    assert at.count(better) > 370
    assert 1 - better in at[200:]  # asked again, since texts change


def test_a_drafter_that_becomes_better_is_found():
    at = shown(lambda arm, number: 3.0 if (arm == 0) == (number < 300) else 1.5, 1000)
    assert at[:300].count(0) > 270 and at[-300:].count(1) > 270


def test_waits_double_after_short_turns_and_are_short_after_full_ones():
    arm, waits = Arm(), []
    for _ in range(7):
        arm = arm.lost()
        waits.append(arm.wait)
    assert waits == [WAIT, 96, 192, 384, LONGEST_WAIT, LONGEST_WAIT, LONGEST_WAIT]
    assert Arm(rounds=16, back=384).lost() == Arm(rounds=16, wait=DIP, back=WAIT)
    waiting = Arm(rounds=5, recent=((1.0, 2.0),), wait=2, back=96)
    assert waiting.waited().wait == 1
    assert waiting.waited().waited() == Arm(back=96)


def test_one_that_is_little_better_does_not_take_the_turn():
    known = Arm(rounds=9, recent=((1.0, 2.0),))
    for tokens, at in ((2.09, 0), (2.11, 1)):
        other = Arm(rounds=5, recent=((1.0, tokens),))
        assert DrafterTurns((known, other)).among([True, True]).at == at
    assert DrafterTurns((known, Arm())).among([True, False]).at == 0
    assert DrafterTurns((known, Arm(wait=9))).among([True, True]).at == 0
    assert DrafterTurns((known, Arm(wait=9))).among([False, True]).at == 1
    assert DrafterTurns((known, Arm())).among([False, False]).at == 0


def test_one_slow_round_decides_nothing():
    arm = Arm()
    for seconds in (9.0, 1.0, 50.0, 1.0, 1.0):
        arm = arm.after(seconds, 2.0)
    assert (arm.rate, len(arm.recent)) == (2.0, 4)


def taking(rights, walls, rounds=600, policies=None):
    """Rounds of a text that two drafters draft for; who drafted each, and the plain tokens' time.

    `rights[i](number)` ids of drafter i hold; a round of its k drafts takes `walls[i](k)`.
    """
    policy = TurnPolicy(policies or [AdaptiveDepth(limits=DepthLimits(start=1)) for _ in rights])
    generated, who, seconds = 0, [], 0.0
    for number in range(rounds):
        depth = policy.choose(generated, 100_000)
        assert depth == policy.choose(generated, 100_000)
        at = policy.turns.at
        held = min(depth, rights[at](number))
        wall = walls[at](depth) if depth else 1.0
        policy.record(Round(
            generated, 10 + generated, 100_000, asked=depth, proposed=depth, accepted=held,
            emitted=held + 1, wall_seconds=wall, rows=1 + depth,
        ))  # fmt: skip
        who.append(at if depth else None)
        generated, seconds = generated + held + 1, seconds + wall
    return who, generated / seconds


def test_the_drafter_that_pays_drafts():
    def block(depth):
        return 1.4 + 0.05 * depth

    def chain(depth):
        return 1.0 + 0.3 * depth

    who, rate = taking([lambda n: 100, lambda n: 0], [chain, block])
    assert who[-200:].count(0) > 180 and rate > 1.5
    who, rate = taking([lambda n: 1, lambda n: 100], [chain, block])
    assert who[-200:].count(1) > 180 and rate > 2.5
    who, rate = taking([lambda n: 0, lambda n: 0], [chain, block], 1500)
    assert who[-500:].count(None) > 490 and rate > 0.97
    changing = [lambda n: 100 * (n < 300), lambda n: 100 * (n >= 300)]
    who, _ = taking(changing, [chain, block], 2000)
    assert who[150:300].count(0) > 140 and who[-300:].count(1) > 280


def test_plain_tokens_are_timed_for_all_and_rounds_for_whoever_drafted():
    policies = [AdaptiveDepth(limits=DepthLimits(start=1)) for _ in range(2)]
    taking([lambda n: 1, lambda n: 0], [steep, steep], 40, policies)
    assert policies[0].profile.plain_seconds == policies[1].profile.plain_seconds == 1.0
    assert policies[0].profile.acceptance[0] > 0.8 > policies[1].profile.acceptance[0]


def test_one_that_has_nothing_to_say_gives_its_turn_away():
    policy = TurnPolicy([FixedDepth(3), FixedDepth(2)])
    assert policy.choose(0, 50) == 3
    policy.record(Round(0, 10, 50, asked=3, wall_seconds=1.0))
    assert policy.choose(1, 49) == 2 and policy.turns.at == 1
    assert policy.turns.arms[0].wait == WAIT


def test_a_text_begins_with_the_drafter_that_the_last_one_ended_with():
    turning = TurnPolicyFactory(
        [AdaptiveDepthFactory(DepthLimits(start=1)), AdaptiveDepthFactory(DepthLimits(start=1))]
    )
    policy = turning(10)
    assert policy.turns.at == 0
    policy.record(Round(0, 10, 50, asked=1, wall_seconds=1.0))
    assert policy.choose(1, 49) == 1 and policy.turns.at == 1
    assert turning(10).turns.at == 1


rounds = st.builds(
    lambda asked, cut, held, wall, sequences: Round(
        0, 9, 500, asked=asked, proposed=min(asked, cut), accepted=min(asked, cut, held),
        emitted=1 + min(asked, cut, held), wall_seconds=wall, sequences=sequences,
        rows=sequences + min(asked, cut),
    ),
    st.integers(0, 7), st.integers(0, 7), st.integers(0, 7), st.floats(1e-6, 10), st.integers(1, 9),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.lists(rounds, max_size=60))
def test_a_recorded_run_replays_to_the_same_turns(record):
    def run():
        policy, found = TurnPolicy([AdaptiveDepth(), AdaptiveDepth(), FixedDepth(2)]), []
        for number, round_ in enumerate(record):
            found.append((policy.choose(number, 500 - number), policy.turns.at))
            policy.record(round_)
        return found

    assert run() == run()
    assert all(0 <= depth <= 7 and 0 <= at < 3 for depth, at in run())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("turns") / "block,2"
    write_drafter(made)
    return made


def opened(folder, backend):
    heads = f"mtp,dflash:{folder}"
    return cortiq.load("synthetic:tiny-llama", backend=backend, threads=1, heads=heads)


@pytest.fixture(scope="module")
def model(folder):
    with opened(folder, "cpu") as loaded:
        yield loaded


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("depth", [None, 1, 5])
def test_drafters_in_turns_change_no_token(model, folder, way, depth):
    told = {"max_tokens": 40, "ignore_eos": True, **WAYS[way]}
    plain = model.generate("to be or not", **told)
    for draft in (f"mtp,dflash:{folder}", f"dflash:{folder},lookup", "auto"):
        made = model.generate("to be or not", draft=draft, draft_depth=depth, **told)
        assert (made.token_ids, made.digest) == (plain.token_ids, plain.digest)
        assert made.fingerprint == plain.fingerprint and not made.stats.drafts.error
        if depth and not draft.endswith("lookup"):
            assert set(made.stats.drafts.drafters) >= {"mtp+lookup", "dflash+lookup"}


@pytest.mark.parametrize("backend", backends())
def test_turns_change_no_token_on_any_backend(folder, backend):
    told = {"max_tokens": 16, "ignore_eos": True, "temperature": 0.8, "seed": 2}
    with opened(folder, backend) as loaded:
        plain = loaded.generate("to be", **told)
        made = loaded.generate("to be", draft="auto", draft_depth=2, **told)
    assert (made.token_ids, made.digest) == (plain.token_ids, plain.digest)
    assert set(made.stats.drafts.drafters) >= {"mtp+lookup", "dflash+lookup"}


def test_auto_notices_copies_while_a_useless_head_rests():
    """The head of the formula knows nothing of the text, which repeats itself."""
    options = GenerateOptions(max_tokens=150, ignore_eos=True)
    with cortiq.load("synthetic:tiny-llama", backend="cpu", threads=1, heads="mtp") as loaded:
        ids, ticks = loaded.ids("to be or not"), count()
        plain = loaded.generate(ids, max_tokens=150, ignore_eos=True)
        assert len(set(plain.token_ids[-60:])) < 12
        drafted = speculation(find_kinds("auto"), None, DrafterFactory(loaded))
        with Engine(
            loaded.executable, loaded.tokenizer, clock=lambda: float(next(ticks))
        ) as engine:
            request = make_request(ids, options, loaded.program, ())
            sequence = engine.submit(request, speculation=drafted)
            engine.run()
    assert tuple(sequence.output.token_ids) == plain.token_ids
    assert sequence.stats.drafts.drafters["lookup"].accepted > 60


@pytest.mark.parametrize("seed", range(3))
def test_turns_by_clocks_of_any_kind_change_no_token(model, folder, seed):
    """Two texts at once, a clock that is a die, and the rounds replayed to a new policy."""
    dice, now = random.Random(seed), [0.0]

    def clock():
        now[0] += dice.choice([0.0, 1e-6, 0.01, 5.0])
        return now[0]

    way = list(WAYS.values())[seed % 2]
    options = GenerateOptions(max_tokens=60, ignore_eos=True, **way)
    prompts = [[5, 6, 7, 5, 6, 7, 8], [9, 10, 11]]
    plain = [
        model.generate(ids, max_tokens=60, ignore_eos=True, **way).token_ids for ids in prompts
    ]
    drafted = speculation(find_kinds(f"dflash:{folder},mtp"), None, DrafterFactory(model))
    with Engine(model.executable, model.tokenizer, clock=clock) as engine:
        made = [
            engine.submit(make_request(ids, options, model.program, ()), speculation=drafted)
            for ids in prompts
        ]
        engine.run()
    assert [tuple(s.output.token_ids) for s in made] == plain
    assert not any(s.error or s.stats.drafts.error for s in made)


def test_the_one_that_knows_the_text_ends_up_drafting(model):
    """Both cost the same; one is right, the other wrong."""
    ids, ticks = [5, 6, 7], count()
    options = GenerateOptions(max_tokens=120, ignore_eos=True)
    request = make_request(ids, options, model.program, ())
    truth = [*ids, *model.generate(ids, max_tokens=120, ignore_eos=True).token_ids]
    wrong, right = oracle(truth, lambda p, i: True), oracle(truth, lambda p, i: False)
    wrong.name, right.name = "wrong", "right"
    ways = [Speculation(d, lambda tokens: FixedDepth(2)) for d in (wrong, right)]
    with Engine(model.executable, model.tokenizer, clock=lambda: float(next(ticks))) as engine:
        sequence = engine.submit(request, speculation=in_turns(ways))
        engine.run()
    assert sequence.output.token_ids == truth[3:]
    tallies = sequence.stats.drafts.drafters
    assert tallies["wrong"].accepted == 0 and tallies["wrong"].rounds < 12
    assert tallies["right"].accepted == tallies["right"].drafted > 60


def test_lists_name_drafters_and_what_they_must_be_loaded_with():
    assert list(find_kinds("mtp,dflash:/a,b/c")) == ["mtp", "dflash:/a,b/c"]
    assert list(find_kinds("dflash:x,lookup")) == ["dflash:x", "lookup"]
    assert heads_of("mtp,dflash:x") == heads_of("dflash:x,mtp") == "mtp,dflash:x"
    assert heads_of("auto,dflash:x") == "auto,dflash:x" and heads_of("auto,mtp") == "mtp"
    assert list(find_kinds("mtp, lookup,mtp")) == ["mtp", "lookup"]
    assert heads_of("lookup,model:y") is None and heads_of("auto") == "auto"
    assert heads_of("eagle3:e,dflash:x") == heads_of("dflash:x,eagle3:e") == "eagle3:e,dflash:x"
    assert split_heads_option("auto,dflash:/a,b") == ("auto", {"dflash": "/a,b"})
    assert split_heads_option("dflash:p") == ("off", {"dflash": "p"})
    assert split_heads_option("mtp:raw") == ("mtp:raw", {})
    for draft, sentence in (
        ("mtp,nothing", "no drafter 'nothing'"),
        ("mtp,dflash", "takes an"),
        ("mtp,off", "off stands alone"),
        ("auto:3", "auto takes no argument"),
        ("dflash:x,dflash:y", "dflash:x and dflash:y are two drafters of one kind"),
        ("mtp,mimo", "one draft head, not with mtp and mimo"),
        ("mtp,eagle3:x", "one draft head, not with mtp and eagle3"),
    ):
        with pytest.raises(RequestError, match=sentence):
            heads_of(draft)
