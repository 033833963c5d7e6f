"""Encoders of CMF's tensors, to the byte as the original engine's.

A tensor is encoded in slices of rows. What follows from the whole of it (widths of rows, factors of
columns, which values are laid over others) is found first, in a pass over all rows: `survey`. Sums
run from left to right; roundings are those of float32 unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cortiq.formats.cmf.dtypes import GROUP
from cortiq.formats.cmf.ladder_codes import ladder_rows
from cortiq.formats.cmf.payloads import WIDTHS, Bytes, row_sizes
from cortiq.formats.cmf.scalars import (
    F32,
    Floats,
    floored,
    half_bits,
    left_sum,
    split_groups,
)
from cortiq.formats.cmf.sign_codes import Q1S_KEPT, sign_rows, ternary_rows, threshold_of

MEAN_BITS, BLOCK_ROWS = 4.25, 256
Slices = Callable[[], Iterable[Floats]]


@dataclass(frozen=True)
class Survey:
    """The facts about a whole tensor that an encoding takes.

    Attributes
    ----------
    fixed : bytes of parts that belong to no row, by the part's number.
    widths : bits of each row. columns : factor of each column. threshold : size of the values that
        are laid over others. overlaid : their number.
    """

    fixed: Mapping[int, bytes]
    widths: Bytes | None = None
    columns: Floats | None = None
    threshold: np.float32 | None = None
    overlaid: int = 0


def survey(name: str, shape: tuple[int, int], slices: Slices) -> Survey:
    """Return what an encoding takes of a whole tensor; only some of them read it for that.

    Parameters
    ----------
    slices : gives the tensor's rows in order, float32 [n, C] each.
    """
    rows, columns = shape
    if name in ("vbit", "vbit_ro"):
        widths = _widths(slices)
        fixed = {0: widths.tobytes()}
        if name == "vbit_ro":
            ends = np.cumsum(row_sizes(widths, columns))
            fixed[2] = np.concatenate([[0], ends]).astype("<u4").tobytes()
        return Survey(fixed, widths)
    if name == "q8_2f":
        factors = _column_factors(slices, shape)
        return Survey({2: half_bits(factors).tobytes()}, columns=factors)
    if name == "q1s":
        threshold, count = threshold_of(slices, rows * columns, Q1S_KEPT)
        return Survey({1: count.to_bytes(4, "little")}, threshold=threshold, overlaid=count)
    if name == "q1t":
        return Survey({1: bytes(4 * (rows + 1))})
    return Survey({})


def _widths(slices: Slices) -> Bytes:
    """Return the bits of each row: the nearest width to 4.25 and what its logarithm has above the
    mean of all; the smaller of two as near.
    """
    largest = np.concatenate([np.abs(values).max(axis=1) for values in slices()])
    logs = np.log2(np.maximum(largest, F32(1e-12)).astype(np.float64)).astype(F32)
    mean = left_sum(logs[None, :])[0] / F32(len(logs))
    wanted = F32(MEAN_BITS) + (logs - mean)
    levels = np.array(WIDTHS, F32)
    return np.array(WIDTHS, np.uint8)[np.argmin(np.abs(wanted[:, None] - levels), axis=1)]


def _column_factors(slices: Slices, shape: tuple[int, int]) -> Floats:
    """Return the root of every column's mean square, float64 sums over blocks of 256 rows."""
    total, block, filled = np.zeros(shape[1]), np.zeros(shape[1]), 0
    for values in slices():
        for row in values.astype(np.float64):
            block += row * row
            filled += 1
            if filled == BLOCK_ROWS:
                total, block, filled = total + block, np.zeros(shape[1]), 0
    total = total + block
    root = np.maximum(np.sqrt(total / shape[0]), 1e-12).astype(F32)
    return floored(root)


def part_sizes(name: str, shape: tuple[int, int], found: Survey) -> list[int]:
    """Return the bytes of every part of a tensor, in their order in the file."""
    rows, columns = shape
    groups = rows * (columns // GROUP)
    flat = -(-rows * columns // GROUP)
    if name in ("vbit", "vbit_ro"):
        assert found.widths is not None
        packed = int(row_sizes(found.widths, columns).sum())
        offsets = [4 * (rows + 1)] if name == "vbit_ro" else []
        return [rows, 2 * groups, *offsets, packed]
    rungs = rows * -(-5 * (columns // GROUP) // 8)
    return {
        "f32": [4 * rows * columns], "f16": [2 * rows * columns],
        "q8_row": [rows * columns, 2 * rows], "q8_2f": [rows * columns, 2 * rows, 2 * columns],
        "q4_block": [16 * flat, 2 * flat], "q4_tiled": [18 * groups],
        "q4tp": [16 * groups, 4 * rows, rungs], "q2tp": [8 * groups, 4 * rows, rungs],
        "q1": [6 * groups], "q1p": [6 * groups], "q1s": [6 * groups, 4, 6 * found.overlaid],
        "q1t": [9 * groups, 4 * (rows + 1)],
    }[name]  # fmt: skip


def encode_rows(name: str, values: Floats, found: Survey, start: int) -> list[Bytes]:
    """Return rows from number `start` on, by part, in the file's order; parts that belong to no row
    come with row 0.

    Parameters
    ----------
    name : of an encoding, or q1p: q1 with what is lost carried on along a row.
    """
    return with_fixed(ENCODERS[name](np.ascontiguousarray(values, F32), found, start), found, start)


def with_fixed(own: list[Bytes], found: Survey, start: int) -> list[Bytes]:
    """Return parts of rows with those that belong to no row between them."""
    if not found.fixed:
        return own
    parts, left = [], iter(own)
    for number in range(len(own) + len(found.fixed)):
        if number in found.fixed:
            data = found.fixed[number] if start == 0 else b""
            parts.append(np.frombuffer(data, np.uint8))
        else:
            parts.append(next(left))
    return parts


def encode(name: str, values: Floats) -> bytes:
    """Return a whole tensor [rows, C] in an encoding."""
    rows, columns = values.shape
    found = survey(name, (rows, columns), lambda: [values])
    return b"".join(part.tobytes() for part in encode_rows(name, values, found, 0))


def _q8_row(values: Floats, found: Survey, start: int) -> list[Bytes]:
    scale = floored(np.abs(values).max(axis=1) / F32(127))
    codes = np.clip(np.rint(values / scale[:, None]), -128, 127).astype(np.int8)
    return [codes.view(np.uint8).reshape(-1), half_bits(scale).view(np.uint8)]


def _q8_2f(values: Floats, found: Survey, start: int) -> list[Bytes]:
    assert found.columns is not None
    even = values / found.columns
    scale = floored(np.maximum(np.abs(even).max(axis=1), F32(1e-12)) / F32(127))
    codes = np.clip(np.rint(even / scale[:, None]), -127, 127).astype(np.int8)
    return [codes.view(np.uint8).reshape(-1), half_bits(scale).view(np.uint8)]


def _four(values: Floats) -> tuple[Bytes, Bytes]:
    """Return nibble bytes [groups, 16] and scales [groups, 2] of groups [groups, 32]."""
    scale = floored(np.abs(values).max(axis=1) / F32(7))
    codes = np.clip(np.rint(values / scale[:, None]), -8, 7).astype(np.int8) + np.int8(8)
    return pack_nibbles(codes.view(np.uint8)), half_bits(scale).view(np.uint8).reshape(-1, 2)


def pack_nibbles(codes: Bytes) -> Bytes:
    """Return codes 0 … 15, [groups, 32], as bytes [groups, 16] of neighbours, the even one low."""
    return codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)


def _q4_block(values: Floats, found: Survey, start: int) -> list[Bytes]:
    flat = values.reshape(-1)
    flat = np.concatenate([flat, np.zeros(-len(flat) % GROUP, F32)])
    return [part.reshape(-1) for part in _four(flat.reshape(-1, GROUP))]


def _q4_tiled(values: Floats, found: Survey, start: int) -> list[Bytes]:
    packed, scale = _four(split_groups(values))
    return [np.concatenate([scale, packed], axis=1).reshape(-1)]


def _vbit(values: Floats, found: Survey, start: int) -> list[Bytes]:
    """Return scales and packed rows: the first bit of a code first, rows of whole bytes."""
    assert found.widths is not None
    widths = found.widths[start : start + len(values)].astype(np.int32)
    low = ((1 << (widths - 1)) - 1).astype(F32)[:, None]
    groups = values.reshape(len(values), -1, GROUP)
    scale = floored(np.abs(groups).max(axis=2) / low)
    steps = np.rint(groups / scale[..., None]).reshape(values.shape) + low
    top = ((1 << widths) - 1).astype(F32)[:, None]
    codes = np.clip(steps, 0, top).astype(np.uint8)
    return [half_bits(scale).view(np.uint8).reshape(-1), pack_widths(codes, widths)]


def pack_widths(codes: Bytes, widths: npt.NDArray[np.int32]) -> Bytes:
    """Return rows of codes [n, C] of so many bits each, the first bit first, in whole bytes."""
    rows = []
    for row, width in zip(codes, widths, strict=True):
        bits = np.unpackbits(row[:, None], axis=1)[:, 8 - width :]
        rows.append(np.packbits(bits.reshape(-1)))
    return np.concatenate(rows)


ENCODERS: Mapping[str, Callable[[Floats, Survey, int], list[Bytes]]] = {
    "f32": lambda values, found, start: [values.astype("<f4").view(np.uint8).reshape(-1)],
    "f16": lambda values, found, start: [half_bits(values).view(np.uint8).reshape(-1)],
    "q8_row": _q8_row,
    "q8_2f": _q8_2f,
    "q4_block": _q4_block,
    "q4_tiled": _q4_tiled,
    "vbit": _vbit,
    "vbit_ro": _vbit,
    "q4tp": lambda values, found, start: ladder_rows(values, four_bits=True),
    "q2tp": lambda values, found, start: ladder_rows(values, four_bits=False),
    "q1": lambda values, found, start: sign_rows(values, carried=False),
    "q1p": lambda values, found, start: sign_rows(values, carried=True),
    "q1s": lambda values, found, start: sign_rows(values, True, found.threshold, start),
    "q1t": lambda values, found, start: ternary_rows(values),
}
"""Encoders by name: rows of a tensor, its survey, the first row's number."""
