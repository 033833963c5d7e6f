"""Codes and numbers as files pack them, and the blocks that our layouts make of them.

Codes of b bits lie one after the other in little-endian words, the lowest bits first, across words
where b does not divide 32. Layouts: `cortiq.numerics.groupquants` and, for MXFP4, `blockquants`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Doubles = npt.NDArray[np.float64]
Codes = npt.NDArray[np.integer]

WORD, BLOCK = 32, 32
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Column of eight whose code lies in each nibble of a word of AWQ's."""
FLOAT_TYPES = ("F32", "F16", "BF16")
SCALE_TYPES = (*FLOAT_TYPES, "F8_E4M3", "F8_E8M0", "U8")
"""Types of scales; bytes are exponents, as in F8_E8M0."""
NIBBLES: Mapping[str, int] = {"i4b32": 32, "i4b32m": 32, "e2m1b16": 16, "MXFP4": 32}
"""Columns of a block, of layouts with two codes a byte."""


def unpack_codes(packed: Bytes, bits: int, count: int) -> Bytes:
    """Return the first `count` codes of rows of bytes [n, bytes]: uint8 [n, count]."""
    if bits == 8:
        return packed[:, :count]
    if 8 % bits == 0:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        codes = packed[:, :, None] >> shifts & np.uint8((1 << bits) - 1)
        return codes.reshape(len(packed), -1)[:, :count]
    ends = np.unpackbits(packed, axis=1, count=bits * count, bitorder="little")
    return np.packbits(ends.reshape(len(packed), count, bits), axis=2, bitorder="little")[..., 0]


def unpack_columns(words: Codes, bits: int, start: int, stop: int, order: bool = False) -> Bytes:
    """Return codes start…stop−1 of rows of words [n, words]: uint8 [n, stop − start].

    Parameters
    ----------
    order : whether each word holds its eight codes in `AWQ_ORDER`.
    """
    first, last = start // WORD, -(-stop // WORD)
    some = np.ascontiguousarray(words[:, first * bits : last * bits]).view(np.uint8)
    codes = unpack_codes(some, bits, some.shape[1] * 8 // bits)
    if order:
        codes = codes.reshape(len(codes), -1, 8)[..., np.argsort(AWQ_ORDER)]
        codes = codes.reshape(len(codes), -1)
    return codes[:, start - first * WORD : stop - first * WORD]


@lru_cache(maxsize=1)
def _e4m3_table() -> Doubles:
    byte = np.arange(256)
    exponent, mantissa = byte >> 3 & 15, byte & 7
    size = np.ldexp(np.where(exponent > 0, 8 + mantissa, mantissa), np.maximum(exponent, 1) - 10)
    size = np.where(byte & 127 == 127, np.nan, size)
    return np.where(byte > 127, -size, size)


def numbers(raw: Bytes, kind: str) -> Doubles:
    """Return numbers of one of `SCALE_TYPES` from their bytes, exactly: float64 [...]."""
    if kind == "F8_E4M3":
        return _e4m3_table()[raw]
    if kind in ("F8_E8M0", "U8"):
        return np.where(raw == 255, np.nan, np.ldexp(1.0, raw.astype(np.int32) - 127))
    raw = np.ascontiguousarray(raw)
    if kind == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return raw.view({"F32": "<f4", "F16": "<f2"}[kind]).astype(np.float64)


def nibble_bytes(codes: Bytes, block: int) -> Bytes:
    """Return blocks of nibbles, the first half of a block low: uint8 [n, blocks, block/2]."""
    halves = codes.reshape(len(codes), -1, 2, block // 2)
    return halves[:, :, 0] | halves[:, :, 1] << np.uint8(4)


def float_bytes(values: Doubles) -> Bytes:
    """Return numbers [n, blocks] rounded to float32: uint8 [n, blocks, 4]."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, "<f4")[..., None].view(np.uint8)


def assemble(layout: str, codes: Codes, scale: Doubles, minimum: Doubles | None = None) -> Bytes:
    """Return rows of blocks of a layout: uint8 [n, row bytes].

    Parameters
    ----------
    codes : [n, K], as the layout keeps them: nibbles, or bytes of any type.
    scale, minimum : [n, blocks].
    """
    block = NIBBLES.get(layout)
    plain = codes.astype(np.uint8) if codes.dtype.itemsize > 1 else codes.view(np.uint8)
    packed = nibble_bytes(plain, block) if block else plain.reshape(len(plain), -1, BLOCK)
    fields = [float_bytes(values) for values in (scale, minimum) if values is not None]
    return np.concatenate([*fields, packed], axis=2).reshape(len(plain), -1)


def spread(values: Doubles, columns: int, group: int, block: int) -> Doubles:
    """Repeat a number of each group of columns for each of its blocks: [n, G] to [n, blocks]."""
    times = max(1, min(group, columns) // block)
    if values.shape[1] == 1:
        times = -(-columns // block)
    return np.repeat(values, times, axis=1)[:, : -(-columns // block)]
