"""GGUF layouts of 256 columns whose codes are vectors of a grid, or ternary: IQ1 to IQ4, TQ1, TQ2.

Each function takes raw blocks, uint8 [N, blocks, bytes of a block], and returns `UnpackedWeight`:
every element is an integer code times an integer sub-scale times d·2^−n. Source of the layouts:
ggml's `ggml-common.h` (block_iq2_xxs and its neighbours).
"""

from __future__ import annotations

import base64
import zlib
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cortiq.numerics.blockquants import IQ4_NL_VALUES, nibbles
from cortiq.numerics.contract import F32, Floats
from cortiq.numerics.grid_tables import DIGITS
from cortiq.numerics.unpacked_weights import Bytes, UnpackedWeight, half_to_float

Codes8 = npt.NDArray[np.int8]
Words = npt.NDArray[np.integer]

BLOCK = 256
VALUES = {
    "IQ1_S": (-1, 0, 1),
    "IQ2_XXS": (8, 25, 43),
    "IQ2_XS": (8, 25, 43),
    "IQ2_S": (8, 25, 43),
    "IQ3_XXS": (4, 12, 20, 28, 36, 44, 52, 62),
    "IQ3_S": (1, 3, 5, 7, 9, 11, 13, 15),
}
"""Values that a grid's digits stand for."""
BITS = np.arange(8, dtype=np.uint8)


@lru_cache(maxsize=8)
def grid(name: str) -> Codes8:
    """Return a grid: int8 [vectors, 8], or [vectors, 4] of IQ3."""
    values = np.array(VALUES[name], np.int8)
    packed = np.frombuffer(zlib.decompress(base64.b85decode(DIGITS[name])), np.uint8)
    ends = np.unpackbits(packed, bitorder="little").reshape(-1, 2 if len(values) == 3 else 3)
    digits = np.packbits(ends, axis=1, bitorder="little")[:, 0]
    return values[digits].reshape(-1, 4 if name.startswith("IQ3") else 8)


def _half(blocks: Bytes, offset: int, power: int = 0) -> Floats:
    """Return the f16 at byte `offset` of each block times 2^−power, float32 [N, blocks], exact."""
    return half_to_float(blocks[..., offset : offset + 2])[..., 0] * F32(2.0**-power)


def _words(raw: Words, kind: str) -> Words:
    return np.ascontiguousarray(raw).view(kind)


def _signs(bits: Words) -> Codes8:
    """Return −1 for each bit that is set, the lowest first, else 1: int8 [..., 8]."""
    return (1 - 2 * (bits[..., None] >> BITS & 1).astype(np.int8)).astype(np.int8)


def _even_signs(index: Words) -> Codes8:
    """Return the signs of indices of 7 bits; the eighth makes the number of −1 even."""
    low = index.astype(np.uint8) & np.uint8(127)
    parity = low ^ low >> 4
    parity ^= parity >> 2
    parity ^= parity >> 1
    return _signs(low | (parity & 1) << np.uint8(7))


def _low_high(packed: Bytes, bits: int) -> Bytes:
    """Unpack fields of 2, 3 or 4 bits from each byte, the lowest first: [..., n] to [..., n·k]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    fields = packed[..., None] >> shifts & np.uint8((1 << bits) - 1)
    return fields.reshape(*packed.shape[:-1], -1)


def _weight(codes: np.ndarray, scale: Floats, subs: np.ndarray, sub: int) -> UnpackedWeight:
    """Put codes [N, blocks, ...] and sub-scales [N, blocks, 256/sub] together."""
    rows = len(codes)
    flat, scales = codes.reshape(rows, -1), subs.astype(np.int8).reshape(rows, -1)
    return UnpackedWeight(
        flat.astype(np.int8, copy=False), scale, BLOCK, sub_scales=scales, sub=sub
    )


def iq4_xs(blocks: Bytes) -> UnpackedWeight:
    """Unpack 136 bytes: d, 16 upper bit pairs and 8 nibbles of scales less 32, 128 of nibbles."""
    upper = _words(blocks[..., 2:4], "<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales = _low_high(blocks[..., 4:8], 4) | upper.astype(np.uint8) << np.uint8(4)
    codes = IQ4_NL_VALUES[nibbles(blocks[..., 8:].reshape(*blocks.shape[:2], 8, 16))]
    return _weight(codes, _half(blocks, 0), scales.astype(np.int8) - 32, 32)


def iq2_xxs(blocks: Bytes) -> UnpackedWeight:
    """Unpack 66 bytes: d, then for 32 elements 4 indices, and a word of 4 signs and a scale."""
    words = _words(blocks[..., 2:], "<u4").reshape(*blocks.shape[:2], 8, 2)
    index = _words(words[..., :1], "u1")
    signs = _even_signs(words[..., 1:] >> np.arange(0, 28, 7, dtype=np.uint32) & 127)
    codes = grid("IQ2_XXS")[index] * signs
    return _weight(codes, _half(blocks, 0, 3), 2 * (words[..., 1] >> 28) + 1, 32)


def iq2_xs(blocks: Bytes) -> UnpackedWeight:
    """Unpack 74 bytes: d, 32 words of an index of 9 bits and signs, 8 bytes of scales."""
    words = _words(blocks[..., 2:66], "<u2")
    codes = grid("IQ2_XS")[words & 511] * _even_signs(words >> 9)
    return _weight(codes, _half(blocks, 0, 3), 2 * _low_high(blocks[..., 66:], 4) + 1, 16)


def iq2_s(blocks: Bytes) -> UnpackedWeight:
    """Unpack 82 bytes: d, 32 of indices, 32 of signs, 8 of upper bit pairs, 8 of scales."""
    upper = _low_high(blocks[..., 66:74], 2).astype(np.uint16)
    codes = grid("IQ2_S")[blocks[..., 2:34] | upper << 8] * _signs(blocks[..., 34:66])
    return _weight(codes, _half(blocks, 0, 3), 2 * _low_high(blocks[..., 74:], 4) + 1, 16)


def iq3_xxs(blocks: Bytes) -> UnpackedWeight:
    """Unpack 98 bytes: d, 64 of indices, 8 words of 4 signs and a scale."""
    words = _words(blocks[..., 66:], "<u4")[..., None]
    signs = _even_signs(words >> np.arange(0, 28, 7, dtype=np.uint32) & 127)
    codes = grid("IQ3_XXS")[blocks[..., 2:66]].reshape(signs.shape) * signs
    return _weight(codes, _half(blocks, 0, 2), 2 * (words >> 28) + 1, 32)


def iq3_s(blocks: Bytes) -> UnpackedWeight:
    """Unpack 110 bytes: d, 64 of indices, 8 of ninth bits, 32 of signs, 4 of scales."""
    upper = (blocks[..., 66:74, None] >> BITS & 1).reshape(*blocks.shape[:2], 64)
    signs = _signs(blocks[..., 74:106])
    index = blocks[..., 2:66] | upper.astype(np.uint16) << 8
    codes = grid("IQ3_S")[index].reshape(signs.shape) * signs
    return _weight(codes, _half(blocks, 0), 2 * _low_high(blocks[..., 106:], 4) + 1, 32)


def _eighths(index: Words, negative: Words) -> Codes8:
    """Return eight times the vector of IQ1's grid, plus or minus 1: int8 [..., 8]."""
    delta = 1 - 2 * (negative != 0).astype(np.int8)
    return grid("IQ1_S")[index] * np.int8(8) + delta[..., None]


def iq1_s(blocks: Bytes) -> UnpackedWeight:
    """Unpack 50 bytes: d, 32 of indices, 8 words of 4 upper bits, a scale, the sign of ⅛."""
    words = _words(blocks[..., 34:], "<u2")[..., None]
    upper = (words >> np.arange(0, 12, 3, dtype=np.uint16) & 7) << 8
    index = blocks[..., 2:34].reshape(upper.shape) | upper
    codes = _eighths(index, np.broadcast_to(words & 0x8000, upper.shape))
    return _weight(codes, _half(blocks, 0, 3), 2 * (words >> 12 & 7) + 1, 32)


def iq1_m(blocks: Bytes) -> UnpackedWeight:
    """Unpack 56 bytes: 32 of indices, 16 of upper bits and signs of ⅛, 4 words of 4 scales, whose
    upper nibbles are d.
    """
    words = _words(blocks[..., 48:], "<u2")
    d = (words >> 12 << np.arange(0, 16, 4, dtype=np.uint16)).sum(axis=-1, dtype=np.uint16)
    upper = _low_high(blocks[..., 32:48], 4)
    index = blocks[..., :32] | (upper & 7).astype(np.uint16) << 8
    scales = words[..., None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7
    scale = half_to_float(d[..., None].view(np.uint8))[..., 0] * F32(0.125)
    return _weight(_eighths(index, upper & 8), scale, 2 * scales + 1, 16)


def _ternary(digits: Bytes, powers: int) -> Bytes:
    """Unpack bytes [..., n] of digits of base 3, the highest first: [..., powers·n]."""
    shifted = digits[..., None, :] * np.array([1, 3, 9, 27, 81][:powers], np.uint8)[:, None]
    codes = (shifted.astype(np.uint16) * 3 >> 8).astype(np.uint8)
    return codes.reshape(*digits.shape[:-1], -1)


def tq1_0(blocks: Bytes) -> UnpackedWeight:
    """Unpack 54 bytes: 48 of five and 4 of four digits of base 3, d. Element = d·(digit − 1)."""
    parts = [_ternary(blocks[..., a:b], n) for a, b, n in ((0, 32, 5), (32, 48, 5), (48, 52, 4))]
    codes = np.concatenate(parts, axis=-1).view(np.int8) - np.int8(1)
    return UnpackedWeight(codes.reshape(len(blocks), -1), _half(blocks, 52), BLOCK)


def tq2_0(blocks: Bytes) -> UnpackedWeight:
    """Unpack 66 bytes: 64 of bit pairs in runs of 32, d. Element = d·(pair − 1)."""
    runs = blocks[..., :64].reshape(*blocks.shape[:2], 2, 1, 32)
    codes = (runs >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3).view(np.int8) - np.int8(1)
    return UnpackedWeight(codes.reshape(len(blocks), -1), _half(blocks, 64), BLOCK)
