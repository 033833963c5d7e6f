"""Products by kernels for Hopper's tensor cores: weights in blocks are laid out for them, a part of
their rows at a time; codes with a scale a row are taken as they lie.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from cortiq_triton import compiled
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
    runs_of,
    sums_of,
    words_of,
)
from cortiq_triton.rows import Rows
from cortiq_triton.weights import BYTES, NIBBLES, Packed

MEMORY = 1 << 27
"""Bytes of a weight's rows that are laid out at a time."""
GROUP = 32
"""Tiles of rows of x that meet a tile of the weight's while it is in the L2."""
MOST_OF_STEPS = 128
"""Rows up to which weights decide a product's time: they start early and are shared out."""
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
        codes = weight.kind == BYTES and not weight.block and weight.padded % 256 == 0
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
    runs = runs_of(weight)
    how: dict[str, Any] = {"FACTS": facts_of(weight), "SUMS": sums_of(weight), "GROUP": GROUP}
    kernel = hopper_blocks_32.matmul_blocks_of_32
    if weight.block == 256:
        kernel = hopper_blocks_256.matmul_blocks_of_256
        how |= {"PLANES": weight.folded, "WORDS": words_of(weight)}
    for first, count in parts_of(weight, height):
        across = ceil_div(count, DOWN)
        launch(
            kernel, (min(processors(), across * ceil_div(rows, ACROSS)),), *lay_weight_rows(weight, first, count),
            laid, sums, x.e, *ending, out, faults, rows, height, runs, first, across, *last, **how,
            **endings, warps=8,
        )  # fmt: skip


def code_tiles(rows: int, height: int, columns: int) -> dict[str, Any]:
    """Rows of x and of the weight in a tile, steps of 128 columns in memory, programs for the
    columns of a tile, and whether these start early.

    Few programs have many steps on their way each, so that memory is asked for enough.
    """
    if rows > MOST_OF_STEPS:
        tiles = ceil_div(rows, 128) * ceil_div(height, 128)
        bn = 128 if tiles >= processors() else 64
        return {"BM": 128, "BN": bn, "STAGES": 4, "SPLITS": 1, "EARLY": False}
    bm = max(16, pow2(rows))
    bn = 128 if bm != 64 and height >= DOWN * processors() else 64
    tiles = ceil_div(height, bn)
    splits = splits_of(tiles, columns)
    programs = min(2, ceil_div(tiles * splits, processors()))  # that a processor holds
    room = (shared_memory() // programs - 1024) // (128 * (bn + 2 * bm))
    return {
        "BM": bm, "BN": bn, "STAGES": max(4, min(12, room)), "SPLITS": splits, "EARLY": True
    }  # fmt: skip


def splits_of(tiles: int, columns: int) -> int:
    """Programs for the columns of a tile: some two for each processor, of 512 columns at least."""
    if tiles >= processors():
        return 1
    return max(1, min(8, pow2(ceil_div(3 * processors(), 2 * tiles)), columns // 512))


def code_tilings(rows: int, height: int, columns: int) -> list[dict[str, Any]]:
    """The tiles for so many rows; while kernels are collected, those for all numbers of rows."""
    if not compiled.is_collecting():
        return [code_tiles(rows, height, columns)]
    counts = (16, 32, 64, MOST_OF_STEPS, MOST_OF_STEPS + 1, MOST_ROWS)
    found = [code_tiles(count, height, columns) for count in counts]
    return [tiles for at, tiles in enumerate(found) if tiles not in found[:at]]


@cache
def counters_of(device: torch.device) -> torch.Tensor:
    """Zeros that programs of a tile count with, each launch's back to zero when it ends."""
    return torch.zeros(1024, dtype=torch.int32, device=device)


def multiply_codes(
    weight: Packed, x: Rows, out: torch.Tensor, faults: torch.Tensor,
    ending: tuple[torch.Tensor, torch.Tensor], last: tuple[int, ...], endings: dict[str, Any],
) -> None:  # fmt: skip
    """Rows times codes with a scale a row into out."""
    from cortiq_triton import hopper_rows

    rows, height = out.shape
    for sizes in code_tilings(rows, height, weight.padded):
        how: dict[str, Any] = {**endings, **sizes}
        bm, bn, splits = sizes["BM"], sizes["BN"], sizes["SPLITS"]
        programs = ceil_div(rows, bm) * ceil_div(height, bn) * splits
        shares = counters = faults
        if splits > 1:
            shares = torch.empty(programs * 2 * bm * bn, dtype=torch.int32, device=out.device)
            counters = counters_of(out.device)
        launch(
            hopper_rows.matmul_rows_of_codes, (programs,), weight.codes, weight.scale, x.high,
            x.low, x.e, *ending, out, faults, shares, counters, rows, height, weight.padded, *last,
            warps=bn // 16, early=sizes["EARLY"], GROUP=8, **how,
        )  # fmt: skip
