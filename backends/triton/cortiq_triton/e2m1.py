"""E2M1 codes, doubled: 0 1 2 3 4 6 8 12 and their negatives, by a nibble of sign and place.

Instructions that choose four bytes by four nibbles look up four codes at a time, once in the table
of the positive ones and once in that of the negative ones; the signs choose between the two.
"""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.language import INTERPRETED, Tensor, device

TABLES: tl.constexpr = tl.constexpr(
    "prmt.b32 a, 0x03020100, 0x0C080604, i; prmt.b32 b, 0xFDFEFF00, 0xF4F8FAFC, i;"
)


@device
def e2m1_integer(code: Tensor) -> Tensor:
    """The integer of a nibble, int32."""
    place = code & 7
    size = tl.where(place < 2, place, (2 | (place & 1)) << tl.maximum((place >> 1) - 1, 0))
    return tl.where((code & 8) > 0, 0 - size, size)


@device
def e2m1_emulated(codes: Tensor) -> Tensor:
    """Integers of nibbles, a byte each: int8."""
    return e2m1_integer(codes.to(tl.int32)).to(tl.int8)


@device
def e2m1_of_words(codes: Tensor) -> Tensor:
    """Integers of nibbles, four bytes a word: int8."""
    return tl.inline_asm_elementwise(
        "{.reg .b32 i, s, a, b; shr.u32 i, $1, 4; or.b32 i, i, $1; prmt.b32 i, i, 0, 0x4420;"
        "shr.u32 s, i, 1; and.b32 s, s, 0x4444; or.b32 s, s, 0x3210; and.b32 i, i, 0x7777;"
        + TABLES + "prmt.b32 $0, a, b, s;}",
        "=r,r", [codes], dtype=tl.int8, is_pure=True, pack=4,
    )  # fmt: skip


@device
def e2m1_halves_emulated(words: Tensor) -> tuple[Tensor, Tensor]:
    """Words of integers of the low nibbles of words, and of the high ones."""
    low, high = words * 0, words * 0
    for place in tl.static_range(4):
        low |= (e2m1_integer((words >> (8 * place)) & 15) & 255) << (8 * place)
        high |= (e2m1_integer((words >> (8 * place + 4)) & 15) & 255) << (8 * place)
    return low, high


@device
def e2m1_halves_of_words(words: Tensor) -> tuple[Tensor, Tensor]:
    """Words of integers of the low nibbles of words, and of the high ones: 14 instructions."""
    return tl.inline_asm_elementwise(
        "{.reg .b32 i, s, a, b, t, u; shr.u32 s, $2, 1; and.b32 s, s, 0x44444444;"
        "or.b32 s, s, 0x32103210; and.b32 i, $2, 0x77777777;" + TABLES +
        "prmt.b32 t, a, b, s; shr.u32 i, i, 16; shr.u32 s, s, 16;" + TABLES +
        "prmt.b32 u, a, b, s; prmt.b32 $0, t, u, 0x6420; prmt.b32 $1, t, u, 0x7531;}",
        "=r,=r,r", [words], dtype=(tl.int32, tl.int32), is_pure=True, pack=1,
    )  # fmt: skip


e2m1 = e2m1_emulated if INTERPRETED else e2m1_of_words
e2m1_halves = e2m1_halves_emulated if INTERPRETED else e2m1_halves_of_words
