"""Codes and numbers as files pack them, and the blocks that our layouts make of them.

Codes of b bits lie one after the other in little-endian words, the lowest bits first, across words
where b does not divide 32. Layouts: `cortiq.numerics.groupquants` and, for MXFP4, `blockquants`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

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


def unpack_columns(words: Codes, bits: int, start: int, stop: int) -> Bytes:
    """Return codes start…stop−1 of rows of words [n, words]: uint8 [n, stop − start]."""
    first, last = start // WORD, -(-stop // WORD)
    some = np.ascontiguousarray(words[:, first * bits : last * bits]).view(np.uint8)
    codes = unpack_codes(some, bits, some.shape[1] * 8 // bits)
    return codes[:, start - first * WORD : stop - first * WORD]


def unpack_words(words: Codes, start: int, stop: int, order: tuple[int, ...] = AWQ_ORDER) -> Bytes:
    """Return codes of outputs start…stop−1 of words [K, N/8]: uint8 [stop − start, K].

    order : of eight outputs in a word, whose code lies in each nibble.
    """
    first, last = start // 8, -(-stop // 8)
    some = np.ascontiguousarray(words[:, first:last].T).view(np.uint32)
    codes = np.empty((len(some), 8, some.shape[1]), np.uint8)
    for nibble, column in enumerate(order):
        codes[:, column] = some >> np.uint32(4 * nibble) & np.uint32(15)
    return codes.reshape(-1, some.shape[1])[start - 8 * first : stop - 8 * first]


@lru_cache(maxsize=1)
def _e4m3_table() -> Doubles:
    byte = np.arange(256)
    exponent, mantissa = byte >> 3 & 15, byte & 7
    size = np.ldexp(np.where(exponent > 0, 8 + mantissa, mantissa), np.maximum(exponent, 1) - 10)
    size = np.where(byte & 127 == 127, np.nan, size)
    return np.where(byte > 127, -size, size)


def _numbers(bits: Codes, kind: str) -> Doubles:
    """Return numbers of one of `SCALE_TYPES` from their bits, exactly: float64."""
    if kind == "F8_E4M3":
        return _e4m3_table()[bits]
    if kind in ("F8_E8M0", "U8"):
        return np.where(bits == 255, np.nan, np.ldexp(1.0, bits.astype(np.int32) - 127))
    if kind == "BF16":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return np.ascontiguousarray(bits).view({"F32": "<f4", "F16": "<f2"}[kind]).astype(np.float64)


@dataclass(frozen=True)
class StoredNumbers:
    """Numbers of a file, mapped as their bits; what is picked out becomes float64."""

    bits: Codes
    kind: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        return self.bits.shape

    @property
    def size(self) -> int:
        """Count of the numbers."""
        return self.bits.size

    def __getitem__(self, key: Any) -> Doubles:
        return _numbers(self.bits[key], self.kind)

    def reshape(self, *shape: int) -> StoredNumbers:
        """Return the same numbers in another shape."""
        return StoredNumbers(self.bits.reshape(*shape), self.kind)

    def a_row(self, rows: int) -> StoredNumbers | None:
        """Return them as a table [rows, …], a single number in every row; None if they are none."""
        if self.size == 1:
            return StoredNumbers(np.broadcast_to(self.bits.reshape(1, 1), (rows, 1)), self.kind)
        return self.reshape(rows, -1) if rows and self.size % rows == 0 else None


def nibble_bytes(codes: Bytes, block: int) -> Bytes:
    """Return blocks of nibbles, the first half of a block low: uint8 [n, blocks, block/2]."""
    halves = codes.reshape(len(codes), -1, 2, block // 2)
    return halves[:, :, 0] | halves[:, :, 1] << np.uint8(4)


def paired_nibbles(packed: Bytes, block: int) -> Bytes:
    """Return blocks as `nibble_bytes` from rows of bytes that hold neighbours, the even one low."""
    word = {32: "<u8", 16: "<u4"}[block]
    halves = np.ascontiguousarray(packed).view(word).reshape(len(packed), -1, 2)
    early, late = halves[..., 0], halves[..., 1]
    low = early.dtype.type(int("0f" * early.dtype.itemsize, 16))
    four = early.dtype.type(4)
    joined = np.empty((*early.shape, early.dtype.itemsize, 2), np.uint8)
    even, odd = (early & low) | (late & low) << four, (early >> four & low) | (late & ~low)
    joined[..., 0] = even.view(np.uint8).reshape(joined.shape[:-1])
    joined[..., 1] = odd.view(np.uint8).reshape(joined.shape[:-1])
    return joined.reshape(len(packed), -1, block // 2)


def float_bytes(values: Doubles) -> Bytes:
    """Return numbers [n, blocks] rounded to float32: uint8 [n, blocks, 4]."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, "<f4")[..., None].view(np.uint8)


def assemble(packed: Bytes, scale: Doubles, minimum: Doubles | None = None) -> Bytes:
    """Return rows of blocks: float32 numbers and, behind them, codes; uint8 [n, row bytes].

    Parameters
    ----------
    packed : uint8 [n, blocks, bytes of a block's codes].
    scale, minimum : [n, blocks].
    """
    fields = [float_bytes(values) for values in (scale, minimum) if values is not None]
    return np.concatenate([*fields, packed], axis=2).reshape(len(packed), -1)


def spread(values: Doubles, columns: int, group: int, block: int) -> Doubles:
    """Repeat a number of each group of columns for each of its blocks: [n, G] to [n, blocks]."""
    times = max(1, min(group, columns) // block)
    if values.shape[1] == 1:
        times = -(-columns // block)
    return np.repeat(values, times, axis=1)[:, : -(-columns // block)]
