"""Rows of integer codes with scales and zero points of groups of columns, as layouts hold them.

Groups are runs of columns, or a tensor says each column's group: GPTQ's act-order (`desc_act`).
With such columns group by group a layout holds the codes, too; a graph then permutes the rows that
the matrix multiplies. Whoever cannot gets floats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cortiq.formats.packed_codes import (
    BLOCK,
    Bytes,
    Codes,
    Doubles,
    assemble,
    nibble_bytes,
    paired_nibbles,
    spread,
)
from cortiq.formats.packed_tensors import OrderedRows, PackedModule, PackedTensor

Numbers = Callable[[int, int], Doubles]
SIZES = "groups of several sizes (desc_act)"


@dataclass(frozen=True)
class IntegerRows:
    """Rows of unsigned codes of b bits with their groups' scales and zero points.

    Attributes
    ----------
    codes : rows start…stop−1, uint8 [n, K]. scale : float64 [n, G].
    zero : integers [n, G]; None for 2^(b − 1) everywhere.
    pairs : rows of 4-bit codes as bytes that hold neighbours, where they lie so.
    """

    bits: int
    columns: int
    group: int
    codes: Callable[[int, int], Bytes]
    scale: Numbers
    zero: Callable[[int, int], Codes] | None
    pairs: Callable[[int, int], Bytes] | None = None

    @property
    def layout(self) -> str:
        """The layout that holds them exactly."""
        narrow = self.bits < 4 or (self.bits == 4 and self.zero is None)
        wide = self.bits < 8 or self.zero is None
        if narrow:
            return "i4b32"
        if self.bits == 4:
            return "i4b32m"
        return "i8b32" if wide else "i8b32m"

    def rows(self, start: int, stop: int) -> Bytes:
        """Return rows of blocks."""
        scale, minimum, layout = self.scale(start, stop), None, self.layout
        low = 0 if self.bits == 4 else 128
        if layout.endswith("m"):
            assert self.zero is not None
            minimum = self._spread((low - self.zero(start, stop)) * scale)
        return assemble(self._packed(start, stop), self._spread(scale), minimum)

    def _packed(self, start: int, stop: int) -> Bytes:
        """Return codes as the layout keeps them: [n, blocks, bytes of a block's codes]."""
        narrow = self.layout.startswith("i4")
        if self.bits == 4:
            if self.pairs is not None:
                return paired_nibbles(self.pairs(start, stop), BLOCK)
            return nibble_bytes(self.codes(start, stop), BLOCK)
        codes = self.codes(start, stop)
        if self.bits == 8:
            return (codes ^ np.uint8(128)).reshape(stop - start, -1, BLOCK)
        # Modulo 256: what is left fits the layout's codes.
        less: Any = np.uint8((1 << (self.bits - 1)) - (8 if narrow else 0) & 255)
        if self.zero is not None:
            zeros = self.zero(start, stop) - (8 if narrow else 0)
            less = np.repeat(zeros.astype(np.uint8), self.group, axis=1)[:, : self.columns]
        found = codes - less
        return nibble_bytes(found, BLOCK) if narrow else found.reshape(stop - start, -1, BLOCK)

    def _spread(self, values: Doubles) -> Doubles:
        return spread(values, self.columns, self.group, BLOCK)


def integer_matrix(
    module: PackedModule, shape: tuple[int, ...], rows: IntegerRows, end: str
) -> PackedTensor:
    """Return a matrix of integer rows; the tensor `end` says the groups, if there is one."""
    index = _groups_of(module, end, rows.columns)
    if index is None or (index == np.arange(rows.columns) // rows.group).all():
        return module.made(shape, rows.layout, rows.rows)
    groups = rows.columns // rows.group
    if index.min() < 0 or index.max() >= groups:
        module.fail(f"has columns of groups outside the {groups} there are")
    values = _float_rows(rows, index)
    if (np.bincount(index, minlength=groups) != rows.group).any():
        return module.made(shape, "F32", values, SIZES)
    columns = np.argsort(index, kind="stable")
    by_group = replace(rows, codes=lambda a, b: rows.codes(a, b)[:, columns], pairs=None)
    ordered = OrderedRows(rows.layout, by_group.rows, columns)
    return replace(module.made(shape, "F32", values), ordered=ordered)


def _groups_of(module: PackedModule, end: str, columns: int) -> Codes | None:
    """Return the group of each column, int64; None where nothing, or nothing but zeros, says it."""
    if not module.has(end):
        return None
    index = module.array(end, "I32", "I64").reshape(-1).astype(np.int64)
    if len(index) != columns:
        module.fail(f"has {end} of {len(index)} columns, not {columns}")
    return index if index.any() else None


def _float_rows(rows: IntegerRows, index: Codes) -> Callable[[int, int], Bytes]:
    """Return rows of floats, in the file's order of columns."""

    def make(start: int, stop: int) -> Bytes:
        codes = rows.codes(start, stop).astype(np.float64)
        middle = 1 << (rows.bits - 1)
        zero = middle if rows.zero is None else rows.zero(start, stop)[:, index]
        values = (codes - zero) * rows.scale(start, stop)[:, index]
        return np.ascontiguousarray(values, "<f4").view(np.uint8)

    return make
