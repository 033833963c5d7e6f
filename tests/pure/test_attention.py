"""Attention: against rational arithmetic and float64, and everything that must not change a bit."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rational import exact, exp2_fraction, rounded

from cortiq.errors import UnsupportedError
from cortiq.numerics.attention import (
    ATTENTION_TYPICAL_ERROR,
    add_sinks,
    attend,
    merge,
    normalise,
    scoring,
    tile,
    visible_tiles,
)
from cortiq.numerics.contract import snap
from cortiq.numerics.ideal_mixers import attention_ideal
from cortiq.numerics.quantise import Quantised, quantise_rows


def rows(*shape, seed=0, spread=1.0):
    values = np.random.default_rng(seed).standard_normal(shape) * spread
    return quantise_rows(values.astype(np.float32))


def case(positions, keys=None, heads=4, kv=2, dk=16, dv=16, seed=0, spread=1.0):
    """(q, k, v, positions) with scores of standard deviation spread² under the scale dk^−½."""
    positions = np.asarray(positions)
    keys = positions.max() + 1 if keys is None else keys
    q = rows(len(positions), heads, dk, seed=seed, spread=spread)
    k = rows(keys, kv, dk, seed=seed + 1, spread=spread)
    return q, k, rows(keys, kv, dv, seed=seed + 2), positions


def cut(x, index):
    return Quantised(x.q[index], x.e[index])


def bits(x):
    return x.view(np.int32)


def same(a, b):
    return np.array_equal(bits(a), bits(b))


def fixed(g, bits):
    return round(g * Fraction(2) ** bits)


def tile_by_fractions(q, keys, values, c):
    """(L, K, O, E) of one head and one tile from the definition, on integers and fractions."""
    g, kappa = [], []
    for key, e in zip(keys.q, keys.e, strict=True):
        dot = Fraction(sum(int(a) * int(b) for a, b in zip(q.q, key, strict=True)))
        s = rounded(rounded(dot) * exact(c)) * Fraction(2) ** (int(q.e) + int(e))
        kappa.append(round(s))
        g.append(exp2_fraction(rounded(s - round(s))))
    scaled = [k + int(e) for k, e in zip(kappa, values.e, strict=True)]
    total = sum(
        round(a * Fraction(2) ** (21 + k - max(kappa))) for a, k in zip(g, kappa, strict=True)
    )
    w = [round(a * Fraction(2) ** (14 + k - max(scaled))) for a, k in zip(g, scaled, strict=True)]
    output = [sum(a * int(b) for a, b in zip(w, column, strict=True)) for column in values.q.T]
    return rounded(Fraction(total)), max(kappa), [rounded(Fraction(o)) for o in output], max(scaled)


@pytest.mark.parametrize("spread", [0.5, 1.0, 3.0])
def test_a_tile_equals_its_definition_in_rational_arithmetic(spread):
    constants = scoring(0.25)
    q, k, v, _ = case([0], keys=23, spread=spread)
    ours = tile(cut(q, 0), cut(k, np.s_[:, 0]), cut(v, np.s_[:, 0]), constants)
    for head in range(4):
        total, peak, output, output_peak = tile_by_fractions(
            cut(q, (0, head)), cut(k, np.s_[:, 0]), cut(v, np.s_[:, 0]), constants.factor
        )
        assert (exact(ours.total[head]), int(ours.peak[head])) == (total, peak)
        assert [exact(o) for o in ours.output[head]] == output
        assert int(ours.output_peak[head]) == output_peak


SHAPES = [
    {"positions": [0, 1, 63, 64, 65, 200]},
    {"positions": [1023, 1024, 1100], "window": 100},
    {"positions": [2200], "dk": 24, "dv": 8, "heads": 6, "kv": 2},
    {"positions": [5, 130], "heads": 3, "kv": 1, "dv": 40, "window": 1},
    {"positions": [300], "heads": 2, "kv": 2, "spread": 4.0},
]


@pytest.mark.parametrize("soft_cap", [None, 5.0])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_error_against_float64_stays_within_the_stated_bound(shape, sinks, soft_cap):
    shape = dict(shape)
    window = shape.pop("window", 0)
    q, k, v, positions = case(**shape)
    logits = np.linspace(-2, 3, q.q.shape[1]).astype(np.float32) if sinks else None
    options = {"window": window, "soft_cap": soft_cap, "sinks": logits}
    y = attend(q, k, v, positions, q.q.shape[2] ** -0.5, **options)
    ideal, bound = attention_ideal(q, k, v, positions, q.q.shape[2] ** -0.5, **options)
    assert (np.abs(y - ideal) <= bound).all()
    assert np.abs(ideal).max() > 30 * bound.min()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scores_that_fall_with_distance_are_near_float64_and_not_those_without(shape):
    shape = dict(shape)
    window = shape.pop("window", 0)
    q, k, v, positions = case(**shape)
    slopes = tuple(0.7 / (1 + 3 * h) for h in range(q.q.shape[1]))
    how = {"window": window, "slopes": slopes}
    y = attend(q, k, v, positions, q.q.shape[2] ** -0.5, **how)
    ideal, bound = attention_ideal(q, k, v, positions, q.q.shape[2] ** -0.5, **how)
    assert (np.abs(y - ideal) <= bound).all()
    flat = attend(q, k, v, positions, q.q.shape[2] ** -0.5, window=window)
    assert same(y, flat) == (window == 1)


def test_typical_error_is_the_stated_constant():
    q, k, v, positions = case([100, 700, 1500], dk=64, dv=64)
    y = attend(q, k, v, positions, 0.125)
    ideal, _ = attention_ideal(q, k, v, positions, 0.125)
    error = np.abs(y - ideal).max(axis=2) / np.abs(ideal).max(axis=2)
    assert 0 < error.max() <= ATTENTION_TYPICAL_ERROR


def test_one_key_returns_its_value_row():
    q, k, v, _ = case([0])
    y = attend(q, k, v, np.array([0]), 0.25)
    expected = np.repeat(v.q[0] * 2.0 ** v.e[0][:, None], 2, axis=0)
    assert np.abs(y[0] - expected).max() <= 2.0**-14 * np.abs(expected).max()


@pytest.mark.parametrize("offset", range(64))
def test_windows_start_anywhere_in_a_tile(offset):
    q, k, v, positions = case([128 + offset], heads=2, kv=1, dk=8, dv=8)
    y = attend(q, k, v, positions, 0.35, window=70)
    ideal, bound = attention_ideal(q, k, v, positions, 0.35, window=70)
    assert (np.abs(y - ideal) <= bound).all()
    unseen = np.r_[0 : offset + 59]
    k.q[unseen], v.q[unseen], k.e[unseen], v.e[unseen] = 32512, -32512, 36, 36
    assert same(attend(q, k, v, positions, 0.35, window=70), y)
    k.q[offset + 59] += 500
    assert not same(attend(q, k, v, positions, 0.35, window=70), y)


@pytest.mark.parametrize("window", [1, 63, 64, 65, 128, 129, 5000])
def test_window_counts_the_query_itself(window):
    assert sum(stop - start for run in visible_tiles(4000, window) for start, stop in run) == min(
        window, 4001
    )


def test_tiles_and_runs_lie_at_absolute_positions():
    runs = visible_tiles(2100, 1500)
    assert [run[0][0] for run in runs] == [601, 1024, 2048]
    assert runs[-1] == [(2048, 2101)]
    for run in runs:
        assert all(start // 64 == (stop - 1) // 64 for start, stop in run)
        assert len({start // 1024 for start, _ in run}) == 1


def test_poisoned_rows_behind_and_ahead_are_not_read():
    q, k, v, positions = case([150, 170], keys=256)
    y = attend(q, k, v, positions, 0.25, window=40)
    for unseen in (np.s_[:111], np.s_[171:]):
        for x, exponent in ((k, 120), (v, 127)):
            x.q[unseen], x.e[unseen] = -(2**31), exponent
    assert same(attend(q, k, v, positions, 0.25, window=40), y)


@settings(max_examples=25, deadline=None)
@given(
    first=st.integers(0, 1100),
    count=st.integers(2, 5),
    window=st.sampled_from([0, 1, 50, 64, 700]),
    seed=st.integers(0, 1000),
)
def test_chunked_equals_whole_and_alone_equals_batched(first, count, window, seed):
    q, k, v, positions = case(range(first, first + count), heads=2, kv=1, dk=8, dv=8, seed=seed)
    whole = attend(q, k, v, positions, 0.35, window=window)
    for i, position in enumerate(positions):
        upto = np.s_[: position + 1]
        one = np.s_[i : i + 1]
        alone = attend(cut(q, one), cut(k, upto), cut(v, upto), positions[one], 0.35, window=window)
        assert same(alone[0], whole[i])


def test_split_by_heads_changes_no_bit():
    q, k, v, positions = case([200, 90], heads=8, kv=4)
    sinks = np.arange(8, dtype=np.float32)
    whole = attend(q, k, v, positions, 0.25, sinks=sinks)
    for shards in (2, 4):
        kv, heads = 4 // shards, 8 // shards
        parts = [
            attend(
                cut(q, np.s_[:, i * heads : (i + 1) * heads]),
                cut(k, np.s_[:, i * kv : (i + 1) * kv]),
                cut(v, np.s_[:, i * kv : (i + 1) * kv]),
                positions,
                0.25,
                sinks=sinks[i * heads : (i + 1) * heads],
            )
            for i in range(shards)
        ]
        assert same(np.concatenate(parts, axis=1), whole)


def test_tiles_computed_apart_in_any_order_merge_to_the_same_bits():
    q, k, v, positions = case([2500], heads=2, kv=1)
    query, key, value = cut(q, 0), cut(k, np.s_[:, 0]), cut(v, np.s_[:, 0])
    ranges = [r for run in visible_tiles(2500, 0) for r in run]
    tiles = {r: tile(query, cut(key, slice(*r)), cut(value, slice(*r)), scoring(0.25))
             for r in reversed(ranges)}  # fmt: skip
    state = None
    for run in visible_tiles(2500, 0):
        partial = None
        for r in run:
            partial = merge(partial, tiles[r])
        state = merge(state, partial)
    y = snap(normalise(add_sinks(state, np.float32([1, 2]))))
    assert same(y, attend(q, k, v, positions, 0.25, sinks=np.float32([1, 2]))[0])


@pytest.mark.parametrize("step", [-7, -1, 1, 5])
def test_exponent_ladders_of_scores_and_values(step):
    """Keys and values whose sizes climb or fall by 2^step a tile, through the domain and back."""
    q, k, v, positions = case([639, 500], heads=2, kv=1, dk=8, dv=8)
    ladder = np.clip(np.arange(640) // 64 * step, -35, 35)[:, None].astype(np.int32)
    for key, value in ((k, Quantised(v.q, v.e + ladder)), (Quantised(k.q, k.e + ladder // 4), v)):
        y = attend(q, key, value, positions, 0.35)
        ideal, bound = attention_ideal(q, key, value, positions, 0.35)
        assert (np.abs(y - ideal) <= bound).all()
        assert np.abs(y).max() > 0


def test_a_zero_value_row_and_a_zero_query_are_plain_values():
    q, k, v, positions = case([70])
    q.q[0, 1], q.e[0, 1] = 0, 0
    zero = quantise_rows(np.zeros((1, 2, 16), np.float32))
    v.q[3], v.e[3] = zero.q[0], zero.e[0]
    y = attend(q, k, v, positions, 0.25)
    ideal, bound = attention_ideal(q, k, v, positions, 0.25)
    assert (np.abs(y - ideal) <= bound).all()


def test_scores_beyond_the_clamp_stay_finite():
    q, k, v, positions = case([66], heads=2, kv=1)
    q = Quantised(q.q, np.full_like(q.e, 30))
    k = Quantised(k.q, np.full_like(k.e, 30))
    y = attend(q, k, v, positions, 0.25)
    value = v.q * 2.0 ** v.e[..., None]
    assert np.isfinite(y).all()
    assert (np.abs(y) <= np.abs(value).max() * 1.001).all()


def test_a_sink_that_dominates_gives_zero_and_one_that_vanishes_changes_nothing():
    q, k, v, positions = case([100, 3])
    plain = attend(q, k, v, positions, 0.25)
    huge, tiny = np.full(4, 500, np.float32), np.full(4, -500, np.float32)
    assert not bits(attend(q, k, v, positions, 0.25, sinks=huge)).any()
    assert same(attend(q, k, v, positions, 0.25, sinks=tiny), plain)
    zero = attend(q, k, v, positions, 0.25, sinks=np.zeros(4, np.float32))
    assert (np.abs(zero) <= np.abs(plain)).all()
    assert not same(zero, plain)


def test_a_row_that_sees_no_key_is_plus_zero():
    q, k, v, _ = case([5, 6])
    y = attend(q, k, v, np.array([-1, 6]), 0.25)
    assert not bits(y[0]).any()
    assert bits(y[1]).any()


def test_a_value_outside_the_domain_is_its_rows_fault():
    q, k, v, positions = case([5, 40])
    v.q[20:], v.e[20:] = 32512, 36
    faults = np.zeros(2, np.bool_)
    attend(q, k, v, positions, 0.25, faults=faults)
    assert faults.tolist() == [False, True]


@pytest.mark.parametrize("scale", [0.0, 2.0**-41, 300.0, float("nan")])
def test_scales_that_the_contract_does_not_define_are_refused(scale):
    with pytest.raises(UnsupportedError, match="softmax scale"):
        scoring(scale)


@pytest.mark.parametrize("cap", [0.0, 0.5, 10000.0, -30.0])
def test_soft_caps_that_the_contract_does_not_define_are_refused(cap):
    with pytest.raises(UnsupportedError, match="soft cap"):
        scoring(0.125, cap)
