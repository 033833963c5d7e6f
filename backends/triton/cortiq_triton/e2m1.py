"""E2M1 codes, doubled: 0 1 2 3 4 6 8 12 and their negatives, by a nibble of sign and place.

Instructions that choose four bytes by four nibbles look up four codes at a time, once in the table
of the positive ones and once in that of the negative ones; the signs choose between the two.
"""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.language import INTERPRETED, Tensor, constant, device

TABLES: tl.constexpr = tl.constexpr(
    "prmt.b32 a, 0x03020100, 0x0C080604, i; prmt.b32 b, 0xFDFEFF00, 0xF4F8FAFC, i;"
)

RAISE = constant(12)
"""The largest integer: added to a code, it leaves none below 0."""


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
def raised_fours_emulated(words: Tensor) -> tuple[Tensor, Tensor]:
    """Words of RAISE plus the integers of the first four nibbles of words, and of the last."""
    first, last = words * 0, words * 0
    for place in tl.static_range(4):
        first |= (e2m1_integer((words >> (4 * place)) & 15) + RAISE) << (8 * place)
        last |= (e2m1_integer((words >> (4 * place + 16)) & 15) + RAISE) << (8 * place)
    return first, last


@device
def in_register(word: tl.constexpr) -> Tensor:
    """A constant of which the assembler cannot see that it is one: it copies constants into a
    register again for each instruction that takes them. The grid has one layer.
    """
    return tl.inline_asm_elementwise(
        "{.reg .b32 lane; mov.b32 lane, %laneid; mad.lo.u32 $0, $1, lane, $2;}", "=r,r,r",
        [tl.program_id(2), word], dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@device
def raised_fours_of_words(words: Tensor) -> tuple[Tensor, Tensor]:
    """As `raised_fours_emulated`, in nine instructions.

    Byte n of a table of RAISE less the positive ones by the nibbles without their signs, plus twice
    the positive one: where a nibble has its fourth bit, `prmt` gives the sign of that byte, 0.
    """
    return tl.inline_asm_elementwise(
        "{.reg .b32 i, a, b, w; and.b32 i, $2, 0x77777777; shr.u32 w, $2, 16;"
        "prmt.b32 a, $3, $4, $2; prmt.b32 b, $5, $6, i; shr.u32 i, i, 16; add.u32 $0, a, b;"
        "prmt.b32 a, $3, $4, w; prmt.b32 b, $5, $6, i; add.u32 $1, a, b;}",
        "=&r,=&r,r,r,r,r,r",
        [
            words, in_register(0x06040200), in_register(0x18100C08), in_register(0x090A0B0C),
            in_register(0x00040608),
        ],
        dtype=(tl.int32, tl.int32), is_pure=True, pack=1,
    )  # fmt: skip


e2m1 = e2m1_emulated if INTERPRETED else e2m1_of_words
raised_fours = raised_fours_emulated if INTERPRETED else raised_fours_of_words


@device
def raised_halves(words: Tensor) -> tuple[Tensor, Tensor]:
    """Words of RAISE plus the integers of the first and of the last 16 of 32 columns: [T, BN, 4]
    each, of words [T, BN, 4].
    """
    a: tl.constexpr = words.shape[0]
    b: tl.constexpr = words.shape[1]
    first, last = raised_fours(words)
    fours = tl.reshape(tl.join(first, last), (a, b, 2, 4))
    return tl.split(tl.permute(fours, (0, 1, 3, 2)))
