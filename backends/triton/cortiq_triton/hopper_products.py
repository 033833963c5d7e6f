"""Products by kernels for Hopper's tensor cores: weights in blocks are laid out for them, a part of
their rows at a time; codes with a scale a row are taken as they lie.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from cortiq_triton import compiled
from cortiq_triton.host_codes import BYTES, NIBBLES
from cortiq_triton.language import (
    INTERPRETED,
    ceil_div,
    launch,
    pow2,
    processors,
    shared_memory,
)
from cortiq_triton.operands import (
    ACROSS,
    DOWN,
    facts_of,
    laid_bytes,
    lay_quantised,
    lay_weight_rows,
    sums_of,
    words_of,
)
from cortiq_triton.rows import Rows
from cortiq_triton.weights import Packed

MEMORY = 1 << 27
"""Bytes of a weight's rows that are laid out at a time."""
DEPTH = 128
"""Columns of a step of codes."""
GROUP = 32
"""Tiles of rows of x that meet a tile of the weight's while it is in the L2."""
MOST_ROWS = 1 << 20
"""More than a batch has; tiles for codes are the same from some number of rows on."""


Kernel = Callable[..., None]


@cache
def available() -> bool:
    """Whether the device has Hopper's instructions, and Triton the language that names them."""
    if INTERPRETED or not torch.cuda.is_available():
        return False
    if torch.cuda.get_device_capability() != (9, 0):
        return False
    try:
        from cortiq_triton import hopper_rows  # noqa: F401
    except ImportError:
        return False
    return True


def kernel_for(weight: Packed, rows: int, laid: int) -> Kernel | None:
    """The kernel for a weight and so many rows; None if there is none.

    laid : rows from which on blocks are worth laying out. Those of a weight of 256 columns or fewer
    never are: the kernels ask for a piece while the one before is multiplied, and Triton 3.6 does
    not compile their loop for a single piece.
    """
    if weight.block in (32, 256) and weight.kind in (BYTES, NIBBLES):
        pieces = ceil_div(weight.padded, 256)
        own: Kernel | None = multiply_blocks if rows >= laid and pieces > 1 else None
    else:
        codes = weight.kind == BYTES and not weight.block
        own = multiply_codes if codes else None
    return own if own is not None and available() else None


def parts_of(weight: Packed, height: int) -> list[tuple[int, int]]:
    """First row and count of the parts of a weight of this height that are laid out at a time."""
    most = max(1, MEMORY // laid_bytes(weight, DOWN)) * DOWN
    count = ceil_div(height, most)
    each = ceil_div(ceil_div(height, count), DOWN) * DOWN
    return [(first, min(each, height - first)) for first in range(0, height, each)]


def multiply_blocks(
    weight: Packed, x: Rows, out: torch.Tensor, faults: torch.Tensor,
    ending: tuple[torch.Tensor, torch.Tensor], last: tuple[int, ...], endings: dict[str, Any],
) -> None:  # fmt: skip
    """Rows times a weight into out. last : `cuts` and `group` of a `Stack`."""
    from cortiq_triton import hopper_blocks_32, hopper_blocks_256

    rows, height = out.shape
    laid, sums = lay_quantised(weight, x)
    runs = ceil_div(weight.padded, 256)
    how: dict[str, Any] = {"FACTS": facts_of(weight), "SUMS": sums_of(weight), "GROUP": GROUP}
    kernel = hopper_blocks_32.matmul_blocks_of_32
    if weight.block == 256:
        kernel = hopper_blocks_256.matmul_blocks_of_256
        how |= {"PLANES": weight.folded, "WORDS": words_of(weight)}
    for first, count in parts_of(weight, height):
        across = ceil_div(count, DOWN)
        programs = across * ceil_div(rows, ACROSS)
        if weight.block == 32:
            programs = min(programs, processors())  # they take tiles in turn
        launch(
            kernel, (programs,), *lay_weight_rows(weight, first, count), laid, sums, x.e, *ending,
            out, faults, rows, height, runs, first, across, *last, **how, **endings, warps=8,
        )  # fmt: skip


def code_tiles(rows: int, height: int) -> dict[str, int]:
    """Rows of x and of the weight in a tile, and steps of 128 columns in memory.

    Few programs have many steps on their way each, so that memory is asked for enough.
    """
    if rows > 64:
        tiles = ceil_div(rows, 128) * ceil_div(height, 128)
        return {"BM": 128, "BN": 128 if tiles >= processors() else 64, "STAGES": 4}
    bm = max(16, pow2(rows))
    bn = 128 if rows <= 32 and height >= DOWN * processors() else 64
    programs = min(2, ceil_div(ceil_div(height, bn), processors()))  # that a processor holds
    room = shared_memory() // programs - 1024
    return {"BM": bm, "BN": bn, "STAGES": max(4, min(12, room // (128 * (bn + 2 * bm))))}


def code_tilings(rows: int, height: int) -> list[dict[str, int]]:
    """The tiles for so many rows; while kernels are collected, those for all numbers of rows."""
    if not compiled.is_collecting():
        return [code_tiles(rows, height)]
    found = [code_tiles(count, height) for count in (16, 32, 64, 128, MOST_ROWS)]
    return [tiles for at, tiles in enumerate(found) if tiles not in found[:at]]


def multiply_codes(
    weight: Packed, x: Rows, out: torch.Tensor, faults: torch.Tensor,
    ending: tuple[torch.Tensor, torch.Tensor], last: tuple[int, ...], endings: dict[str, Any],
) -> None:  # fmt: skip
    """Rows times codes with a scale a row into out."""
    from cortiq_triton import hopper_codes, hopper_rows

    if hopper_codes.multiply(weight, x, out, faults, ending, last, endings):
        return
    rows, height = out.shape
    steps = ceil_div(weight.padded, DEPTH)
    for sizes in code_tilings(rows, height):
        how: dict[str, Any] = {**endings, **sizes}
        launch(
            hopper_rows.matmul_rows_of_codes,
            (ceil_div(rows, sizes["BM"]) * ceil_div(height, sizes["BN"]),),
            weight.codes, weight.scale, x.high, x.low, x.e, *ending, out, faults, rows, height,
            weight.padded, *last, warps=sizes["BN"] // 16, GROUP=8, ODD=steps % 2,
            CUT=weight.padded % DEPTH > 0, **how,
        )  # fmt: skip
