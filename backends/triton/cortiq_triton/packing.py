"""Codes of up to six bits as they lie on the device: nibbles of 32 columns in 16 bytes, element j
beside j + 16, but of E2M1, which is looked up in fours of neighbours, 2j beside 2j + 1; what is
above them in an array of its own, for 32 columns a word of fifth bits, or two of fifth and sixth
bits.

With column = 16·half + 4·i + c the fifth bit is bit 8c + 4·half + i of the word; of six bits the
upper two are bits 8c + 2i and 8c + 2i + 1 of word `half`. So neighbours are a byte apart, and one
shift brings those of four to their nibbles.
"""

from __future__ import annotations

import numpy as np
import triton.language as tl

from cortiq_triton.e2m1 import e2m1, e2m1_integer
from cortiq_triton.language import INTERPRETED, Tensor, device


def nibbles_of(codes: np.ndarray) -> np.ndarray:
    """The lower four bits of codes, uint8 [rows, columns]: int8 [rows, columns/2]."""
    groups = (codes & np.uint8(15)).reshape(len(codes), -1, 2, 16)
    packed = groups[:, :, 0] | (groups[:, :, 1] << np.uint8(4))
    return packed.reshape(len(codes), -1).view(np.int8)


def neighbours_of(codes: np.ndarray) -> np.ndarray:
    """Nibbles of E2M1, uint8 [rows, columns]: int8 [rows, columns/2]."""
    packed: np.ndarray = codes[:, ::2] | (codes[:, 1::2] << np.uint8(4))
    return packed.view(np.int8)


def bits_above(codes: np.ndarray, bits: int) -> np.ndarray:
    """The one or two bits above the nibble: int8 [rows, columns·bits/8]."""
    groups = (codes >> np.uint8(4)).reshape(len(codes), -1, 2, 4, 4)  # unit, half, i, c
    places = np.arange(8).reshape(2, 4, 1) if bits == 1 else np.arange(0, 8, 2).reshape(4, 1)
    axes = (2, 3) if bits == 1 else (3,)
    packed: np.ndarray = np.bitwise_or.reduce(groups << places.astype(np.uint8), axis=axes)
    return packed.reshape(len(codes), -1).view(np.int8)


@device
def bits_byte(k: Tensor, HIGH: tl.constexpr) -> tuple[Tensor, Tensor]:
    """Byte of a row's bits that holds those of column k, and their first bit in it."""
    half, i = k // 16 % 2, k % 16 // 4
    if HIGH == 1:
        return k // 32 * 4 + k % 4, i + 4 * half
    return k // 16 * 4 + k % 4, 2 * i


@device
def nibble_byte(k: Tensor, E2M1: tl.constexpr) -> tuple[Tensor, Tensor]:
    """Byte of a row's nibbles that holds that of column k, and its first bit in it."""
    if E2M1:
        return k // 2, k % 2 * 4
    return k // 32 * 16 + k % 16, k // 16 % 2 * 4


@device
def packed_codes(
    codes: Tensor, bits: Tensor, row: Tensor, k: Tensor, inside: Tensor, K: Tensor,
    HIGH: tl.constexpr, BIAS: tl.constexpr, E2M1: tl.constexpr,
) -> Tensor:  # fmt: skip
    """Codes at columns k of rows, int32; 0 outside."""
    byte, shift = nibble_byte(k, E2M1)
    code = tl.load(codes + row * (K // 2) + byte, mask=inside, other=0).to(tl.int32)
    code = (code >> shift) & 15
    if HIGH:
        byte, shift = bits_byte(k, HIGH)
        above = tl.load(bits + row * (K // 8 * HIGH) + byte, mask=inside, other=0).to(tl.int32)
        code |= ((above >> shift) & (2 * HIGH - 1)) << 4
    if E2M1:
        code = e2m1_integer(code)
    return tl.where(inside, code - BIAS, 0)


@device
def raised(words: Tensor, half: tl.constexpr, HIGH: tl.constexpr) -> Tensor:
    """The bits above the nibbles of words 0 to 3 of a half, in place: [T, BN, 4] of [T, BN]."""
    i = tl.arange(0, 4)[None, None, :]
    word = words[:, :, None]
    if HIGH == 1:
        return ((word >> i) if half else (word << (4 - i))) & 0x10101010
    left, right = tl.maximum(4 - 2 * i, 0), tl.maximum(2 * i - 4, 0)
    return ((word << left) >> right) & 0x30303030


@device
def nibbles_emulated(packed: Tensor, late: Tensor) -> Tensor:
    """A nibble of each byte: the high one where `late` has all bits, the low one where none."""
    return ((packed & ~late) | ((packed >> 4) & late)) & 15


@device
def nibbles_of_words(packed: Tensor, late: Tensor) -> Tensor:
    """A nibble of each of four bytes of a word, as `nibbles_emulated`."""
    return tl.inline_asm_elementwise(
        "{.reg .b32 a, b; shr.u32 a, $1, 4; and.b32 a, a, $2; not.b32 b, $2; and.b32 b, b, $1;"
        "or.b32 a, a, b; and.b32 $0, a, 0x0F0F0F0F;}",
        "=r,r,r", [packed, late], dtype=tl.int8, is_pure=True, pack=4,
    )  # fmt: skip


@device
def with_bit_emulated(codes: Tensor, above: Tensor, bit: Tensor, VALUE: tl.constexpr) -> Tensor:
    """Codes with VALUE, 16 or 32, set where `above` has the bit."""
    return codes | tl.where((above & bit) != 0, VALUE, 0).to(tl.int8)


@device
def with_bit_words(codes: Tensor, above: Tensor, bit: Tensor, VALUE: tl.constexpr) -> Tensor:
    """Four codes with VALUE set: 127 carries into bit 7 of a byte that is not 0, and no further."""
    SHIFT: tl.constexpr = "3" if VALUE == 16 else "2"
    return tl.inline_asm_elementwise(
        "{.reg .b32 a, b; and.b32 a, $2, $3; and.b32 b, a, 0x7F7F7F7F; add.u32 b, b, 0x7F7F7F7F;"
        "or.b32 a, a, b; and.b32 a, a, 0x80808080; shr.u32 a, a, " + SHIFT + "; or.b32 $0, $1, a;}",
        "=r,r,r,r", [codes, above, bit], dtype=tl.int8, is_pure=True, pack=4,
    )  # fmt: skip


@device
def less_emulated(codes: Tensor, BIAS: tl.constexpr) -> Tensor:
    """Codes less BIAS."""
    return codes - BIAS


@device
def less_words(codes: Tensor, BIAS: tl.constexpr) -> Tensor:
    """Four codes less BIAS; no byte borrows of its neighbour."""
    SMALL: tl.constexpr = "0x7C7C7C7C" if BIAS == 4 else "0x78787878"
    LARGE: tl.constexpr = "0x70707070" if BIAS == 16 else "0x60606060"
    EACH: tl.constexpr = SMALL if BIAS < 16 else LARGE
    return tl.inline_asm_elementwise(
        "add.u32 $0, $1, " + EACH + "; xor.b32 $0, $0, 0x80808080;", "=r,r", [codes],
        dtype=tl.int8, is_pure=True, pack=4,
    )  # fmt: skip


nibbles = nibbles_emulated if INTERPRETED else nibbles_of_words
with_bit = with_bit_emulated if INTERPRETED else with_bit_words
less = less_emulated if INTERPRETED else less_words


@device
def tile_at(plane: Tensor, row: Tensor, column: Tensor, width: Tensor) -> Tensor:
    """int8 [rows, columns] of a plane of rows of `width`: all are inside."""
    return tl.load(plane + row[:, None] * width + column[None, :])


@device
def codes_of(
    codes: Tensor, bits: Tensor, row: Tensor, start: Tensor, K: Tensor, NIBBLES: tl.constexpr,
    HIGH: tl.constexpr, BIAS: tl.constexpr, E2M1: tl.constexpr,
) -> Tensor:  # fmt: skip
    """32 columns of codes from `start` on, int8 [BN, 32]."""
    k = tl.arange(0, 32)
    if NIBBLES:
        byte, shift = nibble_byte(k, E2M1)
        packed = tile_at(codes, row, start // 2 + byte, K // 2)
        late = tl.broadcast_to((0 - shift // 4).to(tl.int8)[None, :], packed.shape)
        found = nibbles(packed, late)
        if HIGH:
            byte, first = bits_byte(k, HIGH)
            above = tile_at(bits, row, start // 8 * HIGH + byte, K // 8 * HIGH)
            for place in tl.static_range(HIGH):
                bit = (1 << (first + place)).to(tl.int8)
                bit = tl.broadcast_to(bit[None, :], packed.shape)
                found = with_bit(found, above, bit, 16 << place)
        if BIAS:
            found = less(found, BIAS)
        if E2M1:
            found = e2m1(found)
    else:
        found = tile_at(codes, row, start + k, K)
    return found
