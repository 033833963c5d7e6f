"""Sampling: filters against exact arithmetic, the draw's distribution, ties, validation."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from floats import LIMIT, bits, canonical, flush_to_zero, same_bits

from cortiq.errors import RequestError
from cortiq.numerics import ideal, sampling
from cortiq.numerics.contract import F32
from cortiq.numerics.masks import allowed_ids, mask_of
from cortiq.numerics.sampling import Sampling, draw

LOGITS = (np.random.default_rng(0).standard_normal(500) * 3).astype(F32)
SMALL = np.array([1.0, 0.5, 2.0, -1.0, 0.5, -3.0, 1.5, 0.0], F32)


def test_argmax_takes_the_lowest_index_of_equals():
    assert sampling.argmax(np.array([1, 3, 3, 2], F32)) == 1
    assert sampling.argmax(np.zeros((2, 5), F32)).tolist() == [0, 0]
    assert sampling.argmax(np.array([-5, -2, -2], F32)) == 1


def test_temperature_zero_is_the_argmax_after_bias_and_penalties():
    assert draw(LOGITS, Sampling(temperature=0)) == LOGITS.argmax()
    assert draw(SMALL, Sampling(temperature=0, logit_bias={5: 9.0})) == 5
    assert draw(SMALL, Sampling(temperature=0, presence_penalty=1.0), [2]) == 6
    assert draw(SMALL, Sampling(temperature=0, repetition_penalty=4.0), [2, 2]) == 6
    twice = Sampling(temperature=0, frequency_penalty=0.4)
    assert [draw(SMALL, twice, [2] * n) for n in (0, 1, 2)] == [2, 2, 6]
    assert draw(SMALL, Sampling(temperature=0, seed=5), position=9) == 2


def test_adjusted_equals_its_float64_twin():
    history = [1, 1, 7, 300, 499, 7, 7, 0]
    options = Sampling(
        repetition_penalty=1.3,
        presence_penalty=0.25,
        frequency_penalty=0.125,
        logit_bias={3: 2.5, 7: -1.0},
    )
    exact = ideal.adjusted(LOGITS, history, {3: 2.5, 7: -1.0}, (1.3, 0.25, 0.125))
    ours = sampling.adjusted(LOGITS, options, history)
    np.testing.assert_allclose(ours, exact, rtol=1e-6, atol=1e-6)
    untouched = np.setdiff1d(np.arange(500), [*history, 3])
    assert same_bits(ours[untouched], LOGITS[untouched])
    assert same_bits(sampling.adjusted(LOGITS, Sampling(), history), LOGITS)


def test_weights_are_the_exact_floors_and_need_only_small_integers():
    distance = -np.abs(canonical(np.random.default_rng(1), 5000, -40, 7))
    weights = sampling.integer_weights(distance)
    p = sampling.exp(distance)
    exact = [int(Fraction(float(value)) * 2**40) for value in p]
    assert weights.tolist() == exact
    high = np.floor(p * F32(2.0**20))
    low = np.floor((p * F32(2.0**20) - high) * F32(2.0**20))
    portable = high.astype(np.uint64) * 2**20 + low.astype(np.uint64)
    assert np.array_equal(portable, weights)
    assert sampling.integer_weights(np.zeros(1, F32))[0] == 2**40


def kept_by_fractions(distance, options):
    """The docstring's filters in exact rational arithmetic."""
    order = sorted(range(len(distance)), key=lambda i: (-distance[i], i))
    order = order[: options.top_k or None]
    weights = {i: int(Fraction(float(sampling.exp(distance[i : i + 1])[0])) * 2**40) for i in order}
    top_p = Fraction(round(options.top_p * 2**24), 2**24)
    min_p = Fraction(round(options.min_p * 2**24), 2**24)
    total, before, kept = sum(weights.values()), 0, []
    for i in order:
        reached = options.top_p < 1 and before >= top_p * total
        if kept and (reached or weights[i] < min_p * 2**40):
            break
        kept.append(i)
        before += weights[i]
    return kept


@pytest.mark.parametrize("top_k", [0, 1, 7, 500, 9999])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3, 1e-9])
@pytest.mark.parametrize("min_p", [0.0, 0.05, 1.0])
def test_filters_equal_exact_arithmetic(top_k, top_p, min_p):
    options = Sampling(top_k=top_k, top_p=top_p, min_p=min_p)
    for temperature in (0.5, 3.0):
        distance = sampling.distances(LOGITS, temperature)
        kept = sampling.kept_ids(distance, options).tolist()
        assert kept == kept_by_fractions(distance, options)
        p = ideal.kept_probabilities(LOGITS, temperature, top_k, top_p, min_p)
        assert set(kept) == set(np.flatnonzero(p).tolist())


def test_equal_logits_are_filtered_by_id():
    distance = np.zeros(10, F32)
    assert sampling.kept_ids(distance, Sampling(top_k=3)).tolist() == [0, 1, 2]
    assert sampling.kept_ids(distance, Sampling(top_p=0.5)).tolist() == [0, 1, 2, 3, 4]
    assert sampling.kept_ids(distance, Sampling(top_p=0.5 + 2.0**-24)).size == 6
    assert sampling.kept_ids(distance, Sampling(min_p=1.0)).size == 10


def test_noise_is_gumbel_in_both_tails():
    words = np.array([0, 1, 2, 1 << 10, (1 << 31) - 1, 1 << 31, (1 << 32) - 2, (1 << 32) - 1])
    spread = np.random.default_rng(2).integers(0, 1 << 32, 200000)
    words = np.concatenate([words, spread])
    v = (words.astype(np.float64) + 0.5) / 2**32
    exact = -np.log(-np.log1p(-v))
    ours = sampling.gumbel(words.astype(np.uint32))
    error = np.abs(ours - exact).max()
    assert sampling.GUMBEL_MAX_ERROR / 8 < error <= sampling.GUMBEL_MAX_ERROR
    assert ours.max() < 22.9
    assert ours.min() > -3.2
    assert abs(ours.mean(dtype=np.float64) - 0.5772157) < 0.01


def chi_square(counts, probabilities):
    expected = probabilities * counts.sum()
    used = expected > 0
    assert not counts[~used].any()
    return ((counts[used] - expected[used]) ** 2 / expected[used]).sum(), used.sum() - 1


@pytest.mark.parametrize(
    "options",
    [
        Sampling(seed=11),
        Sampling(temperature=0.7, seed=2**63 + 5),
        Sampling(temperature=1.5, top_k=5, seed=3),
        Sampling(top_p=0.8, seed=4),
        Sampling(min_p=0.1, top_k=6, seed=5),
    ],
)
def test_draws_are_distributed_as_the_probabilities(options):
    """4,000 positions; the 99.99% point of chi-square with up to 7 degrees of freedom is 29.9."""
    n = 4000
    counts = np.bincount([draw(SMALL, options, position=i) for i in range(n)], minlength=8)
    exact = ideal.kept_probabilities(
        SMALL, options.temperature, options.top_k, options.top_p, options.min_p
    )
    statistic, freedom = chi_square(counts, exact)
    assert freedom >= 2
    assert statistic < 29.9


def test_choices_seeds_and_positions_are_independent_streams():
    n = 1000
    base = [draw(SMALL, Sampling(seed=1), position=i) for i in range(n)]
    p = ideal.softmax(SMALL)
    agree = (p**2).sum()
    for other in (
        [draw(SMALL, Sampling(seed=2), position=i) for i in range(n)],
        [draw(SMALL, Sampling(seed=1 + 2**32), position=i) for i in range(n)],
        [draw(SMALL, Sampling(seed=1), position=i, choice=1) for i in range(n)],
        [draw(SMALL, Sampling(seed=1), position=i + 1) for i in range(n)],
    ):
        same = np.mean(np.array(base) == np.array(other))
        assert abs(same - agree) < 0.08
    assert base == [draw(SMALL, Sampling(seed=1), position=i) for i in range(n)]


def test_a_filter_that_keeps_the_drawn_token_does_not_change_the_draw():
    """The noise belongs to the id, so filters only remove contenders."""
    for position in range(200):
        free = draw(LOGITS, Sampling(seed=9), position=position)
        kept = sampling.kept_ids(sampling.distances(LOGITS, 1.0), Sampling(top_k=40))
        if free in kept:
            assert draw(LOGITS, Sampling(seed=9, top_k=40), position=position) == free


def test_top_k_of_one_is_greedy():
    assert draw(LOGITS, Sampling(top_k=1), position=3) == LOGITS.argmax()


def test_top_and_log_sum_exp():
    ids, values = sampling.top(np.array([1, 5, 5, -2, 5], F32), 4)
    assert ids.tolist() == [1, 2, 4, 0]
    assert values.tolist() == [5, 5, 5, 1]
    rows = np.stack([LOGITS, LOGITS[::-1]])
    np.testing.assert_allclose(sampling.log_sum_exp(rows), ideal.log_sum_exp(rows), rtol=1e-6)
    assert bits(sampling.log_sum_exp(np.zeros(1, F32))) == 0
    for n in (0, 6):
        with pytest.raises(RequestError, match="vocabulary of 5"):
            sampling.top(np.zeros(5, F32), n)


def test_faults_are_flagged():
    faults = np.zeros(1, bool)
    loud = np.array([LIMIT / 4, 0], F32)
    draw(loud, Sampling(temperature=0.125), faults=faults)
    assert faults[0]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"min_p": -0.1},
        {"repetition_penalty": 0.0},
        {"presence_penalty": float("nan")},
        {"frequency_penalty": float("inf")},
        {"logit_bias": {3: float("-inf")}},
        {"logit_bias": {-3: 1.0}},
        {"seed": -1},
        {"seed": 1 << 64},
    ],
)
def test_bad_options_are_request_errors_that_name_the_option(options):
    with pytest.raises(RequestError, match=next(iter(options))):
        Sampling(**options)


def test_ids_outside_the_vocabulary_are_refused():
    with pytest.raises(RequestError, match="logit_bias names token 8 of a vocabulary of 8"):
        draw(SMALL, Sampling(logit_bias={8: 1.0}))
    for wrong in (-1, 8):
        with pytest.raises(RequestError, match="history"):
            draw(SMALL, Sampling(), [wrong])


def test_flush_to_zero_changes_no_bit():
    logits = canonical(np.random.default_rng(3), 3000, -40, 6)
    options = Sampling(temperature=1.7, top_p=0.95, repetition_penalty=1.1, frequency_penalty=1e-12)

    def compute():
        x = sampling.adjusted(logits, options, range(0, 3000, 7))
        distance = sampling.distances(x, options.temperature)
        noise = sampling.noise(np.arange(3000), 1, 0, 5)
        return x, distance, noise, sampling.kept_ids(distance, options), sampling.log_sum_exp(x)

    plain = compute()
    with flush_to_zero():
        flushed = compute()
    assert all(np.array_equal(p, f) for p, f in zip(plain, flushed, strict=True))


MASKED_OPTIONS = (
    Sampling(seed=1),
    Sampling(temperature=0, logit_bias={3: 2.0, 400: 1.0}),
    Sampling(temperature=1.5, top_k=9, top_p=0.8, min_p=0.01, seed=2),
    Sampling(0.7, repetition_penalty=1.4, frequency_penalty=0.2, logit_bias={7: 3.0}, seed=3),
)


@pytest.mark.parametrize("options", MASKED_OPTIONS)
@pytest.mark.parametrize("count", [1, 2, 60, 499, 500])
def test_masked_draw_is_the_chain_over_the_ids_that_remain(options, count):
    """Every step on the allowed ids' logits alone, but for the noise, which is the id's own."""
    allowed = np.sort(np.random.default_rng(count).permutation(500)[:count])
    mask, history = mask_of(allowed, 500), [7, 7, 3, *range(40)]
    for position in range(20):
        ours = draw(LOGITS, options, history, position, mask=mask)
        x = sampling.adjusted(LOGITS, options, history)[allowed]
        if options.temperature == 0:
            assert ours == allowed[x.argmax()]
            continue
        distance = sampling.distances(x, options.temperature)
        kept = sorted(kept_by_fractions(distance, options))
        noisy = distance[kept] + sampling.noise(allowed[kept], options.seed, 0, position)
        assert ours == allowed[kept][noisy.argmax()]


def test_what_a_mask_excludes_decides_nothing():
    mask = mask_of(range(0, 500, 3), 500)
    hostile = LOGITS.copy()
    hostile[1::3], hostile[2::3] = np.nextafter(LIMIT, F32(0)), F32(-(2.0**49))
    for options in MASKED_OPTIONS:
        assert draw(LOGITS, options, [1, 4], 9, mask=mask) == draw(
            hostile, options, [1, 4], 9, mask=mask
        )
        everything = mask_of(range(500), 500)
        assert draw(LOGITS, options, [1], 5, mask=everything) == draw(LOGITS, options, [1], 5)


def test_mask_is_little_endian_words_and_refused_where_it_says_nothing():
    words = np.array([1 << 5 | 1 << 31, 1 << 2], "<u4")
    assert allowed_ids(words.tobytes(), 40).tolist() == [5, 31, 34]
    assert mask_of([5, 31, 34], 40) == words.tobytes()[:5]
    assert allowed_ids(None, 3).tolist() == [0, 1, 2]
    for mask, sentence in (
        (b"\0\0", "a mask that allows none of the 9 tokens"),
        (b"\xff", "a mask of 1 bytes, 9 tokens take 2"),
        (b"\0\xfe", "a mask that allows none of the 9 tokens"),
        ([1], "a mask is bytes, not list"),
    ):
        with pytest.raises(RequestError, match=sentence):
            draw(LOGITS[:9], Sampling(), mask=mask)
    with pytest.raises(RequestError, match="a mask names token 9 of a vocabulary of 9"):
        mask_of([9], 9)


def test_draws_have_the_softmax_s_distribution():
    """Chi-square over eight tokens and 100,000 positions, seeded: the noise of all at once."""
    count, options = 100_000, Sampling(temperature=0.8, seed=123)
    distance = sampling.distances(SMALL, options.temperature)
    ids, positions = np.arange(8)[None], np.arange(count)[:, None]
    drawn = (distance + sampling.noise(ids, options.seed, 0, positions)).argmax(axis=1)
    some = range(0, count, 5000)
    assert [draw(SMALL, options, position=p) for p in some] == drawn[some].tolist()
    expected = count * ideal.softmax(SMALL[None] / 0.8)[0]
    found = np.bincount(drawn, minlength=8)
    assert ((found - expected) ** 2 / expected).sum() < 24.3  # one in a thousand, 7 degrees


@pytest.mark.parametrize("distance", [0.1, 0.5, 1.5])
def test_drafts_with_the_target_s_noise_agree_nearly_as_often_as_is_possible(distance):
    """A drafter whose logits are off: its draws are the target's in at least 0.85·Σ min(p, q)."""
    rng = np.random.default_rng(3)
    target = (rng.standard_normal(200) * 2.5).astype(F32)
    drafter = (target + rng.standard_normal(200) * distance).astype(F32)
    ids, positions = np.arange(200)[None], np.arange(20_000)[:, None]
    noise = sampling.noise(ids, 77, 0, positions)
    drawn = [(sampling.distances(x, 1.0) + noise).argmax(axis=1) for x in (target, drafter)]
    p, q = (ideal.softmax(x[None])[0] for x in (target, drafter))
    assert (drawn[0] == drawn[1]).mean() >= 0.85 * np.minimum(p, q).sum()
