"""RN(I) from int32 alone, against the rounding of the 64-bit integer."""

from __future__ import annotations

import numpy as np
import pytest

from cortiq.numerics.planes import round_one, round_three_planes, round_two_planes
from cortiq.numerics.quantise import planes


def bits(x):
    return x.view(np.int32)


def int32_pairs(rng, count, limit):
    return rng.integers(-limit, limit + 1, count).astype(np.int32)


EDGES = np.array(
    [0, 1, -1, 127, 128, 129, -127, -128, -129, 16383, 16384, -16384, -16385, 32767, 32768]
    + [2**n + d for n in (20, 23, 24, 25, 28) for d in (-1, 0, 1)]
    + [2**29, -(2**29), 2**29 - 1],
    np.int64,
).astype(np.int32)


def rn(total):
    return total.astype(np.float32)


def test_two_planes_round_as_the_integer_does():
    rng = np.random.default_rng(2)
    high, low = int32_pairs(rng, 1_500_000, 2**29), int32_pairs(rng, 1_500_000, 2**29)
    high[:500_000] >>= rng.integers(0, 29, 500_000).astype(np.int32)
    low[:1_000_000] >>= rng.integers(0, 29, 1_000_000).astype(np.int32)
    edge_high, edge_low = (grid.ravel() for grid in np.meshgrid(EDGES, EDGES))
    high, low = np.concatenate([high, edge_high]), np.concatenate([low, edge_low])
    expected = rn(high.astype(np.int64) * 256 + low)
    assert np.array_equal(bits(round_two_planes(high, low)), bits(expected))


def test_two_planes_round_ties_to_even():
    odd = np.arange(2**24 + 1, 2**24 + 400_001, 2, dtype=np.int64)
    total = np.concatenate([odd, -odd, odd * 2**7, odd * 2**12 + 1, odd * 2**12 - 1])
    high, low = total >> 8, total & 255
    ours = round_two_planes(high.astype(np.int32), low.astype(np.int32))
    assert np.array_equal(bits(ours), bits(rn(total)))


def test_three_planes_round_as_the_integer_does():
    rng = np.random.default_rng(3)
    count = 1_500_000
    high, low = int32_pairs(rng, count, 2**29), int32_pairs(rng, count, 2**29)
    middle = int32_pairs(rng, count, 2**30)
    for part in (high, middle, low):
        part[:1_000_000] >>= rng.integers(0, 29, 1_000_000).astype(np.int32)
    grid = [axis.ravel() for axis in np.meshgrid(EDGES, EDGES, EDGES)]
    high, middle, low = (
        np.concatenate(pair) for pair in zip((high, middle, low), grid, strict=True)
    )
    expected = rn(high.astype(np.int64) * 65536 + middle.astype(np.int64) * 256 + low)
    assert np.array_equal(bits(round_three_planes(high, middle, low)), bits(expected))


def test_three_planes_round_ties_to_even():
    odd = np.arange(2**24 + 1, 2**24 + 400_001, 2, dtype=np.int64)
    total = np.concatenate([odd, -odd, odd * 2**15, odd * 2**18 + 1, odd * 2**18 - 1])
    parts = ((total >> 16), (total >> 8) & 255, total & 255)
    ours = round_three_planes(*(part.astype(np.int32) for part in parts))
    assert np.array_equal(bits(ours), bits(rn(total)))


def test_one_int32_rounds_as_the_conversion_does():
    rng = np.random.default_rng(4)
    total = rng.integers(-(2**31), 2**31, 2_000_000).astype(np.int32)
    odd = np.arange(2**24 + 1, 2**24 + 200_001, 2).astype(np.int32)
    total = np.concatenate([total, odd, -odd, [2**31 - 1, -(2**31)]]).astype(np.int32)
    assert np.array_equal(bits(round_one(total)), bits(total.astype(np.float32)))


@pytest.mark.parametrize("codes", [127, 32512])
def test_plane_sums_recombine_to_the_integer_of_the_definition(codes):
    rng = np.random.default_rng(6)
    q = rng.integers(-32512, 32513, (3, 4096)).astype(np.int32)
    code = rng.integers(-codes, codes + 1, (5, 4096)).astype(np.int32)
    high, low = (plane.astype(np.int32) for plane in planes(q))
    total = q.astype(np.int64) @ code.astype(np.int64).T
    if codes == 127:
        ours = round_two_planes(high @ code.T, low @ code.T)
    else:
        upper, lower = (plane.astype(np.int32).T for plane in planes(code))
        ours = round_three_planes(high @ upper, high @ lower + low @ upper, low @ lower)
    assert np.array_equal(bits(ours), bits(rn(total)))
