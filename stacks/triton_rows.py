"""Kernels over rows in Triton: quantise, the canonical sum, RMSNorm, RoPE, argmax, Philox, digest.

One program handles one row; loads past its end give +0, which the contract's sums allow for.
"""

from __future__ import annotations

import triton
import triton.language as tl

from cortiq.numerics.digest import INDEX_KEY, LANE_KEYS, MIX_MULTIPLIERS
from cortiq.numerics.philox import KEY_INCREMENTS, MULTIPLIERS
from cortiq_triton.language import Tensor, signed
from cortiq_triton.scalar import (
    SMALLEST_BITS,
    exp2_int,
    magnitude_bits,
    outside,
    rint,
    snapped,
    split_planes,
)

M0, M1 = map(tl.constexpr, MULTIPLIERS)
K0, K1 = map(tl.constexpr, KEY_INCREMENTS)
MIX0, MIX1 = (tl.constexpr(signed(word)) for word in MIX_MULTIPLIERS)
LANE0, LANE1, LANE2, LANE3 = (tl.constexpr(signed(word)) for word in LANE_KEYS)
INDEX = tl.constexpr(signed(INDEX_KEY))


@triton.jit
def snap_rows(x: Tensor, out: Tensor, faults: Tensor, n: Tensor, WIDTH: tl.constexpr) -> None:
    """Canonical rows, and one fault flag a row."""
    row, i = tl.program_id(0), tl.arange(0, WIDTH)
    value = tl.load(x + row * n + i, mask=i < n, other=0.0)
    tl.store(out + row * n + i, snapped(value), mask=i < n)
    tl.store(faults + row, tl.max(outside(value).to(tl.int32), 0))


@triton.jit
def quantise_rows(
    x: Tensor, high: Tensor, low: Tensor, exponent: Tensor, n: Tensor, WIDTH: tl.constexpr
) -> None:
    """Row of x [rows, n] as two planes and an exponent."""
    row, i = tl.program_id(0), tl.arange(0, WIDTH)
    value = tl.load(x + row * n + i, mask=i < n, other=0.0)
    largest = tl.max(magnitude_bits(value), 0)
    empty = largest < SMALLEST_BITS
    e = ((tl.maximum(largest, SMALLEST_BITS) + 0x20000) >> 23) - 141
    q = tl.where(empty, 0, rint(value * exp2_int(-e)).to(tl.int32))
    carry, rest = split_planes(q)
    tl.store(high + row * n + i, carry, mask=i < n)
    tl.store(low + row * n + i, rest, mask=i < n)
    tl.store(exponent + row, e)


@triton.jit
def fold(lanes: Tensor) -> Tensor:
    """Lane i += lane i+h for h = 128, 64, …, 1; a block of the one value left."""
    for step in tl.static_range(8):
        first, second = tl.split(tl.trans(tl.reshape(lanes, (2, 128 >> step))))
        lanes = first + second
    return lanes


@triton.jit
def canonical_sum(x: Tensor, out: Tensor, n: Tensor) -> None:
    """The sum of a row of x [rows, n]."""
    row, lane = tl.program_id(0), tl.arange(0, 256)
    lanes = tl.zeros((256,), tl.float32)
    for start in range(0, n, 256):
        lanes += tl.load(x + row * n + start + lane, mask=start + lane < n, other=0.0)
    tl.store(out + row + tl.arange(0, 1), fold(lanes))


@triton.jit
def rms_norm(
    x: Tensor, weight: Tensor, out: Tensor, n: Tensor, one_over_n: Tensor, eps: Tensor
) -> None:
    """Row of x [rows, n] over its root mean square, times the weight [n]."""
    row, lane = tl.program_id(0), tl.arange(0, 256)
    lanes = tl.zeros((256,), tl.float32)
    for start in range(0, n, 256):
        value = tl.load(x + row * n + start + lane, mask=start + lane < n, other=0.0)
        lanes += value * value
    mean = fold(lanes) * one_over_n
    r = tl.div_rn(tl.full((1,), 1.0, tl.float32), tl.sqrt_rn(mean + eps))
    for start in range(0, n, 256):
        inside = start + lane < n
        value = tl.load(x + row * n + start + lane, mask=inside, other=0.0)
        scaled = (value * r) * tl.load(weight + start + lane, mask=inside, other=0.0)
        tl.store(out + row * n + start + lane, snapped(scaled), mask=inside)


@triton.jit
def argmax(x: Tensor, out: Tensor, n: Tensor, WIDTH: tl.constexpr) -> None:
    """The lowest index of the largest value: integers that order as the floats do."""
    row, i = tl.program_id(0), tl.arange(0, WIDTH)
    key = tl.load(x + row * n + i, mask=i < n, other=0.0).to(tl.int32, bitcast=True)
    key = tl.where(i < n, key ^ ((key >> 31) & 0x7FFFFFFF), -2147483648)
    tl.store(out + row, tl.min(tl.where(key == tl.max(key, 0), i, n), 0))


@triton.jit
def rope(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    out: Tensor,
    heads: Tensor,
    width: Tensor,
    pairs: Tensor,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """One head of one row: pairs turned by the row's angles, elements past them passed through."""
    row, i = tl.program_id(0) // heads, tl.arange(0, WIDTH)
    base = tl.program_id(0) * width
    turned = i < 2 * pairs
    if HALF:
        pair, first = i % pairs, i < pairs
        partner = tl.where(first, i + pairs, i - pairs)
    else:
        pair, first = i // 2, i % 2 == 0
        partner = tl.where(first, i + 1, i - 1)
    value = tl.load(x + base + i, mask=i < width, other=0.0)
    other = tl.load(x + base + partner, mask=turned, other=0.0)
    c = tl.load(cos + row * pairs + pair, mask=turned, other=0.0)
    s = tl.load(sin + row * pairs + pair, mask=turned, other=0.0)
    along, across = value * c, other * s
    y = tl.where(first, along - across, along + across)
    tl.store(out + base + i, tl.where(turned, snapped(y), value), mask=i < width)


@triton.jit
def philox(counters: Tensor, keys: Tensor, out: Tensor, n: Tensor, BLOCK: tl.constexpr) -> None:
    """Ten rounds on each counter [n, 4] with its key [n, 2]."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    c0 = tl.load(counters + 4 * i, mask=inside, other=0).to(tl.uint32, bitcast=True)
    c1 = tl.load(counters + 4 * i + 1, mask=inside, other=0).to(tl.uint32, bitcast=True)
    c2 = tl.load(counters + 4 * i + 2, mask=inside, other=0).to(tl.uint32, bitcast=True)
    c3 = tl.load(counters + 4 * i + 3, mask=inside, other=0).to(tl.uint32, bitcast=True)
    k0 = tl.load(keys + 2 * i, mask=inside, other=0).to(tl.uint32, bitcast=True)
    k1 = tl.load(keys + 2 * i + 1, mask=inside, other=0).to(tl.uint32, bitcast=True)
    m0, m1 = tl.full((BLOCK,), M0, tl.uint32), tl.full((BLOCK,), M1, tl.uint32)
    for _ in tl.static_range(10):
        high0, high1 = tl.umulhi(m0, c0), tl.umulhi(m1, c2)
        low0, low1 = m0 * c0, m1 * c2
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + K0, k1 + K1
    tl.store(out + 4 * i, c0.to(tl.int32, bitcast=True), mask=inside)
    tl.store(out + 4 * i + 1, c1.to(tl.int32, bitcast=True), mask=inside)
    tl.store(out + 4 * i + 2, c2.to(tl.int32, bitcast=True), mask=inside)
    tl.store(out + 4 * i + 3, c3.to(tl.int32, bitcast=True), mask=inside)


@triton.jit
def shifted(word: Tensor, distance: tl.constexpr) -> Tensor:
    """The int32 word shifted right as an unsigned one."""
    return (word >> distance) & ((1 << (32 - distance)) - 1)


@triton.jit
def mix(word: Tensor) -> Tensor:
    """The digest's bijection, on int32: products wrap alike with or without a sign."""
    word = (word ^ shifted(word, 16)) * MIX0
    word = (word ^ shifted(word, 15)) * MIX1
    return word ^ shifted(word, 16)


@triton.jit
def digest(x: Tensor, out: Tensor, n: Tensor, BLOCK: tl.constexpr) -> None:
    """Four words of the digest of x [n], added up by integer atomics in any order."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(x + i, mask=i < n, other=0) ^ mix(i + INDEX)
    tl.atomic_add(out, tl.sum(tl.where(i < n, mix(word + LANE0), 0), 0))
    tl.atomic_add(out + 1, tl.sum(tl.where(i < n, mix(word + LANE1), 0), 0))
    tl.atomic_add(out + 2, tl.sum(tl.where(i < n, mix(word + LANE2), 0), 0))
    tl.atomic_add(out + 3, tl.sum(tl.where(i < n, mix(word + LANE3), 0), 0))
