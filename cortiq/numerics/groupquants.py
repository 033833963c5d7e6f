"""Our layouts of small codes under float32 scales, which hold what other programs quantise.

A file of GPTQ, AWQ, compressed-tensors, MLX or FP8 weights has codes and a scale for a group of
columns, in arrays of its own. Read, a row is blocks of 32 columns (16 for NVFP4's groups), each
with its group's scale in front: a group of 64 or 128 columns repeats its scale. Each function takes
raw blocks, uint8 [N, blocks, bytes of a block], and returns `UnpackedWeight`.

Codes of floats are integers. An E4M3 number is an integer times 2⁻⁹, an E2M1 number one times ½;
the scale in front of them is the file's, times that power of two. Of bitsandbytes' tables, FP4's
numbers are integers of 1/192; NF4's are rounded to integers of 1/31908, the unit above 2⁻¹⁵ in
which they err least: by 2⁻¹⁷ of a block's largest. Source of the formats: the OCP 8-bit floating
point specification 1.0, the OCP microscaling formats 1.0, bitsandbytes' `functional.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from cortiq.numerics.blockquants import MXFP4_VALUES, nibbles
from cortiq.numerics.contract import F32, Floats, Ints
from cortiq.numerics.unpacked_weights import Bytes, UnpackedWeight, contiguous_runs

BLOCK, SMALL_BLOCK = 32, 16
E4M3_UNIT, E2M1_UNIT = 2.0**-9, 0.5
"""The number that an integer code 1 stands for."""
NF4_UNIT, FP4_UNIT = 1 / 31908, 1 / 192
NF4_VALUES = np.array(
    [-31908, -22214, -16754, -12601, -9076, -5896, -2905, 0,
     2539, 5135, 7853, 10782, 14062, 17952, 23068, 31908], np.int16
)  # fmt: skip
"""The sixteen numbers of bitsandbytes' NF4, quantiles of a normal distribution."""
FP4_VALUES = np.array(
    [0, 1, 128, 192, 64, 96, 32, 48, 0, -1, -128, -192, -64, -96, -32, -48], np.int16
)
"""The sixteen numbers of bitsandbytes' FP4."""
E4M3_NAN = 0x7F
"""The byte, sign aside, of E4M3's only number that is none."""


def e4m3_values() -> Ints:
    """Return the integer of every E4M3 byte, in units of 2⁻⁹, 0 for a NaN: int32 [256]."""
    byte = np.arange(256, dtype=np.int32)
    exponent, mantissa = byte >> 3 & 15, byte & 7
    size = np.where(exponent > 0, (8 + mantissa) << np.maximum(exponent - 1, 0), mantissa)
    size = np.where(byte & E4M3_NAN == E4M3_NAN, 0, size)
    return np.where(byte >> 7 == 1, -size, size).astype(np.int32)


E4M3_VALUES = e4m3_values()


WIDE_LAYOUTS: Mapping[str, npt.NDArray[np.signedinteger]] = {
    "e4m3b32": E4M3_VALUES, "nf4b32": NF4_VALUES, "fp4b32": FP4_VALUES,
}  # fmt: skip
"""Layouts whose codes have more than 8 bits: the integer of every byte, or nibble."""


def bytes_of_wide(layout: str, codes: npt.NDArray[np.signedinteger]) -> Bytes:
    """Return the bytes, or nibbles, that integers of one of `WIDE_LAYOUTS` stand for."""
    if layout == "e4m3b32":
        return _e4m3_bytes(codes)
    values = WIDE_LAYOUTS[layout]
    order = np.argsort(values, kind="stable")
    return order[np.searchsorted(values[order], codes)].astype(np.uint8)


def _e4m3_bytes(codes: npt.NDArray[np.signedinteger]) -> Bytes:
    """Return the E4M3 bytes of integers in units of 2⁻⁹: bits of their float32."""
    size = np.abs(codes)
    bits = size.astype(F32).view(np.int32) >> 20  # the exponent and three bits of the mantissa
    positive = np.where(size < 8, size, bits - (129 << 3))  # below 8 there is no exponent
    return (positive | (codes < 0) * 128).astype(np.uint8)


def _scale(blocks: Bytes, offset: int) -> Floats:
    """Return the float32 at byte `offset` of each block, float32 [N, blocks]."""
    return blocks[..., offset : offset + 4].view("<f4")[..., 0].astype(F32, copy=False)


def _rows(codes: np.ndarray) -> np.ndarray:
    return codes.reshape(codes.shape[0], -1)


def i4b32(blocks: Bytes) -> UnpackedWeight:
    """Unpack 20 bytes: d f32, 16 bytes of nibbles. Element = d·(nibble − 8)."""
    codes = nibbles(blocks[..., 4:]).view(np.int8) - np.int8(8)
    return UnpackedWeight(_rows(codes), _scale(blocks, 0), BLOCK)


def i4b32m(blocks: Bytes) -> UnpackedWeight:
    """Unpack 24 bytes: d f32, m f32, 16 bytes of nibbles. Element = d·nibble + m."""
    codes = nibbles(blocks[..., 8:]).view(np.int8)
    return UnpackedWeight(_rows(codes), _scale(blocks, 0), BLOCK, _scale(blocks, 4))


def i8b32(blocks: Bytes) -> UnpackedWeight:
    """Unpack 36 bytes: d f32, 32 codes int8. Element = d·code."""
    codes = contiguous_runs(blocks[..., 4:]).view(np.int8)
    return UnpackedWeight(_rows(codes), _scale(blocks, 0), BLOCK)


def i8b32m(blocks: Bytes) -> UnpackedWeight:
    """Unpack 40 bytes: d f32, m f32, 32 codes int8. Element = d·code + m."""
    codes = contiguous_runs(blocks[..., 8:]).view(np.int8)
    return UnpackedWeight(_rows(codes), _scale(blocks, 0), BLOCK, _scale(blocks, 4))


def e2m1b16(blocks: Bytes) -> UnpackedWeight:
    """Unpack 12 bytes: d f32, 8 bytes of nibbles. Element = d·MXFP4_VALUES[nibble]."""
    codes = MXFP4_VALUES[nibbles(blocks[..., 4:])]
    return UnpackedWeight(_rows(codes), _scale(blocks, 0), SMALL_BLOCK)


def e4m3b32(blocks: Bytes) -> UnpackedWeight:
    """Unpack 36 bytes: d f32, 32 bytes of E4M3. Element = d·E4M3_VALUES[byte].

    The scale of a block with a NaN is one, which the caller's check reports.
    """
    codes = contiguous_runs(blocks[..., 4:])
    broken = ((codes & E4M3_NAN) == E4M3_NAN).any(axis=-1)
    scale = np.where(broken, F32(np.nan), _scale(blocks, 0))
    return UnpackedWeight(_rows(E4M3_VALUES[codes]), scale, BLOCK)


def nf4b32(blocks: Bytes) -> UnpackedWeight:
    """Unpack 20 bytes: d f32, 16 bytes of nibbles. Element = d·NF4_VALUES[nibble]."""
    return UnpackedWeight(_rows(NF4_VALUES[nibbles(blocks[..., 4:])]), _scale(blocks, 0), BLOCK)


def fp4b32(blocks: Bytes) -> UnpackedWeight:
    """Unpack 20 bytes: d f32, 16 bytes of nibbles. Element = d·FP4_VALUES[nibble]."""
    return UnpackedWeight(_rows(FP4_VALUES[nibbles(blocks[..., 4:])]), _scale(blocks, 0), BLOCK)
