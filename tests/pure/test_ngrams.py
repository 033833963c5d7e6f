"""Hashed n-grams and windows of listed keys: plain formulas, and rows of transformers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortiq.ir.op import violations_of
from cortiq.ir.ops import HashNGrams
from cortiq.models.ngram_hashes import multipliers, primes
from cortiq.numerics.key_blocks import list_keys, window_blocks
from cortiq.numerics.ngrams import ngram_rows

END, FACTORS, HEIGHTS = 2, (2**62 + 11, 2**61 - 5, 12345), (11, 13, 17, 19)


def plainly(tokens):
    """Rows by a loop over Python's integers."""
    found = []
    for t, token in enumerate(tokens):
        grams = [token]
        while len(grams) < len(FACTORS):
            before = t - len(grams)
            cut = before < 0 or END in tokens[before:t]
            grams.append(END if cut else tokens[before])
        products = [g * m % 2**64 for g, m in zip(grams, FACTORS, strict=True)]
        pair = products[0] ^ products[1]
        mixed = [pair, pair, pair ^ products[2], pair ^ products[2]]
        found.append(
            [x % n + sum(HEIGHTS[:h]) for h, (x, n) in enumerate(zip(mixed, HEIGHTS, strict=True))]
        )
    return np.array(found, np.int32).reshape(len(tokens), len(HEIGHTS))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.data())
def test_rows_are_those_of_a_loop_whatever_the_chunks(tokens, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=3)))
    history, parts = np.zeros((2, 1), np.float32), []
    for start, stop in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        chunk = np.array(tokens[start:stop], np.int64)
        found, kept = ngram_rows(history, chunk, END, FACTORS, HEIGHTS)
        history = np.concatenate([history, kept])[-2:]
        parts.append(found)
    assert np.array_equal(np.concatenate(parts), plainly(tokens))


def test_a_token_that_ends_hides_what_is_before_it_but_not_itself():
    def last(*tokens):
        history = np.zeros((2, 1), np.float32)
        return ngram_rows(history, np.array(tokens), END, FACTORS, HEIGHTS)[0][-1].tolist()

    assert last(7, END, 4) == last(5, END, 4) == last(4)
    assert last(5, 7, END) != last(6, 7, END)


def test_factors_and_sizes_are_transformers():
    modelling = pytest.importorskip("transformers.models.qwen4_exp.modeling_qwen4_exp")
    for place in (0, 2):
        theirs = modelling._build_layer_multipliers(248320, 3, place, 1234)
        assert multipliers(248320, 3, 1234, place) == tuple(theirs.tolist())
    theirs = [modelling._find_nth_prime_after(20_000_000 - 1, n + 1) for n in range(4)]
    assert primes(20_000_000 - 1, 4) == theirs


@pytest.mark.parametrize(("every", "top"), [(4, 2), (3, 50), (5, 1)])
def test_windows_are_those_that_listed_keys_close_and_the_rows_own(every, top):
    positions = np.arange(40)
    keys = list_keys(positions, every, top)
    windows = window_blocks(keys, positions, every)
    for p, listed, blocks in zip(positions, keys[:, 0], windows[:, 0], strict=True):
        visible = {int(j) // every for j in listed if j <= p}
        visible |= {int(p) // every} if (p + 1) % every else set()
        seen = {int(b) for b in blocks if b * every <= p}
        assert seen == visible
        assert (np.diff(blocks) > 0).all()


@pytest.mark.parametrize(
    "op",
    [
        HashNGrams(1, (3,), (5,)), HashNGrams(1, (3, 5, 7), (5, 7, 9)),
        HashNGrams(-1, (3, 5), (5,)), HashNGrams(1, (3, 2**63), (5,)),
        HashNGrams(1, (3, 5), (2**31 - 1, 2)),
    ],
)  # fmt: skip
def test_hashes_without_a_table_are_refused(op):
    assert violations_of(op)
