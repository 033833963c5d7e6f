"""Kernels over rows in Triton: quantise, the canonical sum, RMSNorm, RoPE, argmax, Philox, digest.

One program handles one row; loads past its end give +0, which the contract's sums allow for.
"""

from __future__ import annotations

import triton
import triton.language as tl

from stacks.triton_scalar import SMALLEST, exp2_int, rint, snapped

SMALLEST_BITS = tl.constexpr((127 - 40) << 23)
LARGEST_BITS = tl.constexpr((127 + 50) << 23)


@triton.jit
def magnitude_bits(x):
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def snap_rows(x, out, faults, n, WIDTH: tl.constexpr):
    """Canonical rows, and one fault flag a row."""
    row, i = tl.program_id(0), tl.arange(0, WIDTH)
    value = tl.load(x + row * n + i, mask=i < n, other=0.0)
    fault = magnitude_bits(value) >= LARGEST_BITS
    keep = (tl.abs(value) >= SMALLEST) & (fault == 0)
    tl.store(out + row * n + i, tl.where(keep, value, 0.0), mask=i < n)
    tl.store(faults + row, tl.max(fault.to(tl.int32), 0))


@triton.jit
def split_planes(q):
    """An integer as two int8 planes, q = 256·high + low."""
    high = (q + 128) >> 8
    return high.to(tl.int8), (q - (high << 8)).to(tl.int8)


@triton.jit
def quantise_rows(x, high, low, exponent, n, WIDTH: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, WIDTH)
    value = tl.load(x + row * n + i, mask=i < n, other=0.0)
    largest = tl.max(magnitude_bits(value), 0)
    empty = largest < SMALLEST_BITS
    e = tl.where(empty, 0, ((largest + 0x20000) >> 23) - 141)
    q = tl.where(empty, 0, rint(value * exp2_int(-e)).to(tl.int32))
    h, l = split_planes(q)
    tl.store(high + row * n + i, h, mask=i < n)
    tl.store(low + row * n + i, l, mask=i < n)
    tl.store(exponent + row, e)


@triton.jit
def fold(lanes):
    """Lane i += lane i+h for h = 128, 64, …, 1; a block of the one value left."""
    for step in tl.static_range(8):
        first, second = tl.split(tl.trans(tl.reshape(lanes, (2, 128 >> step))))
        lanes = first + second
    return lanes


@triton.jit
def canonical_sum(x, out, n):
    row, lane = tl.program_id(0), tl.arange(0, 256)
    lanes = tl.zeros((256,), tl.float32)
    for start in range(0, n, 256):
        lanes += tl.load(x + row * n + start + lane, mask=start + lane < n, other=0.0)
    tl.store(out + row + tl.arange(0, 1), fold(lanes))


@triton.jit
def rms_norm(x, weight, out, n, one_over_n, eps):
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
def argmax(x, out, n, WIDTH: tl.constexpr):
    """The lowest index of the largest value: integers that order as the floats do."""
    row, i = tl.program_id(0), tl.arange(0, WIDTH)
    key = tl.load(x + row * n + i, mask=i < n, other=0.0).to(tl.int32, bitcast=True)
    key = tl.where(i < n, key ^ ((key >> 31) & 0x7FFFFFFF), -2147483648)
    tl.store(out + row, tl.min(tl.where(key == tl.max(key, 0), i, n), 0))


@triton.jit
def philox_round(c0, c1, c2, c3, k0, k1):
    high0, high1 = tl.umulhi(c0, 0xD2511F53), tl.umulhi(c2, 0xCD9E8D57)
    low0, low1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
    return high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
