"""Codes of more than 8 bits as integers: E4M3, and bitsandbytes' tables of sixteen 16-bit integers.

An integer is 256·upper + lower. Of E4M3, a mantissa of four bits times 2^n, n = 0 … 14, in units of
2⁻⁹, one part is 0: |upper| ≤ 896, |lower| ≤ 1920, so that sums of 32 products with 16-bit integers
fit int32. Tensor cores take it as four digits of base 16, of which all but one are 0: a digit is at
most 120. The parts of a table's integers are bytes. WIDE says which it is: `host_codes.WIDE_CODES`.
"""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.language import INTERPRETED, Tensor, device
from cortiq_triton.matvec import dp4a


@device
def byte_of(
    index: Tensor, a: tl.constexpr, b: tl.constexpr, c: tl.constexpr, d: tl.constexpr
) -> Tensor:
    """Signed byte `index` of four words: int32."""
    word = tl.where(index < 8, tl.where(index < 4, a, b), tl.where(index < 12, c, d))
    return ((word >> (index % 4 * 8)) << 24) >> 24


@device
def table_parts(index: Tensor, WIDE: tl.constexpr) -> tuple[Tensor, Tensor]:
    """Upper and lower part of the integers at places of a table."""
    if WIDE == 2:
        upper = byte_of(index, -809522813, 16116189, 706679818, 2103068215)
        lower = byte_of(index, -946980260, 11008140, 514658283, -1541660434)
    else:
        upper = byte_of(index, 16842752, 0, -16777216, 0)
        lower = byte_of(index, -1065352960, 807428160, 1082195712, -790585152)
    return upper, lower


@device
def mantissa_and_power(byte: Tensor) -> tuple[Tensor, Tensor]:
    """Signed mantissa and n of bytes, int32."""
    exponent = (byte >> 3) & 15
    mantissa = (byte & 7) | tl.where(exponent > 0, 8, 0)
    mantissa = tl.where((byte & 128) > 0, 0 - mantissa, mantissa)
    return mantissa, tl.maximum(exponent, 1) - 1


@device
def e4m3_parts(byte: Tensor) -> tuple[Tensor, Tensor]:
    """Upper and lower part of the integers of E4M3."""
    mantissa, power = mantissa_and_power(byte)
    low = power < 8
    return (
        tl.where(low, 0, mantissa << tl.where(low, 0, power - 8)),
        tl.where(low, mantissa << tl.where(low, power, 0), 0),
    )


@device
def parts_of(byte: Tensor, WIDE: tl.constexpr) -> tuple[Tensor, Tensor]:
    """Upper and lower part of the integers."""
    if WIDE == 1:
        upper, lower = e4m3_parts(byte)
    else:
        upper, lower = table_parts(byte, WIDE)
    return upper, lower


@device
def integer_of(byte: Tensor, WIDE: tl.constexpr) -> Tensor:
    """The integers that bytes stand for."""
    upper, lower = parts_of(byte, WIDE)
    return upper * 256 + lower


@device
def digit_of(byte: Tensor, DIGIT: tl.constexpr) -> Tensor:
    """A digit of the integers, of those that count 16^DIGIT: int8."""
    mantissa, power = mantissa_and_power(byte)
    own = power // 4 == DIGIT
    return tl.where(own, mantissa << (power % 4), 0).to(tl.int8)


@device
def halves_emulated(pair: Tensor) -> tuple[Tensor, Tensor]:
    """The f16 numbers of words, lower and upper, as float32."""
    lower = pair.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return lower, (pair >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@device
def halves_converted(pair: Tensor) -> tuple[Tensor, Tensor]:
    """The f16 numbers of words, lower and upper, as float32; PTX keeps subnormal ones."""
    return tl.inline_asm_elementwise(
        "{.reg .b16 a, b; mov.b32 {a, b}, $2; cvt.f32.f16 $0, a; cvt.f32.f16 $1, b;}",
        "=r,=r,r", [pair], dtype=(tl.float32, tl.float32), is_pure=True, pack=1,
    )  # fmt: skip


halves = halves_emulated if INTERPRETED else halves_converted


@device
def raised_integer(value: Tensor) -> Tensor:
    """Floats that are integers of 2⁻¹⁷, below 32 in size, as these integers and 0x42C00000: the
    bits of float32 numbers from 64 to 128 count them.
    """
    return (value + 96.0).to(tl.int32, bitcast=True)


@device
def byte_at(words: Tensor, place: tl.constexpr) -> Tensor:
    """A signed byte of words, int32."""
    return (words << (24 - 8 * place)) >> 24


@device
def e4m3_sum(first: Tensor, second: Tensor, third: Tensor, fourth: Tensor, x: Tensor) -> Tensor:
    """Σ code·q of words of four, by raised integers. What they have too much goes off again,
    modulo 2³²; the sum itself is below 2³⁰ for 32 columns.
    """
    much = tl.sum(dp4a(x, x * 0 + 0x01010101), 2) * 0x42C00000
    both = first * byte_at(x, 0) + second * byte_at(x, 1)
    return tl.sum(both + third * byte_at(x, 2) + fourth * byte_at(x, 3), 2) - much


@device
def e4m3_onto(
    words: Tensor, high: Tensor, low: Tensor, high_sum: Tensor, low_sum: Tensor
) -> tuple[Tensor, Tensor]:
    """Sums Σ code·q of either plane after words of E4M3.

    A byte's exponent and mantissa moved into an f16 number are 2⁻⁸ of it, subnormal ones too.
    """
    even = ((words << 8) & -0x7FFF8000) | ((words << 7) & 0x3F803F80)
    odd = (words & -0x7FFF8000) | ((words >> 1) & 0x3F803F80)
    a, c = halves(even)
    b, d = halves(odd)
    a, b, c, d = raised_integer(a), raised_integer(b), raised_integer(c), raised_integer(d)
    return high_sum + e4m3_sum(a, b, c, d, high), low_sum + e4m3_sum(a, b, c, d, low)


@device
def table_onto(
    words: Tensor, high: Tensor, low: Tensor, upper_sum: Tensor, lower_sum: Tensor,
    WIDE: tl.constexpr,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Sums of both parts of the integers after words of places of a table."""
    for place in tl.static_range(4):
        upper, lower = table_parts((words >> (8 * place)) & 255, WIDE)
        x = byte_at(high, place) * 256 + byte_at(low, place)
        upper_sum += tl.sum(upper * x, 2)
        lower_sum += tl.sum(lower * x, 2)
    return upper_sum, lower_sum


@device
def words_onto(
    words: Tensor, high: Tensor, low: Tensor, upper_sum: Tensor, lower_sum: Tensor,
    WIDE: tl.constexpr,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Sums, as 256·upper + lower, after words of four codes met by words of the planes of x."""
    if WIDE == 1:
        upper_sum, lower_sum = e4m3_onto(words, high, low, upper_sum, lower_sum)
    else:
        upper_sum, lower_sum = table_onto(words, high, low, upper_sum, lower_sum, WIDE)
    return upper_sum, lower_sum


@device
def digit_dots(codes: Tensor, qh: Tensor, ql: Tensor, nothing: Tensor) -> tuple[Tensor, Tensor]:
    """`tile_dots` of E4M3."""
    upper, lower = nothing, nothing
    for n in tl.static_range(4):
        digit = digit_of(codes, n)
        high = tl.dot(digit, qh, nothing, out_dtype=tl.int32)
        both = high * 256 + tl.dot(digit, ql, nothing, out_dtype=tl.int32)
        if n < 2:
            lower += both * (1 if n == 0 else 16)
        else:
            upper += both * (1 if n == 2 else 16)
    return upper, lower


@device
def table_dots(
    index: Tensor, qh: Tensor, ql: Tensor, nothing: Tensor, WIDE: tl.constexpr
) -> tuple[Tensor, Tensor]:
    """`tile_dots` of places of a table."""
    upper, lower = table_parts(index, WIDE)
    upper, lower = upper.to(tl.int8), lower.to(tl.int8)
    high = tl.dot(upper, qh, nothing, out_dtype=tl.int32)
    low = tl.dot(lower, qh, nothing, out_dtype=tl.int32)
    return (
        high * 256 + tl.dot(upper, ql, nothing, out_dtype=tl.int32),
        low * 256 + tl.dot(lower, ql, nothing, out_dtype=tl.int32),
    )


@device
def tile_dots(
    codes: Tensor, qh: Tensor, ql: Tensor, nothing: Tensor, WIDE: tl.constexpr
) -> tuple[Tensor, Tensor]:
    """Sums of both parts of 32 columns, codes int8 [BN, 32] by planes [32, BM]: int32 [BN, BM]."""
    codes = codes.to(tl.int32) & 255
    if WIDE == 1:
        upper, lower = digit_dots(codes, qh, ql, nothing)
    else:
        upper, lower = table_dots(codes, qh, ql, nothing, WIDE)
    return upper, lower
