"""Philox against the known answers published with Random123."""

from __future__ import annotations

import numpy as np
import pytest

from cortiq.numerics.philox import key_of_seed, philox

KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def words(text):
    return tuple(int(word, 16) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_known_answers(counter, key, answer):
    assert tuple(int(word) for word in philox(words(counter), words(key))) == words(answer)


def test_a_vector_of_counters_equals_single_counters():
    ids = np.arange(1000)
    together = philox((ids, 7, 1, 2), (3, 4))
    for i in (0, 1, 500, 999):
        alone = philox((i, 7, 1, 2), (3, 4))
        assert [int(word[i]) for word in together] == [int(word) for word in alone]


def test_every_word_of_counter_and_key_matters():
    base = philox((1, 2, 3, 4), (5, 6))
    for place in range(4):
        counter = [1, 2, 3, 4]
        counter[place] ^= 1 << 31
        assert philox(tuple(counter), (5, 6)) != base
    assert philox((1, 2, 3, 4), (5 ^ 1 << 31, 6)) != base
    assert philox((1, 2, 3, 4), (5, 7)) != base


def test_seed_words():
    assert key_of_seed(0x0123456789ABCDEF) == (0x89ABCDEF, 0x01234567)
