"""Codes of more than 8 bits as integers: E4M3, and bitsandbytes' tables of sixteen 16-bit integers.

An integer is 256·upper + lower. Of E4M3, a mantissa of four bits times 2^n, n = 0 … 14, in units of
2⁻⁹, one part is 0: |upper| ≤ 896, |lower| ≤ 1920, so that sums of 32 products with 16-bit integers
fit int32. Tensor cores take it as four digits of base 16, of which all but one are 0: a digit is at
most 120. The parts of a table's integers are bytes. WIDE says which it is: `host_codes.WIDE_CODES`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.target_info import cuda_capability_geq

from cortiq_triton.language import INTERPRETED, Tensor, constant, device
from cortiq_triton.matvec import quarters, words_dot

LIFT = constant(0x46C00000)
"""Added to E4M3's integers: the bits of 24576, from which float32 numbers are 2⁻⁹ apart."""


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
def lifted_emulated(words: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """LIFT plus the integers of four bytes of words, int32 each."""
    return (
        integer_of(words & 255, 1) + LIFT,
        integer_of((words >> 8) & 255, 1) + LIFT,
        integer_of((words >> 16) & 255, 1) + LIFT,
        integer_of((words >> 24) & 255, 1) + LIFT,
    )


@triton.jit
def lifted_of_words(words: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `lifted_emulated`: the bits of float32 numbers from 2¹⁴ to 2¹⁵ count units of 2⁻⁹.

    Without an instruction for E4M3, a byte's exponent and mantissa moved into an f16 number are
    2⁻⁸ of it; PTX keeps subnormal ones.
    """
    if cuda_capability_geq(8, 9):
        first, second, third, fourth = tl.inline_asm_elementwise(
            "{.reg .b16 l, h, a, b, c, d; .reg .b32 p, q; mov.b32 {l, h}, $4;"
            "cvt.rn.f16x2.e4m3x2 p, l; cvt.rn.f16x2.e4m3x2 q, h;"
            "mov.b32 {a, b}, p; mov.b32 {c, d}, q; .reg .f32 s, t, u, v;"
            "cvt.f32.f16 s, a; cvt.f32.f16 t, b; cvt.f32.f16 u, c; cvt.f32.f16 v, d;"
            "add.f32 s, s, 0f46C00000; add.f32 t, t, 0f46C00000; add.f32 u, u, 0f46C00000;"
            "add.f32 v, v, 0f46C00000; mov.b32 $0, s; mov.b32 $1, t; mov.b32 $2, u;"
            "mov.b32 $3, v;}",
            "=r,=r,=r,=r,r", [words], dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=True,
            pack=1,
        )  # fmt: skip
    else:
        even = ((words << 8) & -0x7FFF8000) | ((words << 7) & 0x3F803F80)
        odd = (words & -0x7FFF8000) | ((words >> 1) & 0x3F803F80)
        first, second = lifted_half(even), lifted_half(odd)
        third, fourth = lifted_half(even >> 16), lifted_half(odd >> 16)
    return first, second, third, fourth


@triton.jit
def lifted_half(pair: Tensor) -> Tensor:
    """The bits of 256 times the lower f16 number of words, and LIFT's."""
    half = pair.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return tl.fma(half, 256.0, 24576.0).to(tl.int32, bitcast=True)


lifted = lifted_emulated if INTERPRETED else lifted_of_words


@device
def onto_emulated(a: Tensor, b: Tensor, total: Tensor) -> Tensor:
    """total + a·b, modulo 2³²."""
    return total + a * b


@device
def onto_instruction(a: Tensor, b: Tensor, total: Tensor) -> Tensor:
    """total + a·b, modulo 2³², in one instruction."""
    return tl.inline_asm_elementwise(
        "mad.lo.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, total], dtype=tl.int32, is_pure=True,
        pack=1,
    )  # fmt: skip


onto = onto_emulated if INTERPRETED else onto_instruction


@device
def byte_at(words: Tensor, place: tl.constexpr) -> Tensor:
    """A signed byte of words, int32."""
    return (words << (24 - 8 * place)) >> 24


@device
def without_lift(first: Tensor, second: Tensor) -> Tensor:
    """−LIFT·Σq of eight words of a plane of x, [T, 1, 4] each, modulo 2³²: int32 [T, 1, 1]."""
    ones = first * 0 + 0x01010101
    total = words_dot(first, ones, tl.full((first.shape[0], 1, 1), 0, tl.int32))
    return words_dot(second, ones, total) * -LIFT


@device
def word_onto(
    words: Tensor, high: Tensor, low: Tensor, high_sum: Tensor, low_sum: Tensor
) -> tuple[Tensor, Tensor]:
    """Sums Σ (LIFT + code)·q of either plane after words of four E4M3 codes, modulo 2³²."""
    first, second, third, fourth = lifted(words)
    high_sum = onto(first, byte_at(high, 0), high_sum)
    low_sum = onto(first, byte_at(low, 0), low_sum)
    high_sum = onto(second, byte_at(high, 1), high_sum)
    low_sum = onto(second, byte_at(low, 1), low_sum)
    high_sum = onto(third, byte_at(high, 2), high_sum)
    low_sum = onto(third, byte_at(low, 2), low_sum)
    return onto(fourth, byte_at(high, 3), high_sum), onto(fourth, byte_at(low, 3), low_sum)


@device
def e4m3_onto(
    words: Tensor, high: Tensor, low: Tensor, high_sum: Tensor, low_sum: Tensor
) -> tuple[Tensor, Tensor]:
    """As `word_onto`, of four words on the last axis: words [T, BN, 4], planes [T, 1, 4], sums
    [T, BN, 1].
    """
    w0, w1, w2, w3 = quarters(words)
    h0, h1, h2, h3 = quarters(high)
    l0, l1, l2, l3 = quarters(low)
    high_sum, low_sum = word_onto(w0, h0, l0, high_sum, low_sum)
    high_sum, low_sum = word_onto(w1, h1, l1, high_sum, low_sum)
    high_sum, low_sum = word_onto(w2, h2, l2, high_sum, low_sum)
    return word_onto(w3, h3, l3, high_sum, low_sum)


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
