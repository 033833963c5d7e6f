"""RN(I) from int32 alone: one rounding of a sum of int8 planes for devices without int64.

Each form splits I = A·2²³ + M with |M| < 2²³, so that both parts are exact in float32 and the one
addition rounds. Arithmetic is int32; shifts to the right are arithmetic. (f32(H)·256 + f32(L) is
a different thing: it rounds twice.)
"""

from __future__ import annotations

from cortiq.numerics.contract import F32, Floats, Ints

TWO_23 = F32(8388608)


def _recombine(a: Ints, m: Ints) -> Floats:
    return a.astype(F32) * TWO_23 + m.astype(F32)


def round_two_planes(high: Ints, low: Ints) -> Floats:
    """Return RN(256·high + low): one factor is int8, the other two planes.

    Domain: |high|, |low| ≤ 2²⁹ (K ≤ 32768 products of int8), where nothing overflows.
    Order: c = (low + 128) >> 8; high += c; low −= c << 8; A = (high + 16384) >> 15;
    M = ((high − (A << 15)) << 8) + low; f32(A)·2²³ + f32(M).
    """
    carry = (low + 128) >> 8
    high = high + carry
    low = low - (carry << 8)
    a = (high + 16384) >> 15
    return _recombine(a, ((high - (a << 15)) << 8) + low)


def round_three_planes(high: Ints, middle: Ints, low: Ints) -> Floats:
    """Return RN(65536·high + 256·middle + low): both factors are two planes.

    Domain: |high|, |low| ≤ 2²⁹ and |middle| ≤ 2³⁰ (it sums both cross products).
    Order: carry low into middle and middle into high, each rest in [−128, 128), then
    A = (high + 64) >> 7; M = ((high − (A << 7)) << 16) + (middle << 8) + low; f32(A)·2²³ + f32(M).
    """
    carry = (low + 128) >> 8
    low, middle = low - (carry << 8), middle + carry
    carry = (middle + 128) >> 8
    middle, high = middle - (carry << 8), high + carry
    a = (high + 64) >> 7
    return _recombine(a, ((high - (a << 7)) << 16) + (middle << 8) + low)


def round_one(total: Ints) -> Floats:
    """Return RN(I) of one int32 on a device whose own conversion is not trusted to round to even:
    f32(I >> 12)·4096 + f32(I & 4095).
    """
    return (total >> 12).astype(F32) * F32(4096) + (total & 4095).astype(F32)
