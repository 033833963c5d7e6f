"""Weights by formula: any rows of any named tensor, with the same bits wherever they are made.

Random bytes come from Philox with the counter (column // 16, row, stream, CRC-32 of the tensor's
name) and the seed as key: one counter gives 16 consecutive bytes of a row, its four words little
endian. Scales keep activations sane: an element has a standard deviation of about 2^gain/√K.
"""

from __future__ import annotations

import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from math import isqrt
from typing import NamedTuple

import numpy as np

from cortiq.errors import UnsupportedError
from cortiq.numerics.blockquants import Codes8
from cortiq.numerics.contract import F32, Floats, exp2_int
from cortiq.numerics.groupquants import E4M3_NAN
from cortiq.numerics.layouts import F32_LAYOUT, LAYOUTS, W16, Layout, Weight
from cortiq.numerics.philox import key_of_seed, philox
from cortiq.numerics.unpacked_weights import Bytes

CODES, LOW_PLANE, SCALES, MINIMA = range(4)
"""Streams of random bytes of a tensor."""
BYTES_PER_COUNTER = 16
COUNTERS = 1 << 15
"""Counters that a thread computes at once: what its cache holds."""


class BlockRecipe(NamedTuple):
    """Places of a layout's scale and minimum in a block, and the distribution of its random codes.

    `spread` is their standard deviation, sub-scales included, with the minimum set to `ratio`/2
    times the scale (negative where the layout adds it), so that values have a mean near 0.
    """

    scale_at: int
    spread: int
    minimum_at: int = 0
    ratio: int = 0


BLOCK_RECIPES = {
    "Q8_0": BlockRecipe(0, 74),
    "Q4_0": BlockRecipe(0, 5),
    "Q4_1": BlockRecipe(0, 5, 2, -15),
    "Q5_0": BlockRecipe(0, 9),
    "Q5_1": BlockRecipe(0, 9, 2, -31),
    "IQ4_NL": BlockRecipe(0, 67),
    "MXFP4": BlockRecipe(0, 6),
    "Q2_K": BlockRecipe(80, 14, 82, 3),
    "Q3_K": BlockRecipe(108, 43),
    "Q4_K": BlockRecipe(0, 258, 2, 15),
    "Q5_K": BlockRecipe(0, 527, 2, 31),
    "Q6_K": BlockRecipe(208, 1366),
    "IQ4_XS": BlockRecipe(0, 1240),
    "IQ3_XXS": BlockRecipe(0, 139),
    "IQ3_S": BlockRecipe(0, 139),
    "IQ2_XXS": BlockRecipe(0, 54),
    "IQ2_XS": BlockRecipe(0, 54),
    "IQ2_S": BlockRecipe(0, 54),
    "IQ1_S": BlockRecipe(0, 7),
    "IQ1_M": BlockRecipe(48, 7),
    "TQ1_0": BlockRecipe(52, 1),
    "TQ2_0": BlockRecipe(64, 1),
    "i4b32": BlockRecipe(0, 5),
    "i4b32m": BlockRecipe(0, 5, 4, -15),
    "i8b32": BlockRecipe(0, 74),
    "i8b32m": BlockRecipe(0, 74, 4, 1),
    "e2m1b16": BlockRecipe(0, 6),
    "e4m3b32": BlockRecipe(0, 52000),
    "nf4b32": BlockRecipe(0, 15700),
    "fp4b32": BlockRecipe(0, 92),
}


def random_bytes(
    name: str, seed: int, rows: tuple[int, int], count: int, stream: int = CODES
) -> Bytes:
    """Return bytes 0…count−1 of rows a…b−1 of a tensor's stream: uint8 [b−a, count]."""
    blocks = -(-count // BYTES_PER_COUNTER)
    words = np.empty((rows[1] - rows[0], blocks, 4), "<u4")
    column = np.arange(blocks, dtype=np.uint32)[None]

    def make(start: int) -> None:
        part = words[start : start + step]
        row = np.arange(len(part), dtype=np.uint32)[:, None] + np.uint32(rows[0] + start)
        counter = (column, row, stream, zlib.crc32(name.encode()))
        for place, word in enumerate(philox(counter, key_of_seed(seed))):
            part[..., place] = word

    step = max(1, COUNTERS // max(1, blocks))
    starts = range(0, len(words), step)
    if len(starts) > 1:  # NumPy lets other threads run meanwhile
        with ThreadPoolExecutor(os.cpu_count()) as workers:
            list(workers.map(make, starts))
    elif starts:
        make(0)
    return words.reshape(len(words), -1).view(np.uint8)[:, :count]


def _unit(columns: int) -> int:
    """Return ⌊2¹⁶/√K⌋ by integers."""
    return isqrt((1 << 32) // columns)


def row_scales(
    name: str, seed: int, rows: tuple[int, int], columns: int, blocks: int, exponent: int
) -> Floats:
    """Return ⌊2¹⁶/√K⌋·(96 + (byte & 63))·2^(exponent−23): about 2^exponent/√K, float32 [n, blocks].

    The integer product is below 2²⁴, so that the value is exact.
    """
    spread = (random_bytes(name, seed, rows, blocks, SCALES) & 63).astype(np.int32)
    return (_unit(columns) * (96 + spread)).astype(F32) * exp2_int(exponent - 23)


def _signed(name: str, seed: int, rows: tuple[int, int], columns: int, limit: int) -> Codes8:
    """Return code bytes as int8, clipped to ±limit."""
    codes = random_bytes(name, seed, rows, columns).view(np.int8)
    return np.clip(codes, np.int8(-limit), np.int8(limit))


def _ours(
    layout: Layout, name: str, seed: int, rows: tuple[int, int], columns: int, gain: int
) -> Weight:
    """Make w8 or w8b256 codes in ±127 with a deviation of 74, or w16 planes with one of 74·2⁸."""
    shape = (rows[1] - rows[0], columns)
    blocks = -(-columns // (layout.block or columns))
    if layout is W16:
        low = random_bytes(name, seed, rows, columns, LOW_PLANE).view(np.int8)
        parts = {"hi": _signed(name, seed, rows, columns, 126), "lo": low}
        scale = row_scales(name, seed, rows, columns, 1, gain - 14)
    else:
        parts = {"codes": _signed(name, seed, rows, columns, 127)}
        scale = row_scales(name, seed, rows, columns, blocks, gain - 6)
    return Weight(layout, shape, {**parts, "scale": scale})


def half_bits(numerator: int) -> int:
    """Return the f16 bits of numerator·2⁻³⁰, truncated, at least the smallest subnormal."""
    if numerator < 1 << 16:
        return max(numerator >> 6, 1)
    length = numerator.bit_length()
    return min(((length - 16) << 10) | ((numerator >> (length - 11)) & 1023), 0x7BFF - 31)


def _halves(numerator: int, jitter: Bytes, negative: bool = False) -> Bytes:
    """Return f16 numbers a little above numerator·2⁻³⁰, as byte pairs: uint8 [n, blocks, 2]."""
    halves = (half_bits(numerator) + jitter.astype(np.int32)) | (0x8000 if negative else 0)
    return halves.astype("<u2")[..., None].view(np.uint8)


def _floats(numerator: int, jitter: Bytes, negative: bool = False) -> Bytes:
    """Return float32 numbers a little above numerator·2⁻³⁰, as four bytes: uint8 [n, blocks, 4]."""
    first = int((np.array(numerator, F32) * F32(2.0**-30)).view(np.uint32)[()])
    words = (first + (jitter.astype(np.uint32) << 18)) | (0x80000000 if negative else 0)
    return words.astype("<u4")[..., None].view(np.uint8)


def field_of(layout: Layout, blocks: Bytes, at: int, width: int) -> Bytes:
    """Return a copy of the scale or minimum of every block at byte `at`: uint8 [..., width]."""
    if layout.name != "IQ1_M":
        return blocks[..., at : at + width].copy()
    upper = blocks[..., at + 1 : at + 8 : 2] >> np.uint8(4)
    return upper[..., ::2] | upper[..., 1::2] << np.uint8(4)


def put_field(layout: Layout, blocks: Bytes, at: int, field: Bytes) -> None:
    """Write a scale or minimum [..., bytes] of every block at byte `at`; that of IQ1_M lies in the
    upper nibbles of four words.
    """
    if layout.name != "IQ1_M":
        blocks[..., at : at + field.shape[-1]] = field
        return
    nibbles = np.stack([field[..., 0] & 15, field[..., 0] >> 4, field[..., 1] & 15,
                        field[..., 1] >> 4], axis=-1)  # fmt: skip
    upper = blocks[..., at + 1 : at + 8 : 2]
    blocks[..., at + 1 : at + 8 : 2] = (upper & np.uint8(15)) | nibbles << np.uint8(4)


def _blocks(
    layout: Layout, name: str, seed: int, rows: tuple[int, int], columns: int, gain: int
) -> Weight:
    """Make blocks of random bytes, then write their scale and minimum fields by formula."""
    recipe = BLOCK_RECIPES[layout.name]
    count, row_bytes = rows[1] - rows[0], layout.row_bytes(columns)
    blocks = columns // layout.block
    raw = random_bytes(name, seed, rows, row_bytes).reshape(count, blocks, -1).copy()
    jitter = random_bytes(name, seed, rows, blocks, SCALES) & np.uint8(31)
    numerator = isqrt((1 << 60) // (columns * recipe.spread**2))
    numerator = numerator << gain if gain >= 0 else numerator >> -gain
    if layout.name == "e4m3b32":
        codes = raw[:, :, 4:]
        codes[(codes & E4M3_NAN) == E4M3_NAN] -= 1
    if layout.name == "TQ2_0":  # a pair of 3 would be a code of 2
        raw[:, :, :64] ^= (raw[:, :, :64] & raw[:, :, :64] >> 1 & 0x55) << 1
    numbers = _floats if layout.words == "f32" else _halves
    if layout.name == "MXFP4":
        raw[:, :, 0] = 97 + numerator.bit_length() + (jitter & 1)
    else:
        put_field(layout, raw, recipe.scale_at, numbers(numerator, jitter))
    if recipe.ratio:
        jitter = random_bytes(name, seed, rows, blocks, MINIMA) & np.uint8(31)
        minima = numbers(numerator * abs(recipe.ratio) // 2, jitter, recipe.ratio < 0)
        put_field(layout, raw, recipe.minimum_at, minima)
    return Weight.from_bytes(layout, raw, (count, columns))


def synthetic_weight(
    layout: str,
    name: str,
    seed: int,
    shape: tuple[int, int],
    rows: tuple[int, int] | None = None,
    gain: int = 0,
) -> Weight:
    """Make rows a…b−1 (all, without `rows`) of the tensor `name` [N, K] in a layout.

    Parameters
    ----------
    layout : "w8", "w16", "w8b256", "f32" or a layout with blocks.
    name, seed : of the tensor and the model; both select other random bytes.
    gain : elements have a standard deviation of about 2^gain/√K, so that 0 keeps the size of
        activations and log₂√K gives a table of rows near 1.

    Raises
    ------
    UnsupportedError : there is no formula for the layout.
    """
    rows = (0, shape[0]) if rows is None else rows
    columns, found = shape[1], LAYOUTS.get(layout)
    if found is F32_LAYOUT:
        codes = random_bytes(name, seed, rows, columns).view(np.int8).astype(np.int32)
        return Weight.from_floats((codes * _unit(columns)).astype(F32) * exp2_int(gain - 22))
    if found is not None and found.kind == "parts":
        return _ours(found, name, seed, rows, columns, gain)
    if layout in BLOCK_RECIPES:
        return _blocks(LAYOUTS[layout], name, seed, rows, columns, gain)
    raise UnsupportedError(
        f"there are no synthetic weights in {layout!r}",
        where=name,
        hint=f"Choose from f32, w8, w16, w8b256, {', '.join(BLOCK_RECIPES)}.",
    )


def synthetic_vector(name: str, seed: int, count: int, centre: float = 1.0) -> Floats:
    """Make a norm's weight: centre + byte·2⁻¹⁰ with a signed byte, float32 [count], exact.

    The centre is 1 for norms, 0 for biases; it must be a multiple of 2⁻¹⁰.
    """
    codes = random_bytes(name, seed, (0, 1), count)[0].view(np.int8).astype(np.int32)
    return (codes + np.int32(centre * 1024)).astype(F32) * F32(2.0**-10)
