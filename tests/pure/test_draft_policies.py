"""Policies of drafting: the golden values, the state machine, and replays of what was recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortiq.engine.drafting import Round
from cortiq.engine.policy.adaptive import AdaptiveDepth, AdaptiveDepthFactory, DepthLimits
from cortiq.engine.policy.depth import (
    ACCEPTANCE_PRIOR,
    depth_by_walls,
    estimated_wall,
    expected_tokens,
    planned_depth,
    updated_acceptance,
)
from cortiq.engine.policy.depth_trial import (
    Decided,
    DepthTrial,
    PayoffMonitor,
    Timing,
    Trying,
    rest_after,
)
from cortiq.engine.policy.drafter_profile import DrafterProfile
from cortiq.engine.policy.lookup_gain import LookupGain

FLAT = (1.10, 1.275, 1.54, 1.59, 1.65, 1.70, 1.76)
NARROW = (1.12, 1.15, 1.17, 1.19, 1.21, 1.22, 1.24)
BLOCK_PRIOR = (0.85, 0.82, *(0.80,) * 5)


@pytest.mark.parametrize(
    ("cost", "hold", "draft", "step", "depth", "rate"),
    [
        (FLAT, ACCEPTANCE_PRIOR, 0, 0, 2, 1.8824),
        (FLAT, (0.6, 0.15, *(0.5,) * 5), 0, 0, 1, 1.6 / 1.1),
        (FLAT, (0.97,) * 7, 0, 0, 7, 4.0958),
        (NARROW, ACCEPTANCE_PRIOR, 0, 0.03, 5, 2.2292),
        (FLAT, BLOCK_PRIOR, 0.44, 0, 6, 1.9594),
        (NARROW, BLOCK_PRIOR, 0.19, 0, 6, 2.9738),
    ],
)
def test_planned_depth(cost, hold, draft, step, depth, rate):
    planned, found = planned_depth(cost, hold, draft, step)
    assert planned == depth
    assert found == pytest.approx(rate, abs=5e-5)


LEARNT = (0.90, 0.85, 0.80, *(0.60,) * 4)


@pytest.mark.parametrize(
    ("hold", "walls", "now", "chosen"),
    [
        (LEARNT, (0, 100.5, 111.3, 126.3, 144.6, 0, 0), 5, 3),
        (LEARNT, (0, 100.5, 111.3, 126.3, 144.6, 0, 0), 4, 4),
        ((0.9,) * 7, (0, 0, 60, 62, 64, 0, 0), 3, 5),
        ((0.5,) * 7, (0, 0, 111.3, 126.3, 0, 0, 0), 4, 2),
        ((0.5,) * 7, (0, 0, 111.3, 0, 0, 0, 0), 4, None),
    ],
)
def test_depth_by_measured_walls(hold, walls, now, chosen):
    assert depth_by_walls(hold, walls, now, 2, 5) == chosen


def test_walls_of_untimed_depths_lie_on_the_line_of_the_two_nearest():
    walls = (0, 10, 12, 0, 0, 30, 0)
    assert estimated_wall(walls, 1) == 8 and estimated_wall(walls, 2) == 10
    assert estimated_wall(walls, 4) == 14 and estimated_wall(walls, 7) == 36
    assert estimated_wall((10, 2, 0, 0, 0, 0, 0), 5) == 10  # no slope below 0
    assert estimated_wall((0, 0, 0, 0, 0, 10, 100), 1) == 5  # half of the lower one


def test_others_who_wait_make_a_deep_round_less_worth():
    hold, walls = (0.8,) * 7, (10.0, 12.0, 14.0, 16.0, 18.0, 20.0, 22.0)
    alone = depth_by_walls(hold, walls, 1, 1, 7)
    assert depth_by_walls(hold, walls, 1, 1, 7, others=15) < alone


def test_depth_follows_what_holds():
    """Deeper while both drafts hold, back as soon as the third never does, then stable."""
    hold, rounds = ACCEPTANCE_PRIOR, 0
    while (depth := planned_depth(FLAT, hold)[0]) == 2:
        hold, rounds = updated_acceptance(hold, depth, 2), rounds + 1
        assert rounds < 60
    assert (rounds, depth) == (13, 6)
    rounds = 0
    while planned_depth(FLAT, hold)[0] != 2:
        hold, rounds = updated_acceptance(hold, planned_depth(FLAT, hold)[0], 2), rounds + 1
        assert rounds < 10
    assert rounds == 1
    deep = 0
    for _ in range(400):
        depth = planned_depth(FLAT, hold)[0]
        deep += depth > 2
        hold = updated_acceptance(hold, depth, 2)
    assert deep < 40


def test_depth_stays_shallow_where_acceptance_wavers():
    hold = ACCEPTANCE_PRIOR
    for i in range(300):
        depth = planned_depth(FLAT, hold)[0]
        assert depth <= 2
        hold = updated_acceptance(hold, depth, min(i % 3, depth))


def test_only_drafts_that_were_tested_move_their_average():
    hold = updated_acceptance((0.5,) * 4, 3, 1)
    assert hold == pytest.approx((0.55, 0.45, 0.5, 0.5))
    assert expected_tokens((0.5, 0.5)) == [1.5, 1.75]


def test_three_rounds_without_an_accepted_draft_end_a_try():
    trial = DepthTrial()
    for generated, state in ((1, Trying(1)), (2, Trying(2)), (3, Timing(3))):
        trial = trial.after_round(generated, 1.0, 1)
        assert trial.state == state
    assert 3 + rest_after(0) == 35
    lucky = DepthTrial().after_round(1, 1.0, 1).after_round(3, 1.0, 2)
    assert lucky.state == Trying(2) and lucky.monitor.zeros == 0
    assert lucky.after_round(4, 1.0, 1).after_round(5, 1.0, 1).state == Trying(4)


def after_rounds(trial, count, seconds, produced, generated=0):
    for _ in range(count):
        generated += produced
        trial = trial.after_round(generated, seconds, produced)
    return trial


def test_a_try_is_decided_by_plain_tokens_that_are_timed():
    trial = after_rounds(DepthTrial(), 5, 2.0, 3)
    assert trial.state == Timing(15)
    assert not trial.speculates
    assert trial.after_plain(22, 1.0).state == Timing(15)
    assert trial.after_plain(23, 1.0).state == Decided(True)  # 3 tokens of 1 against 2
    loses = trial.after_plain(23, 0.5)  # 3 tokens of 0.5 against 2
    assert loses.state == Decided(False, 23 + 32)
    assert loses.at_step(54).state == loses.state
    assert loses.at_step(55).state == Trying()


def test_known_plain_time_decides_at_once_and_a_proxy_where_it_is_given():
    assert after_rounds(DepthTrial().with_plain_seconds(1.0), 5, 2.0, 3).state == Decided(True)
    assert after_rounds(DepthTrial().with_plain_seconds(0.5), 5, 2.0, 3).state == Decided(
        False, 15 + 32
    )
    proxied = DepthTrial(monitor=PayoffMonitor(enough=2.0))
    assert after_rounds(proxied, 5, 2.0, 3).state == Decided(True)


def test_four_losing_rounds_end_a_decision_and_each_loss_doubles_the_rest():
    trial = after_rounds(DepthTrial(afforded=1.0).with_plain_seconds(1.0), 8, 2.0, 4)
    assert trial.state == Decided(True)
    trial = replace(trial, monitor=replace(trial.monitor, tokens=1.0))
    for generated in (33, 34, 35):
        trial = trial.after_round(generated, 2.0, 1)
        assert trial.state == Decided(True)
    trial = trial.after_round(36, 2.0, 1)
    assert trial.state == Decided(False, 36 + 32)
    again = after_rounds(trial.at_step(68), 2, 2.0, 1, 68)
    assert again.state == Decided(False, 70 + 64)
    assert rest_after(20) == 1024


def test_after_a_failure_two_empty_rounds_end_a_try_and_drafts_are_short():
    trial = after_rounds(DepthTrial(afforded=1.0).with_plain_seconds(1.0), 3, 2.0, 1)
    assert trial.state == Decided(False, 3 + 32) and not trial.doubted
    trial = trial.at_step(35)
    assert trial.doubted
    assert trial.after_round(36, 2.0, 1).state == Trying(1)
    assert trial.after_round(36, 2.0, 1).after_round(37, 2.0, 1).state == Decided(False, 37 + 64)
    held = trial.after_round(37, 2.0, 2)
    assert not held.doubted
    assert held.after_round(38, 2.0, 1).after_round(39, 2.0, 1).state == Decided(False, 39 + 64)


def test_a_rest_is_as_long_as_the_cost_of_tries_asks_for():
    """Lost tokens stay under their share if the next try costs twice what the last one did."""
    cheap = after_rounds(DepthTrial(afforded=0.1).with_plain_seconds(1.0), 3, 2.0, 1)
    assert cheap.lost == 3.0  # the first round pays for set-up: it is taken to cost as the others
    assert cheap.state == Decided(False, 90)
    dear = after_rounds(DepthTrial(afforded=0.1).with_plain_seconds(1.0), 3, 3.0, 1)
    assert dear.lost == 6.0 and dear.state == Decided(False, 180)
    dearest = after_rounds(DepthTrial(afforded=0.001).with_plain_seconds(1.0), 3, 4.0, 1)
    assert dearest.state == Decided(False, 3 + 8 * 32)
    again = after_rounds(dear.at_step(180), 2, 4.0, 1, 180)
    assert again.lost == 12.0 and again.state == Decided(False, 246)  # counts alone: 182 + 64
    never = after_rounds(dear.at_step(180), 2, 9.0, 1, 180)
    assert never.lost == 22.0 and never.state == Decided(False, 540)
    paid = after_rounds(dear.at_step(180), 5, 2.0, 3, 180)
    assert (paid.state, paid.lost, paid.since) == (Decided(True), 0.0, 195)
    again = after_rounds(paid, 5, 2.0, 1, 195)
    assert again.state == Decided(False, 200 + 32) and again.lost == 0.0  # it had earned more


@pytest.mark.parametrize("round_cost", [1.2, 1.45, 2.0])
@pytest.mark.parametrize("tokens", [200, 400, 1000, 3000])
def test_a_useless_head_costs_less_than_three_tokens_in_a_hundred(round_cost, tokens):
    """Rounds as measured: a draft, a second row, and rows to be caught up with before a try."""
    policy, generated, seconds, fed = AdaptiveDepth(limits=DepthLimits(start=1)), 0, 0.0, 0
    while generated < tokens:
        depth = policy.choose(generated, 10_000)
        assert depth <= 1
        wall = 1.0
        if depth:
            wall, fed = round_cost + 0.01 * (generated - fed), generated
        policy.record(Round(
            generated, 10 + generated, 10_000, asked=depth, proposed=depth, wall_seconds=wall,
            rows=1 + depth,
        ))  # fmt: skip
        generated, seconds = generated + 1, seconds + wall
    assert tokens / seconds > 0.97


@pytest.mark.parametrize("useless", [10, 150, 700])
def test_a_head_that_becomes_useful_is_found(useless):
    policy = AdaptiveDepth(limits=DepthLimits(start=1))
    _, record = played(policy, lambda i: 0 if i < useless else 100, lambda k: 1 + 0.2 * k, 3000)
    first = next(r for r in record if r.accepted)
    assert first.generated < 3 * useless + 300
    assert all(r.proposed for r in record if r.generated > first.generated + 60)


def test_a_resting_policy_asks_and_tells_little():
    """Noticing costs time as well: while it rests one plain token of sixteen is looked at."""
    noticed = []
    policy = AdaptiveDepth(publish=lambda company, profile: noticed.append(profile))
    played(policy, lambda i: 0, steep, 40)
    seen = len(noticed)
    rest = policy.trial.state.until - 40
    played_on = [Round(g, 10 + g, 10_000, wall_seconds=1.0) for g in range(40, 40 + rest - 1)]
    for round_ in played_on:
        assert policy.choose(round_.generated, round_.room) == 0
        policy.record(round_)
    assert len(noticed) - seen <= 1 + rest // 16


def test_first_round_is_not_timed_and_the_second_sets_the_averages():
    monitor = PayoffMonitor().after(100.0, 2)
    assert (monitor.round_seconds, monitor.tokens) == (0, 0)
    monitor = monitor.after(2.0, 3)
    assert (monitor.round_seconds, monitor.tokens) == (2.0, 3)
    monitor = monitor.after(3.0, 1)
    assert (monitor.round_seconds, monitor.tokens) == pytest.approx((2.3, 2.4))


def test_pay_has_a_margin():
    base = PayoffMonitor(round_seconds=1.0, tokens=1.03, plain_seconds=1.0)
    assert not base.pays()
    assert replace(base, tokens=1.031).pays()


def test_lookups_that_add_nothing_rest():
    gain = LookupGain()
    for _ in range(3):
        gain = gain.after(5, 3, 2)
    assert gain.average == pytest.approx(2 * 0.8**3)
    gain = gain.after(5, 3, 2)
    assert (gain.average, gain.rest) == (1.6, 24)
    for _ in range(24):
        gain = gain.rested()
    assert gain.rest == 0
    assert LookupGain().after(7, 5, 7) == LookupGain(2 + 0.2 * 3)


def test_account_leaves_the_first_time_out_and_forgets_one_taken_too_near():
    profile = DrafterProfile.new(3)
    for seconds in (9.0, 2.0, 3.0):
        profile = profile.after_round(2, seconds).after_plain(100, seconds)
    assert profile.walls == pytest.approx((0, 2.2, 0)) and profile.runs == (0, 3, 0)
    assert profile.plain_seconds == pytest.approx(2.2)
    assert profile.for_prompt(1224) is profile
    assert profile.for_prompt(1225).plain_seconds == 0
    assert profile.after_round(4, 1.0) is profile


def test_one_timed_depth_and_the_plain_token_make_a_price():
    profile = replace(DrafterProfile.new(4), walls=(0, 0, 22.0, 0))
    assert profile.prices() == profile.walls
    profile = replace(profile, plain_seconds=10.0)
    assert profile.prices() == (14.0, 0, 22.0, 0)
    assert replace(profile, walls=(12.0, 0, 0, 0)).prices() == (12.0, 14.0, 0, 0)
    assert replace(profile, walls=(12.0, 0, 20.0, 0)).prices() == (12.0, 0, 20.0, 0)


def played(policy, rights, wall, rounds=400, room=1_000_000):
    """Rounds of a text whose drafts hold as `rights(i)` says; every depth chosen, every round."""
    generated, depths, record = 0, [], []
    for i in range(rounds):
        depth = policy.choose(generated, room - generated)
        accepted = min(depth, rights(i))
        round_ = Round(
            generated, 10 + generated, room - generated, asked=depth, proposed=depth,
            accepted=accepted, emitted=accepted + 1, wall_seconds=wall(depth), rows=depth + 1,
        )  # fmt: skip
        policy.record(round_)
        depths.append(depth)
        record.append(round_)
        generated += accepted + 1
    return depths, record


def steep(depth):
    return 1.0 + 0.4 * depth


def test_text_that_nothing_is_right_about_is_hardly_tried():
    depths, record = played(AdaptiveDepth(), lambda i: 0, steep, 2000)
    wasted = sum(r.wall_seconds - 1.0 for r in record)
    assert wasted < 0.03 * 2000
    assert depths[-500:].count(0) > 490


def test_text_that_everything_is_right_about_is_drafted_as_deep_as_allowed():
    depths, _ = played(AdaptiveDepth(), lambda i: 100, lambda k: 1 + 0.1 * k)
    assert set(depths[-200:]) == {7}


def test_text_that_becomes_predictable_is_noticed():
    depths, _ = played(AdaptiveDepth(), lambda i: 0 if i < 300 else 100, steep, 2000)
    assert depths[250:300].count(0) > 40
    assert all(depths[-300:])


def test_depth_settles_where_drafts_stop_to_hold():
    depths, _ = played(AdaptiveDepth(), lambda i: 2, lambda k: 1 + 0.2 * k)
    assert depths[-100:].count(2) > 80  # the rest are tries, deeper by the drift


def test_rounds_cut_by_the_room_and_by_a_second_drafter_move_no_account():
    policy = AdaptiveDepth()
    policy.record(Round(5, 20, 3, asked=3, proposed=2, accepted=0, wall_seconds=1.0))
    assert policy.profile == DepthLimits().profile()
    copied = Round(5, 20, 99, asked=3, proposed=3, extended=3, accepted=3, emitted=4, rows=4)
    policy.record(copied)
    assert policy.profile == DepthLimits().profile()
    for _ in range(2):
        policy.record(replace(copied, extended=1, accepted=2, wall_seconds=1.0))
    assert policy.profile.acceptance[1] > ACCEPTANCE_PRIOR[1]
    assert policy.profile.walls == (0.0,) * 7


def test_steps_that_prompts_rode_in_have_no_price():
    policy = AdaptiveDepth()
    for _ in range(3):
        policy.record(Round(0, 33, 50, wall_seconds=9.0, rows=33))
        policy.record(Round(3, 40, 50, asked=2, proposed=2, wall_seconds=9.0, rows=200))
        policy.record(Round(3, 40, 50, wall_seconds=9.0, rows=200, sequences=3))
    assert policy.profile.plain_runs == 0 and sum(policy.profile.runs) == 0
    assert policy.profile.acceptance[0] < ACCEPTANCE_PRIOR[0]
    for _ in range(2):
        policy.record(Round(3, 40, 50, wall_seconds=1.0, rows=3, sequences=3))
    assert policy.profile.plain_seconds == 1.0


def crowd(policies, rights, wall, steps=300):
    """Sequences in the same batches; how many tokens each drafted in the last 100 steps."""
    generated, drafted = [0] * len(policies), [0] * len(policies)
    for step in range(steps):
        depths = [p.choose(g, 10_000) for p, g in zip(policies, generated, strict=True)]
        seconds = wall(len(policies) + sum(depths))
        for i, (policy, depth) in enumerate(zip(policies, depths, strict=True)):
            held = min(depth, rights[i])
            policy.record(Round(
                generated[i], 10 + generated[i], 10_000, asked=depth, proposed=depth,
                accepted=held, emitted=held + 1, wall_seconds=seconds,
                rows=len(policies) + sum(depths), sequences=len(policies),
            ))  # fmt: skip
            generated[i] += held + 1
            drafted[i] += depth * (step >= steps - 100)
    return drafted


def test_in_company_each_drafts_by_what_its_own_drafts_bring():
    """A row costs a fifth of a step: right drafts pay in a crowd too, wrong ones never."""
    policies = [AdaptiveDepth() for _ in range(6)]
    drafted = crowd(policies, [100, 0, 100, 0, 100, 100], lambda rows: 1.0 + 0.2 * (rows - 1))
    assert all(drafted[i] > 300 for i in (0, 2, 4, 5)), drafted
    assert all(drafted[i] < 50 for i in (1, 3)), drafted
    policies = [AdaptiveDepth() for _ in range(6)]
    dear = crowd(policies, [1] * 6, lambda rows: 1.0 + 2.0 * (rows - 1))
    assert sum(dear) < 60, dear


def test_times_of_a_crowd_are_no_prices_for_one_alone():
    learning = AdaptiveDepthFactory()
    crowd([learning(10) for _ in range(6)], [100] * 6, lambda rows: 5.0 + rows)
    assert set(learning.profiles) == {3}
    assert learning(10).profile.plain_seconds == 0
    policy = learning(10)
    policy.record(Round(3, 40, 50, wall_seconds=1.0, rows=5, sequences=5))
    assert policy.profile.walls == learning.profiles[3].walls
    policy.record(Round(4, 41, 50, wall_seconds=1.0))
    assert (
        policy.profile.plain_runs == 1
        and policy.profile.acceptance == learning.profiles[3].acceptance
    )


def test_a_drafter_that_failed_last_begins_the_next_text_with_a_short_try():
    learning = AdaptiveDepthFactory()
    played(learning(10), lambda i: 0, steep, 20)
    depths, _ = played(learning(10), lambda i: 0, steep, 20)
    assert all(depths[:2]) and not any(depths[2:])
    played(learning(10), lambda i: 100, lambda k: 1 + 0.1 * k, 20)
    assert learning(10).trial.losses == 0


def test_an_unlucky_try_says_little_of_a_drafter_whose_record_is_good():
    """Its next try is soon and has three rounds; one whose record is bad waits until it can pay."""

    def unlucky(record):
        learning = AdaptiveDepthFactory(DepthLimits(start=1))
        played(learning(10), record, lambda k: 1 + 0.45 * k, 300)
        policy = learning(10)
        depths, _ = played(policy, lambda i: 0, lambda k: 1 + 0.45 * k, 10)
        return policy.trial.wakes, sum(depth > 0 for depth in depths)

    assert unlucky(lambda i: i % 6 > 0) == (3 + 32, 3)
    wakes, tried = unlucky(lambda i: 0)
    assert wakes > 150 and tried == 2


rounds = st.builds(
    lambda generated, asked, cut, accepted, wall, sequences: Round(
        generated, generated + 7, 500, asked=asked, proposed=min(asked, cut),
        accepted=min(asked, cut, accepted), emitted=min(asked, cut, accepted) + 1,
        wall_seconds=wall, sequences=sequences, rows=sequences + min(asked, cut),
    ),
    st.integers(0, 400), st.integers(0, 7), st.integers(0, 7), st.integers(0, 7),
    st.floats(1e-6, 10), st.integers(1, 16),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(rounds, max_size=60), st.integers(0, 4000))
def test_a_recorded_run_replays_to_the_same_decisions(record, prompt):
    def decisions(policy):
        found = []
        for round_ in record:
            found.append(policy.choose(round_.generated, round_.room))
            policy.record(round_)
        return found

    one, two = (AdaptiveDepth(prompt_tokens=prompt) for _ in range(2))
    chosen = decisions(one)
    assert chosen == decisions(two)
    assert (one.trial, one.profile, one.depth) == (two.trial, two.profile, two.depth)
    assert all(0 <= depth <= 7 for depth in chosen)
    assert all(0 <= hold <= 1 for hold in one.profile.acceptance)


@given(st.integers(0, 50), st.integers(1, 50))
def test_depth_never_exceeds_the_room(generated, room):
    assert AdaptiveDepth().choose(generated, room) <= room - 1


def test_later_sequences_begin_with_what_earlier_ones_measured():
    learning = AdaptiveDepthFactory()
    first = learning(10)
    played(first, lambda i: 1, steep, 30)
    assert learning(10).profile == first.profile != DepthLimits().profile()
