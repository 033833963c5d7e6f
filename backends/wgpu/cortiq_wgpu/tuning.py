"""Sizes that decide how fast the kernels for GPUs are, and no bit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProductTuning:
    """Sizes of the products of few rows with w8 and w16, and of those of many rows.

    Attributes
    ----------
    lanes, lines : of a workgroup when few rows meet a matrix; turns : units of 16 columns that a
        lane loads of each line at a time: 1 or 2.
    rows, outputs : of a lane's part of a tile, multiples of 4; down : rows of 16 lanes in a
        workgroup, 8 or 16.
    few : rows that are few: up to so many read the weights four rows at a time.
    """

    lanes: int = 128
    lines: int = 4
    turns: int = 2
    rows: int = 8
    outputs: int = 4
    down: int = 8
    few: int = 32


TUNING = ProductTuning()
"""What is used where nothing else is asked for: the best of a sweep on an H200."""
