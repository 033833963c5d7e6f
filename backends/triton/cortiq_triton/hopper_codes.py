"""Products of many rows with codes that have a scale a row, by blocks that stay and copy the next
tile's columns while they end one (`cuda/matmul_codes.cu`): its arguments, and maps of its operands.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Mapping, Sequence
from ctypes import c_int, c_uint32, c_uint64, c_ulong, c_void_p
from functools import cache, lru_cache
from typing import Any

import torch

from cortiq_triton import compiled, nvrtc
from cortiq_triton.language import ceil_div, processors
from cortiq_triton.rows import Rows
from cortiq_triton.weights import Packed

DOWN, ACROSS, DEPTH = 128, 192, 128
"""Rows of x and of the weight of a tile, and columns of a step."""
STAGES, BAND, THREADS = 4, 8, 384
SHARED = STAGES * (2 * DOWN + ACROSS) * DEPTH + 16 * STAGES
BYTES, TURNED, LINES = 0, 3, 3
"""The driver's numbers: unsigned bytes, pieces turned within 128 bytes, whole lines of the L2."""


class CodesArguments(ctypes.Structure):
    """`Arguments` of the source, a whole number of 64 bytes long."""

    _fields_ = (
        ("high", c_uint64 * 16), ("low", c_uint64 * 16), ("weight", c_uint64 * 16),
        ("scale", c_void_p), ("bias", c_void_p), ("residual", c_void_p), ("out", c_void_p),
        ("exponents", c_void_p), ("faults", c_void_p), ("rows", c_int), ("height", c_int),
        ("columns", c_int), ("cut", c_int), ("cut2", c_int), ("group", c_int),
        ("unused", c_int * 14),
    )  # fmt: skip


@lru_cache(maxsize=1 << 13)
def tensor_map(place: int, rows: int, columns: int, box: int) -> tuple[int, ...]:
    """Return the driver's map of bytes [rows, columns] of which `box` rows are copied at a time."""
    memory = ctypes.create_string_buffer(192)
    begin = -ctypes.addressof(memory) % 64
    nvrtc.checked(
        nvrtc.driver().cuTensorMapEncodeTiled(
            ctypes.byref(memory, begin), BYTES, c_uint32(2), c_void_p(place),
            (c_ulong * 2)(columns, rows), (c_ulong * 1)(columns), (c_uint32 * 2)(DEPTH, box),
            (c_uint32 * 2)(1, 1), 0, TURNED, LINES, 0,
        )
    )  # fmt: skip
    return tuple((c_uint64 * 16).from_buffer(memory, begin))


@cache
def function_of(*constants: tuple[str, int]) -> nvrtc.Function | None:
    """The kernel with these ends; None, with a warning, if it cannot be had."""
    try:
        code = nvrtc.binary("matmul_codes.cu", {"BAND": BAND, **dict(constants)}, "sm_90a")
        return nvrtc.Function(code, "matmul_codes", THREADS, SHARED)
    except RuntimeError as error:
        what = f"products of many rows take Triton's kernel: {error}"
        warnings.warn(what, RuntimeWarning, stacklevel=2)
        return None


def tiles_of(rows: int, height: int) -> int:
    """Tiles of a product."""
    return ceil_div(rows, DOWN) * ceil_div(height, ACROSS)


def multiply(
    weight: Packed, x: Rows, out: torch.Tensor, faults: torch.Tensor,
    ending: tuple[torch.Tensor, torch.Tensor], last: tuple[int, ...], endings: Mapping[str, Any],
) -> bool:  # fmt: skip
    """Rows times codes into out, if they are tiles enough for all processors, and outputs lie in
    pairs; else return False.
    """
    tiles = tiles_of(*out.shape)
    if tiles < processors() or not _in_pairs(out.shape[1], last, (weight.scale, out, *ending)):
        return False
    names = {"BIASED": endings["BIASED"], "RESIDUAL": endings["RESIDUAL"]}
    names["PARTED"] = endings["PARTS"] > 1
    function = function_of(*((name, int(value)) for name, value in names.items()))
    if function is None:
        return False
    if not compiled.is_collecting():
        given = arguments_of(weight, x, out, faults, ending, last)
        function.launch(given, min(tiles, function.blocks))
    return True


def _in_pairs(height: int, last: tuple[int, ...], parts: Sequence[torch.Tensor]) -> bool:
    """Whether two neighbouring numbers are read and written at once."""
    even = all(count % 2 == 0 for count in (height, *last[:2]))
    return even and all(part.data_ptr() % 8 == 0 for part in parts)


def arguments_of(
    weight: Packed, x: Rows, out: torch.Tensor, faults: torch.Tensor,
    ending: tuple[torch.Tensor, torch.Tensor], last: tuple[int, ...],
) -> CodesArguments:  # fmt: skip
    """Return what the kernel is given."""
    (rows, height), columns = out.shape, weight.padded
    maps = [tensor_map(plane.data_ptr(), rows, columns, DOWN) for plane in (x.high, x.low)]
    maps.append(tensor_map(weight.codes.data_ptr(), height, columns, ACROSS))
    parts = (weight.scale, *ending, out, x.e, faults)
    places = [part.data_ptr() for part in parts]
    return CodesArguments(
        *((c_uint64 * 16)(*one) for one in maps), *places, rows, height, columns, *last
    )
