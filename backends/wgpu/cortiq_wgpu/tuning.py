"""Sizes that decide how fast the kernels for GPUs are, and no bit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProductTuning:
    """Sizes of the products of w8 and w16, and of w8 with many rows.

    Attributes
    ----------
    lanes, lines : of a workgroup when few rows meet a matrix; turns : units of 16 columns that a
        lane loads of each line at a time: 1 or 2.
    rows, outputs : of a lane's part of a tile, multiples of 4; units : stretches of 16 columns that
        a tile holds at a time: 1, 2 or 4.
    block_rows, block_outputs : likewise, of a matrix in blocks; block_down : rows of lanes. packed : whether its codes are
        multiplied four at a time.
    few : rows that are few: up to so many read the weights four rows at a time.
    """

    lanes: int = 128
    lines: int = 4
    turns: int = 2
    rows: int = 4
    outputs: int = 4
    units: int = 4
    block_rows: int = 4
    block_outputs: int = 4
    block_down: int = 16
    packed: bool = False
    few: int = 32

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and outputs of a workgroup's tile."""
        return 16 * self.rows, 16 * self.outputs

    @property
    def tile_bytes(self) -> int:
        """Workgroup memory of a tile, of which devices have 16,384 bytes at least."""
        rows, outputs = self.tile
        return 16 * self.units * (2 * rows + outputs + 3 * (8 // self.units))


TUNING = ProductTuning()
"""What is used where nothing else is asked for: the best of a sweep on an H200."""
