"""GGUF K-quants: 256 elements under one f16 scale, with integer sub-scales: Q2_K … Q6_K.

Each function takes raw blocks, uint8 [N, blocks, bytes of a block], and returns `UnpackedWeight`.
An element is d·sub_scale·code, or d·sub_scale·code − dmin·offset (`minimum` is −dmin: negation is
exact, so adding it rounds like subtracting dmin). Source of the layouts: ggml's `ggml-common.h`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cortiq.numerics.contract import Floats
from cortiq.numerics.unpacked_weights import Bytes, UnpackedWeight, half_to_float

BLOCK = 256
SCALE_BYTES = 12
"""Bytes that hold sixteen 6-bit numbers in Q3_K, Q4_K and Q5_K."""


def _rows(values: npt.NDArray[np.generic]) -> npt.NDArray[np.int8]:
    """Reshape [N, blocks, ...] to int8 [N, elements of a row]."""
    return values.reshape(values.shape[0], -1).astype(np.int8, copy=False)


def _halves(blocks: Bytes, offset: int) -> Floats:
    """Return the f16 at byte `offset` of each block, float32 [N, blocks]."""
    return half_to_float(blocks[..., offset : offset + 2])[..., 0]


def _bit_planes(packed: Bytes, run: int, width: int) -> Bytes:
    """Unpack codes of `width` bits: each run of `run` bytes holds its lowest bits first.

    Byte j of a run holds elements j, j+run, j+2·run, … of that run's stretch of elements.
    """
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    runs = packed.reshape(*packed.shape[:-1], -1, 1, run)
    codes = (runs >> shifts) & np.uint8((1 << width) - 1)
    return codes.reshape(*packed.shape[:-1], -1)


def _scales_and_offsets(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Unpack eight 6-bit scales and eight offsets from the 12 bytes of Q4_K and Q5_K.

    Bytes 0–3 and 4–7 hold the first four of each in their low six bits; their top two bits and
    the nibbles of bytes 8–11 hold the last four.
    """
    scales, offsets, nibbles = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    late_scales = (nibbles & 15) | ((scales >> 2) & 48)
    late_offsets = (nibbles >> 4) | ((offsets >> 2) & 48)
    return (
        np.concatenate([scales & 63, late_scales], axis=-1),
        np.concatenate([offsets & 63, late_offsets], axis=-1),
    )


def q2_k(blocks: Bytes) -> UnpackedWeight:
    """Unpack 84 bytes: 16 (scale | offset << 4), 64 bytes of 2-bit codes, d, dmin f16; sub 16."""
    packed, codes = blocks[..., 0:16], _bit_planes(blocks[..., 16:80], run=32, width=2)
    return UnpackedWeight(
        _rows(codes),
        _halves(blocks, 80),
        BLOCK,
        minimum=-_halves(blocks, 82),
        sub_scales=_rows(packed & 15),
        offsets=_rows(packed >> 4),
        sub=16,
    )


def _signed_scales(packed: Bytes) -> npt.NDArray[np.int8]:
    """Unpack sixteen 6-bit scales minus 32 from Q3_K's 12 bytes: nibbles, then top bit pairs."""
    low = np.concatenate([packed[..., 0:8] & 15, packed[..., 0:8] >> 4], axis=-1)
    high = _bit_planes(packed[..., 8:12], run=4, width=2)
    return (low | (high << 4)).view(np.int8) - np.int8(32)


def q3_k(blocks: Bytes) -> UnpackedWeight:
    """Unpack 110 bytes: 256 third bits, 64 bytes of 2-bit codes, 12 bytes of scales, d f16; sub 16.

    code = low bits − 4 where the third bit is 0, low bits where it is 1.
    """
    third = _bit_planes(blocks[..., 0:32], run=32, width=1)
    low = _bit_planes(blocks[..., 32:96], run=32, width=2)
    codes = (low | (third << 2)).view(np.int8) - np.int8(4)
    scales = _signed_scales(blocks[..., 96:108])
    return UnpackedWeight(
        _rows(codes), _halves(blocks, 108), BLOCK, sub_scales=_rows(scales), sub=16
    )


def _with_offsets(blocks: Bytes, codes: Bytes) -> UnpackedWeight:
    """Unpack Q4_K or Q5_K: d f16, dmin f16, 12 bytes of scales and offsets, sub-blocks of 32."""
    scales, offsets = _scales_and_offsets(blocks[..., 4 : 4 + SCALE_BYTES])
    return UnpackedWeight(
        _rows(codes),
        _halves(blocks, 0),
        BLOCK,
        minimum=-_halves(blocks, 2),
        sub_scales=_rows(scales),
        offsets=_rows(offsets),
        sub=32,
    )


def q4_k(blocks: Bytes) -> UnpackedWeight:
    """Unpack 144 bytes: d, dmin, 12 bytes of scales and offsets, 128 of nibbles in runs of 32."""
    return _with_offsets(blocks, _bit_planes(blocks[..., 16:144], run=32, width=4))


def q5_k(blocks: Bytes) -> UnpackedWeight:
    """Unpack 176 bytes: as Q4_K, with 256 fifth bits between the scales and the nibbles."""
    fifth = _bit_planes(blocks[..., 16:48], run=32, width=1)
    low = _bit_planes(blocks[..., 48:176], run=32, width=4)
    return _with_offsets(blocks, low | (fifth << np.uint8(4)))


def q6_k(blocks: Bytes) -> UnpackedWeight:
    """Unpack 210 bytes: 128 of nibbles, 64 of upper bit pairs, 16 int8 scales, d f16; sub 16.

    code = nibble + 16·upper − 32.
    """
    low = _bit_planes(blocks[..., 0:128], run=64, width=4)
    upper = _bit_planes(blocks[..., 128:192], run=32, width=2)
    codes = (low | (upper << 4)).view(np.int8) - np.int8(32)
    scales = blocks[..., 192:208].view(np.int8)
    return UnpackedWeight(
        _rows(codes), _halves(blocks, 208), BLOCK, sub_scales=_rows(scales), sub=16
    )
