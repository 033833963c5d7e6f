"""Codes of up to six bits as they lie on the device: nibbles of 32 columns in 16 bytes, element j
beside j + 16; what is above them in a plane of its own, a word of 32 columns for a fifth bit, two for
a fifth and a sixth.

With column = 16·half + 4·i + c the fifth bit is bit 8c + 4·half + i of the word; of six bits the upper
two are bits 8c + 2i and 8c + 2i + 1 of word `half`. So four neighbours of a column are apart by a byte
and one shift brings all of them to their nibbles.
"""

from __future__ import annotations

import numpy as np
import triton.language as tl

from cortiq_triton.language import Tensor, device


def nibbles_of(codes: np.ndarray) -> np.ndarray:
    """The lower four bits of codes, uint8 [rows, columns]: int8 [rows, columns/2]."""
    groups = (codes & np.uint8(15)).reshape(len(codes), -1, 2, 16)
    packed = groups[:, :, 0] | (groups[:, :, 1] << np.uint8(4))
    return packed.reshape(len(codes), -1).view(np.int8)


def bits_above(codes: np.ndarray, bits: int) -> np.ndarray:
    """The one or two bits above the nibble: int8 [rows, columns·bits/8]."""
    groups = (codes >> np.uint8(4)).reshape(len(codes), -1, 2, 4, 4)  # unit, half, i, c
    if bits == 1:
        steps = np.arange(8, dtype=np.uint8).reshape(2, 4, 1)
        packed = np.bitwise_or.reduce(groups << steps, axis=(2, 3))
    else:
        steps = np.arange(0, 8, 2, dtype=np.uint8).reshape(4, 1)
        packed = np.bitwise_or.reduce(groups << steps, axis=3)
    return packed.reshape(len(codes), -1).view(np.int8)


@device
def bits_byte(k: Tensor, HIGH: tl.constexpr) -> tuple[Tensor, Tensor]:
    """Byte of a row's bits that holds those of column k, and their first bit in it."""
    half, i = k // 16 % 2, k % 16 // 4
    if HIGH == 1:
        return k // 32 * 4 + k % 4, i + 4 * half
    return k // 16 * 4 + k % 4, 2 * i


@device
def packed_codes(
    codes: Tensor, bits: Tensor, row: Tensor, k: Tensor, inside: Tensor, K: Tensor,
    HIGH: tl.constexpr, BIAS: tl.constexpr,
) -> Tensor:  # fmt: skip
    """Codes at columns k of rows, int32; 0 outside."""
    byte = row * (K // 2) + k // 32 * 16 + k % 16
    code = tl.load(codes + byte, mask=inside, other=0).to(tl.int32)
    code = (code >> (k // 16 % 2 * 4)) & 15
    if HIGH:
        byte, shift = bits_byte(k, HIGH)
        above = tl.load(bits + row * (K // 8 * HIGH) + byte, mask=inside, other=0).to(tl.int32)
        code |= ((above >> shift) & (2 * HIGH - 1)) << 4
    return tl.where(inside, code - BIAS, 0)


@device
def raised(words: Tensor, half: tl.constexpr, HIGH: tl.constexpr) -> Tensor:
    """The bits above the nibbles of words 0 to 3 of a half, in place: [T, BN, 4] of words [T, BN]."""
    i = tl.arange(0, 4)[None, None, :]
    word = words[:, :, None]
    if HIGH == 1:
        return ((word >> i) if half else (word << (4 - i))) & 0x10101010
    left, right = tl.maximum(4 - 2 * i, 0), tl.maximum(2 * i - 4, 0)
    return ((word << left) >> right) & 0x30303030
