"""GGUF layouts with one scale per 32 elements: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, MXFP4.

Each function takes raw blocks, uint8 [N, blocks, bytes of a block], and returns `UnpackedWeight`.
Source of the layouts: ggml's `ggml-common.h` (block_q4_0 and its neighbours) and, for MXFP4, the
OCP Microscaling Formats specification 1.0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cortiq.numerics.contract import F32, Floats
from cortiq.numerics.unpacked_weights import Bytes, UnpackedWeight, contiguous_runs, half_to_float

BLOCK = 32
Codes8 = npt.NDArray[np.int8]

IQ4_NL_VALUES = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)
"""The sixteen codes of IQ4_NL."""
MXFP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""The sixteen E2M1 values, doubled so that they are integers; the scale is halved to match."""


def _rows(codes: npt.NDArray[np.generic]) -> Codes8:
    """Reshape [N, blocks, 32] to int8 [N, K]."""
    return codes.reshape(codes.shape[0], -1).astype(np.int8, copy=False)


def nibbles(packed: Bytes) -> Bytes:
    """Unpack [..., n] bytes to [..., 2n] codes: the low nibbles first, then the high ones."""
    run = f"V{packed.shape[-1]}"
    dense = contiguous_runs(packed)
    codes = np.empty((*packed.shape[:-1], 2), run)
    codes[..., :1], codes[..., 1:] = (dense & 15).view(run), (dense >> 4).view(run)
    return codes.view(np.uint8)


def _fifth_bits(packed: Bytes) -> Bytes:
    """Unpack [..., 4] bytes to [..., 32] codes 0 or 16: bit i (little-endian) is element i's."""
    return np.unpackbits(packed, axis=-1, bitorder="little") << np.uint8(4)


def _scale(blocks: Bytes, offset: int) -> Floats:
    """Return the f16 at byte `offset` of each block, float32 [N, blocks]."""
    return half_to_float(blocks[..., offset : offset + 2])[..., 0]


def q8_0(blocks: Bytes) -> UnpackedWeight:
    """Unpack 34 bytes: d f16, 32 codes int8. Element = d·code."""
    return UnpackedWeight(
        _rows(contiguous_runs(blocks[..., 2:]).view(np.int8)), _scale(blocks, 0), BLOCK
    )


def q4_0(blocks: Bytes) -> UnpackedWeight:
    """Unpack 18 bytes: d f16, 16 bytes of nibbles. Element = d·(nibble − 8)."""
    codes = nibbles(blocks[..., 2:]).view(np.int8) - np.int8(8)
    return UnpackedWeight(_rows(codes), _scale(blocks, 0), BLOCK)


def q4_1(blocks: Bytes) -> UnpackedWeight:
    """Unpack 20 bytes: d f16, m f16, 16 bytes of nibbles. Element = d·nibble + m."""
    codes = nibbles(blocks[..., 4:])
    return UnpackedWeight(_rows(codes), _scale(blocks, 0), BLOCK, _scale(blocks, 2))


def q5_0(blocks: Bytes) -> UnpackedWeight:
    """Unpack 22 bytes: d f16, 32 fifth bits, 16 bytes of nibbles. Element = d·(code − 16)."""
    codes = (nibbles(blocks[..., 6:]) | _fifth_bits(blocks[..., 2:6])).view(np.int8)
    return UnpackedWeight(_rows(codes - np.int8(16)), _scale(blocks, 0), BLOCK)


def q5_1(blocks: Bytes) -> UnpackedWeight:
    """Unpack 24 bytes: d f16, m f16, 32 fifth bits, 16 bytes of nibbles. Element = d·code + m."""
    codes = nibbles(blocks[..., 8:]) | _fifth_bits(blocks[..., 4:8])
    return UnpackedWeight(_rows(codes), _scale(blocks, 0), BLOCK, _scale(blocks, 2))


def iq4_nl(blocks: Bytes) -> UnpackedWeight:
    """Unpack 18 bytes: d f16, 16 bytes of nibbles. Element = d·IQ4_NL_VALUES[nibble]."""
    return UnpackedWeight(_rows(IQ4_NL_VALUES[nibbles(blocks[..., 2:])]), _scale(blocks, 0), BLOCK)


def mxfp4(blocks: Bytes) -> UnpackedWeight:
    """Unpack 17 bytes: E8M0 x, 16 bytes of nibbles. Element = 2^(x−128)·MXFP4_VALUES[nibble].

    x = 255, the format's NaN, becomes an infinity here, which the caller's check reports.
    """
    x = blocks[..., 0].astype(np.int32)
    exponent = np.where(x == 255, np.int32(255), np.maximum(x - 1, 0)).astype(np.int32)
    # 2⁻¹²⁷ and 2⁻¹²⁸ become +0; every scale below 2⁻⁴⁰ does, in any layout.
    scale = (exponent << np.int32(23)).view(F32)
    return UnpackedWeight(_rows(MXFP4_VALUES[nibbles(blocks[..., 1:])]), scale, BLOCK)
