"""Values of tensors as float32, row by row: exactly what their bytes say.

Every encoding's values are exact in float32 but for those of q8_2f, q4tp and q2tp, which are
rounded once; so no order of operations can change a bit of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import numpy as np
import numpy.typing as npt

from cortiq.formats.cmf.dtypes import GROUP, Dtype
from cortiq.formats.cmf.payloads import Bytes, overlay_index, parts_of_ladder, row_sizes
from cortiq.formats.cmf.powers import ladders
from cortiq.formats.packed_codes import unpack_codes

Floats = npt.NDArray[np.float32]
Decoder = Callable[[tuple[int, int], Bytes, int, int], Floats]


def matrix_of(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the rows and columns of a tensor whose axes but the last are one."""
    return prod(shape[:-1]), (shape[-1] if shape else 1)


def decode_rows(dtype: Dtype, shape: tuple[int, ...], raw: Bytes, start: int, stop: int) -> Floats:
    """Return rows start…stop−1 of a tensor, its axes but the last counted as one: float32 [n, C].

    Its bytes have no `payloads.problem`.
    """
    return DECODERS[dtype.name](matrix_of(shape), raw, start, stop)


def half_values(raw: Bytes) -> Floats:
    """Return f16 numbers, subnormals as they are; float32."""
    return raw.view("<f2").astype(np.float32)


def _plain(kind: str, size: int) -> Decoder:
    def decode(shape: tuple[int, int], raw: Bytes, start: int, stop: int) -> Floats:
        row = size * shape[1]
        part = raw[start * row : stop * row]
        if kind == "bf16":
            values = (part.view("<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = part.view(kind).astype(np.float32)
        return values.reshape(stop - start, shape[1])

    return decode


def _q8_row(shape: tuple[int, int], raw: Bytes, start: int, stop: int) -> Floats:
    rows, columns = shape
    codes = raw[start * columns : stop * columns].view(np.int8).reshape(-1, columns)
    at = rows * columns
    scale = half_values(raw[at + 2 * start : at + 2 * stop])
    return codes.astype(np.float32) * scale[:, None]


def _q8_2f(shape: tuple[int, int], raw: Bytes, start: int, stop: int) -> Floats:
    rows, columns = shape
    at = rows * (columns + 2)
    by_column = half_values(raw[at : at + 2 * columns])
    with np.errstate(over="ignore", invalid="ignore"):
        return _q8_row(shape, raw, start, stop) * by_column


def nibbles_of(packed: Bytes) -> Bytes:
    """Return the nibbles of bytes that hold neighbours, the even one low: [..., 2·bytes]."""
    codes = np.empty((*packed.shape, 2), np.uint8)
    codes[..., 0], codes[..., 1] = packed & 15, packed >> 4
    return codes.reshape(*packed.shape[:-1], -1)


def block_groups(count: int, raw: Bytes, first: int, last: int) -> tuple[Bytes, Bytes]:
    """Return nibble bytes [n, 16] and scale bytes [n, 2] of groups of a q4_block of `count`."""
    scales = raw[16 * count :].reshape(count, 2)
    return raw[16 * first : 16 * last].reshape(-1, 16), scales[first:last]


def _q4_block(shape: tuple[int, int], raw: Bytes, start: int, stop: int) -> Floats:
    columns = shape[1]
    first, last = start * columns // GROUP, -(-stop * columns // GROUP)
    packed, scale = block_groups(-(-shape[0] * columns // GROUP), raw, first, last)
    values = _scaled_nibbles(packed, half_values(np.ascontiguousarray(scale))[:, 0]).reshape(-1)
    left = start * columns - first * GROUP
    return values[left : left + (stop - start) * columns].reshape(-1, columns)


def _scaled_nibbles(packed: Bytes, scale: Floats) -> Floats:
    return (nibbles_of(packed).astype(np.float32) - np.float32(8)) * scale[..., None]


def tiles_of(shape: tuple[int, int], raw: Bytes, size: int, start: int, stop: int) -> Bytes:
    """Return tiles of `size` bytes, one a group, of rows: uint8 [n, groups, size]."""
    groups = shape[1] // GROUP
    return raw[start * groups * size : stop * groups * size].reshape(stop - start, groups, size)


def tile_scales(tiles: Bytes) -> Floats:
    """Return the f16 in front of every tile: float32 [n, groups]."""
    return half_values(np.ascontiguousarray(tiles[..., :2]))[..., 0]


def _q4_tiled(shape: tuple[int, int], raw: Bytes, start: int, stop: int) -> Floats:
    tiles = tiles_of(shape, raw, 18, start, stop)
    return _scaled_nibbles(tiles[..., 2:], tile_scales(tiles)).reshape(stop - start, -1)


def rungs_of(codes: Bytes, columns: int) -> Bytes:
    """Return the five-bit rung of every group: uint8 [n, groups]."""
    return unpack_codes(np.ascontiguousarray(codes), 5, columns // GROUP)


def ladder_scales(
    shape: tuple[int, int], raw: Bytes, plane: int, start: int, stop: int
) -> tuple[Bytes, Floats]:
    """Return codes [n, groups, plane] of rows of q4tp or q2tp, and scales float32 [n, groups]."""
    codes, parameters, packed = parts_of_ladder(shape, raw, plane)
    ladder = ladders(parameters[start:stop], zero_first=plane == 8)
    rungs = rungs_of(packed[start:stop], shape[1])
    return codes[start:stop], np.take_along_axis(ladder, rungs.astype(np.intp), axis=1)


def _q4tp(shape: tuple[int, int], raw: Bytes, start: int, stop: int) -> Floats:
    codes, scale = ladder_scales(shape, raw, 16, start, stop)
    return _scaled_nibbles(codes, scale).reshape(stop - start, -1)


def _q2tp(shape: tuple[int, int], raw: Bytes, start: int, stop: int) -> Floats:
    planes, scale = ladder_scales(shape, raw, 8, start, stop)
    codes = unpack_codes(planes.reshape(stop - start, -1), 2, shape[1])
    centred = codes.reshape(stop - start, -1, GROUP).astype(np.float32) - np.float32(1.5)
    return (centred * scale[..., None]).reshape(stop - start, -1)


def sign_bits(tiles: Bytes) -> Bytes:
    """Return the bits of q1's tiles, 1 for plus: uint8 [n, groups, 32]."""
    return np.unpackbits(np.ascontiguousarray(tiles[..., 2:]), axis=-1, bitorder="little")


def _q1(shape: tuple[int, int], raw: Bytes, start: int, stop: int) -> Floats:
    tiles = tiles_of(shape, raw, 6, start, stop)
    scale = tile_scales(tiles)[..., None]
    return np.where(sign_bits(tiles) == 1, scale, -scale).reshape(stop - start, -1)


def _q1s(shape: tuple[int, int], raw: Bytes, start: int, stop: int) -> Floats:
    rows, columns = shape
    values = _q1(shape, raw, start, stop)
    entries = raw[6 * rows * (columns // GROUP) + 4 :]
    index = overlay_index(entries)
    first, last = np.searchsorted(index, (start * columns, stop * columns))
    overlaid = np.ascontiguousarray(entries.reshape(-1, 6)[first:last, 4:])
    values.reshape(-1)[index[first:last] - start * columns] = half_values(overlaid)[:, 0]
    return values


def ternary_digits(tiles: Bytes) -> Bytes:
    """Return the digits of q1t's tiles: uint8 [n, groups, 32]."""
    powers = np.array([1, 3, 9, 27, 81], np.uint8)
    return (tiles[..., 2:, None] // powers % np.uint8(3)).reshape(*tiles.shape[:-1], -1)[..., :32]


def _q1t(shape: tuple[int, int], raw: Bytes, start: int, stop: int) -> Floats:
    rows, columns = shape
    tiles = tiles_of(shape, raw, 9, start, stop)
    signs = np.array([0, 1, -1], np.float32)[ternary_digits(tiles)]
    values = (signs * tile_scales(tiles)[..., None]).reshape(stop - start, -1) + np.float32(0)
    at = 9 * rows * (columns // GROUP)
    starts = raw[at : at + 4 * (rows + 1)].view("<u4").astype(np.int64)[start : stop + 1]
    entries = raw[at + 4 * (rows + 1) :].reshape(-1, 4)[starts[0] : starts[-1]]
    row = np.repeat(np.arange(stop - start), np.diff(starts))
    column = np.ascontiguousarray(entries[:, :2]).view("<u2")[:, 0]
    values[row, column] = half_values(np.ascontiguousarray(entries[:, 2:]))[:, 0]
    return values


def vbit_codes(
    shape: tuple[int, int], raw: Bytes, start: int, stop: int, offsets: int = 0
) -> tuple[npt.NDArray[np.int16], Bytes, Floats]:
    """Return signed codes [n, C], widths [n] and scales float32 [n, groups] of rows of vbit.

    Parameters
    ----------
    offsets : bytes between the scales and the rows, of vbit_ro.
    """
    rows, columns = shape
    groups = columns // GROUP
    sizes = row_sizes(raw[:rows], columns)
    first = rows + 2 * rows * groups + offsets + int(sizes[:start].sum())
    begins = first + np.cumsum(sizes[start:stop]) - sizes[start:stop]
    widths = raw[start:stop]
    codes = np.empty((stop - start, columns), np.int16)
    for width in np.unique(widths).tolist():
        which = np.flatnonzero(widths == width)
        size = -(-columns * width // 8)
        packed = raw[begins[which, None] + np.arange(size)]
        bits = np.unpackbits(packed, axis=1, count=columns * width)
        unsigned = np.packbits(bits.reshape(len(which), columns, width), axis=2)[..., 0]
        codes[which] = (unsigned >> (8 - width)).astype(np.int16) - ((1 << (width - 1)) - 1)
    scales = raw[rows + 2 * groups * start : rows + 2 * groups * stop]
    return codes, widths, half_values(scales).reshape(-1, groups)


def _vbit(shape: tuple[int, int], raw: Bytes, start: int, stop: int, offsets: int = 0) -> Floats:
    codes, _, scale = vbit_codes(shape, raw, start, stop, offsets)
    grouped = codes.reshape(stop - start, -1, GROUP).astype(np.float32)
    return (grouped * scale[..., None]).reshape(stop - start, -1)


def _vbit_ro(shape: tuple[int, int], raw: Bytes, start: int, stop: int) -> Floats:
    return _vbit(shape, raw, start, stop, 4 * (shape[0] + 1))


DECODERS: Mapping[str, Decoder] = {
    "f32": _plain("<f4", 4), "f16": _plain("<f2", 2), "bf16": _plain("bf16", 2),
    "q8_row": _q8_row, "q8_2f": _q8_2f, "q4_block": _q4_block, "q4_tiled": _q4_tiled,
    "q4tp": _q4tp, "q2tp": _q2tp, "q1": _q1, "q1s": _q1s, "q1t": _q1t, "vbit": _vbit,
    "vbit_ro": _vbit_ro,
}  # fmt: skip
"""Decoders by encoding: rows of a matrix, its bytes, first and last row."""
