"""Copy detection and prompt lookup: the definition's golden values, and the index against it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortiq.engine.drafters.lookup import LookupDrafter, trusted
from cortiq.engine.drafters.ngrams import (
    CHAIN,
    GRAM,
    LONGEST,
    NgramIndex,
    lookup_continuation,
    tail_repeat,
)


@pytest.mark.parametrize(
    ("ids", "length"),
    [
        ([], 0),
        ([5], 0),
        ([1, 2, 3, 4], 0),
        ([1, 2, 3, 9, 1, 2, 3], 3),
        ([1, 2, 3, 4, 8, 3, 4, 7, 1, 2, 3, 4], 4),
        ([1, 2, 1, 2], 2),
        ([*range(40), *range(40)], 32),
    ],
)
def test_tail_repeat_counts_the_copied_stretch(ids, length):
    assert tail_repeat(ids) == length


@pytest.mark.parametrize(
    ("ids", "least", "count", "next_ids"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 9, 9, 2, 3, 4], 3, 3, [5, 6, 7]),
        ([1, 2, 3, 4, 5, 6, 7, 9, 9, 2, 3, 4], 3, 2, [5, 6]),
        ([1, 2, 3, 4, 5, 6, 7, 9, 9, 2, 3, 4], 4, 3, []),
        ([5, 2, 3, 4, 8, 0, 3, 4, 7, 0, 5, 2, 3, 4], 2, 1, [8]),
        ([2, 3, 4, 8, 0, 2, 3, 4, 7, 0, 2, 3, 4], 2, 1, [7]),
        ([9, 2, 3, 4, 8, 5, 2, 3, 4, 7, 6, 2, 3, 4], 3, 1, [7]),
        ([1, 2, 1, 2, 1, 2], 3, 4, [1, 2]),
        ([1, 2], 3, 4, []),
        ([], 3, 4, []),
        ([1, 2, 3, 1, 2, 3], 0, 4, []),
        ([1, 2, 3, 1, 2, 3], 3, 0, []),
    ],
)
def test_lookup_continues_a_repeated_stretch(ids, least, count, next_ids):
    assert list(lookup_continuation(ids, least, count)) == next_ids
    index = NgramIndex()
    index.extend(ids)
    if least >= GRAM:  # shorter matches are none of the index's
        drafted = LookupDrafter().open(None).propose(ids, count).ids
        found = index.match()
        assert (found.length >= least) is bool(next_ids or count <= 0)
        assert list(index.continuation(found, count))[: len(next_ids)] == next_ids
        assert list(drafted[: len(next_ids)]) == next_ids[: trusted(found.length, count)]


@pytest.mark.parametrize(
    ("ids", "count", "drafts"),
    [
        # the longest match goes before a later one that is shorter, the latest before its equals
        ([5, 2, 3, 4, 1, 8, 9, 0, 3, 4, 1, 7, 0, 5, 2, 3, 4, 1], 1, [8]),
        ([9, 2, 3, 4, 8, 5, 2, 3, 4, 7, 6, 2, 3, 4], 1, [7]),
        ([1, 2, 3, 4, 5, 6, 7, 9, 9, 2, 3], 3, []),
    ],
)
def test_t04_what_is_drafted_is_the_stretch_that_is_repeated(ids, count, drafts):
    assert list(LookupDrafter().open(None).propose(ids, count).ids) == drafts


few_ids = st.lists(st.integers(0, 3), max_size=CHAIN)


@settings(max_examples=150, deadline=None)
@given(few_ids, st.data())
def test_index_is_the_scan_whatever_was_added_and_taken_away(ids, data):
    index, now = NgramIndex(), []
    for _ in range(3):
        now = now[: data.draw(st.integers(0, len(now)))]
        index.truncate(len(now))
        cut = data.draw(st.integers(0, len(ids)))
        now = now + ids[cut:]
        index.extend(ids[cut:])
        assert index.ids == now
        match, length = index.match(), tail_repeat(now)
        assert match.length == (length if length >= GRAM else 0)
        found = index.continuation(match, 5)
        plain = list(lookup_continuation(now, GRAM, 5))
        assert list(found[: len(plain)]) == plain
        assert len(found) == (5 if match.length else 0)


@settings(max_examples=100, deadline=None)
@given(st.lists(few_ids, min_size=1, max_size=4))
def test_index_follows_any_sequence(texts):
    index, before = NgramIndex(), []
    for text in texts:
        text = before[: len(before) // 2] + text
        index.follow(text)
        assert len(index.ids) == len(text)
        assert not text or index.ids[-1] == text[-1]
        before = text


def test_a_copy_runs_on_past_the_end_into_itself():
    index = NgramIndex()
    index.extend([9, 1, 2, 1, 2, 1, 2])
    assert index.continuation(index.match(), 5) == (1, 2, 1, 2, 1)


def test_search_is_bounded_and_latest_first():
    index = NgramIndex()
    index.extend([7, 8, 9, 1] * 500)
    index.extend([5, 7, 8, 9])
    assert index.match().length == GRAM
    assert index.match().after == 4 * 500 - 1
    index.extend(range(100, 100 + LONGEST))
    index.extend(range(100, 100 + LONGEST))
    assert index.match().length == LONGEST


def test_drafter_drafts_more_the_longer_a_match_is():
    drafting = LookupDrafter().open(None)
    text = list(range(50))
    assert drafting.propose(text, 8).ids == ()
    assert drafting.propose([*text, 10, 11], 8).ids == ()
    assert drafting.propose([*text, 10, 11, 12], 8).ids == (13,)
    assert drafting.propose([*text, *range(10, 16)], 8).ids == tuple(range(16, 24))
    assert trusted(GRAM, 8) == 1 and trusted(LONGEST, 8) == 8


def test_drafter_goes_back_with_the_sequence():
    drafting = LookupDrafter().open(None)
    text = [1, 2, 3, 4, 5, 6, 7, 8]
    assert drafting.propose([*text, 2, 3, 4], 4).ids == (5,)
    assert drafting.propose([*text, 5, 6, 7], 4).ids == (8,)
    assert drafting.propose(text[:3], 4).ids == ()
