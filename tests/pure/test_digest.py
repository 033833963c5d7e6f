"""The digest: every bit and every position counts, order and slicing do not."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from floats import canonical

from cortiq.numerics.contract import F32
from cortiq.numerics.digest import EMPTY, combine, digest, hexadecimal

RNG = np.random.default_rng(0)
SAMPLE = canonical(RNG, 3000)
KNOWN = "03e354f15e0f42b2646761683193aae2"
"""Digest of (1, −2.5)."""


def by_the_definition(values):
    """The docstring's sums, one Python integer at a time."""
    low = 0xFFFFFFFF

    def mix(word):
        word = ((word ^ (word >> 16)) * 0x7FEB352D) & low
        word = ((word ^ (word >> 15)) * 0x846CA68B) & low
        return word ^ (word >> 16)

    sums = [0, 0, 0, 0]
    for i, bits in enumerate(values.view(np.uint32).tolist()):
        word = bits ^ mix((i + 0x85EBCA6B) & low)
        for lane in range(4):
            key = (0x9E3779B9 * (lane + 1)) & low
            sums[lane] = (sums[lane] + mix((word + key) & low)) & low
    return tuple(sums)


def changed_words(a, b):
    return sum(x != y for x, y in zip(a, b, strict=True))


def test_integers_of_the_definition():
    assert digest(SAMPLE[:500]) == by_the_definition(SAMPLE[:500])
    assert hexadecimal(digest(np.array([1, -2.5], F32))) == KNOWN


def test_empty_array():
    assert digest(np.zeros(0, F32)) == EMPTY


@pytest.mark.parametrize("cuts", [[1], [1000, 1001], [7, 8, 2999]])
def test_slices_add_up(cuts):
    bounds = [0, *cuts, len(SAMPLE)]
    parts = [digest(SAMPLE[a:b], a) for a, b in pairwise(bounds)]
    assert combine(parts) == combine(reversed(parts)) == digest(SAMPLE)


def test_chunking_inside_is_invisible():
    x = canonical(RNG, 200_000)
    assert digest(x) == combine([digest(x[:65_537]), digest(x[65_537:], 65_537)])
    assert digest(x.reshape(4, 500, 100)) == digest(x)


def test_one_flipped_bit_changes_all_four_words():
    base = digest(SAMPLE)
    for bit in range(32):
        for place in (0, 1, 1234, 2999):
            x = SAMPLE.copy().view(np.uint32)
            x[place] ^= np.uint32(1 << bit)
            assert changed_words(base, digest(x.view(F32))) == 4


def test_flips_avalanche():
    """A flipped input bit flips each output bit about half of the time."""
    base = np.array(digest(SAMPLE), np.uint32)
    flips = np.zeros(128)
    trials = 0
    for place in range(0, 3000, 50):
        for bit in range(0, 32, 3):
            x = SAMPLE.copy().view(np.uint32)
            x[place] ^= np.uint32(1 << bit)
            different = np.array(digest(x.view(F32)), np.uint32) ^ base
            flips += np.unpackbits(different.view(np.uint8))
            trials += 1
    assert np.all(np.abs(flips / trials - 0.5) < 0.12)


def test_swapped_and_moved_elements_change_all_four_words():
    base = digest(SAMPLE)
    for a, b in ((0, 1), (5, 2000), (100, 101), (2998, 2999)):
        if SAMPLE[a] == SAMPLE[b]:
            continue
        x = SAMPLE.copy()
        x[[a, b]] = x[[b, a]]
        assert changed_words(base, digest(x)) == 4
    assert changed_words(base, digest(np.roll(SAMPLE, 1))) == 4
    assert changed_words(base, digest(SAMPLE[::-1])) == 4


def test_zeros_count_their_number_and_minus_zero_differs():
    seen = {digest(np.zeros(n, F32)) for n in range(100)}
    assert len(seen) == 100
    assert digest(-np.zeros(3, F32)) != digest(np.zeros(3, F32))


def test_indices_beyond_32_bits_are_refused():
    digest(np.zeros(1, F32), 2**32 - 1)
    with pytest.raises(ValueError, match="32-bit"):
        digest(np.zeros(2, F32), 2**32 - 1)
