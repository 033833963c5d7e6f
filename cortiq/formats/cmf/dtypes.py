"""Encodings of tensors in CMF files: numbers, names, and the sizes that follow from a shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

GROUP = 32
"""Elements under one scale."""
MAX_OVERLAID_COLUMNS = 1 << 16
"""Most columns of q1t, whose entries hold a column in 16 bits."""


@dataclass(frozen=True)
class Dtype:
    """An encoding.

    Attributes
    ----------
    number, name : in the directory, and in messages and recipes.
    item : bytes of an element, of plain numbers; else 0.
    matrix : whether it takes two axes only. tiled : whether rows are whole groups of 32.
    decodes : whether it has values; u8 holds bytes that are none.
    """

    number: int
    name: str
    item: int = 0
    matrix: bool = False
    tiled: bool = False
    decodes: bool = True


_ALL = (
    Dtype(0, "f32", 4), Dtype(1, "f16", 2), Dtype(2, "bf16", 2),
    Dtype(3, "q8_row", matrix=True), Dtype(4, "q4_block"), Dtype(6, "u8", 1, decodes=False),
    Dtype(8, "vbit", matrix=True, tiled=True), Dtype(9, "q8_2f", matrix=True),
    *(Dtype(n, name, matrix=True, tiled=True) for n, name in (
        (10, "vbit_ro"), (11, "q4_tiled"), (12, "q1"), (13, "q1s"), (14, "q1t"), (15, "q4tp"),
        (16, "q2tp"),
    )),
)  # fmt: skip
DTYPES: Mapping[int, Dtype] = {dtype.number: dtype for dtype in _ALL}
"""Encodings by number; 5 and 7 are reserved."""
BY_NAME: Mapping[str, Dtype] = {dtype.name: dtype for dtype in _ALL}
RAISES_QUANT_2F = frozenset({"q8_2f", "vbit"})
"""Encodings whose presence sets the feature QUANT_2F."""


def code_bytes(columns: int) -> int:
    """Return the bytes of a row's five-bit rungs, one for each group of 32 columns."""
    return -(-5 * (columns // GROUP) // 8)


def fixed_size(dtype: Dtype, shape: tuple[int, ...]) -> int | None:
    """Return the bytes of a tensor, or None where they depend on its data.

    The shape fits the encoding: two axes where it takes a matrix, rows of whole groups where tiled.
    """
    n = prod(shape)
    if dtype.item:
        return n * dtype.item
    groups = -(-n // GROUP)
    if dtype.name in ("q4_block", "q4_tiled"):
        return 18 * groups
    rows, columns = shape
    if dtype.name == "q8_row":
        return n + 2 * rows
    if dtype.name == "q8_2f":
        return n + 2 * rows + 2 * columns
    if dtype.name == "q1":
        return 6 * groups
    if dtype.name in ("q4tp", "q2tp"):
        plane = 16 if dtype.name == "q4tp" else 8
        return plane * groups + rows * (4 + code_bytes(columns))
    return None


def fits(dtype: Dtype, shape: tuple[int, ...]) -> str:
    """Return why a shape does not fit an encoding; empty if it does."""
    if dtype.matrix and len(shape) != 2:
        return f"{dtype.name} takes matrices, not {list(shape)}"
    if dtype.tiled and shape[1] % GROUP:
        return f"{dtype.name} takes rows of whole groups of {GROUP} columns, not {shape[1]}"
    if dtype.name == "q1t" and shape[1] > MAX_OVERLAID_COLUMNS:
        return f"q1t takes at most {MAX_OVERLAID_COLUMNS} columns, not {shape[1]}"
    return ""
