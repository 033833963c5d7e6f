"""E4M3 codes as integers: mantissas of four bits times 2^n, n = 0 … 14, in units of 2⁻⁹.

An integer is 256·upper + lower, of which one is 0: |upper| ≤ 896, |lower| ≤ 1920, so that sums of
32 products with 16-bit integers fit int32. Tensor cores take it as four digits of base 16, of which
all but one are 0: a digit is at most 120.
"""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.language import Tensor, device


@device
def mantissa_and_power(byte: Tensor) -> tuple[Tensor, Tensor]:
    """Signed mantissa and n of bytes, int32."""
    exponent = (byte >> 3) & 15
    mantissa = (byte & 7) | tl.where(exponent > 0, 8, 0)
    mantissa = tl.where((byte & 128) > 0, 0 - mantissa, mantissa)
    return mantissa, tl.maximum(exponent, 1) - 1


@device
def integer_of(byte: Tensor) -> Tensor:
    """The integers that bytes stand for."""
    mantissa, power = mantissa_and_power(byte)
    return mantissa << power


@device
def parts_of(byte: Tensor) -> tuple[Tensor, Tensor]:
    """Upper and lower part of the integers."""
    mantissa, power = mantissa_and_power(byte)
    low = power < 8
    return (
        tl.where(low, 0, mantissa << tl.where(low, 0, power - 8)),
        tl.where(low, mantissa << tl.where(low, power, 0), 0),
    )


@device
def digit_of(byte: Tensor, DIGIT: tl.constexpr) -> Tensor:
    """A digit of the integers, of those that count 16^DIGIT: int8."""
    mantissa, power = mantissa_and_power(byte)
    own = power // 4 == DIGIT
    return tl.where(own, mantissa << (power % 4), 0).to(tl.int8)


@device
def words_onto(
    words: Tensor, high: Tensor, low: Tensor, upper_sum: Tensor, lower_sum: Tensor
) -> tuple[Tensor, Tensor]:
    """Sums of both parts after words of four codes, met by words of the planes of x."""
    for j in tl.static_range(4):
        upper, lower = parts_of((words >> (8 * j)) & 255)
        x = ((high << (24 - 8 * j)) >> 24) * 256 + ((low << (24 - 8 * j)) >> 24)
        upper_sum += tl.sum(upper * x, 2)
        lower_sum += tl.sum(lower * x, 2)
    return upper_sum, lower_sum


@device
def tile_dots(codes: Tensor, qh: Tensor, ql: Tensor, nothing: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of both parts of 32 columns, codes int8 [BN, 32] by planes [32, BM]: int32 [BN, BM]."""
    upper, lower = nothing, nothing
    for n in tl.static_range(4):
        digit = digit_of(codes.to(tl.int32) & 255, n)
        high = tl.dot(digit, qh, nothing, out_dtype=tl.int32)
        both = high * 256 + tl.dot(digit, ql, nothing, out_dtype=tl.int32)
        if n < 2:
            lower += both * (1 if n == 0 else 16)
        else:
            upper += both * (1 if n == 2 else 16)
    return upper, lower
