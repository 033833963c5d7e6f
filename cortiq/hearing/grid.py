"""Convolutions over time and frequency: a spectrogram to fewer, wider rows, in several entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from cortiq.ir import Builder, Program, Value
from cortiq.ir.layers import Linear
from cortiq.ir.ops import Activation
from cortiq.numerics.contract import Floats

GRID, CELLS = "grid.{}", "cells"
"""Entries of the convolutions, and their input: what a moment's bands are made of."""
STRIDED = "strided"
"""Output of these entries."""
KERNEL, STRIDE = 3, 2
"""Of each convolution, along both axes."""


def halved(count: int, times: int = 1) -> int:
    """Return how many places are left of so many after some convolutions."""
    for _ in range(times):
        count = -(-count // STRIDE)
    return count


def cells(grid: Floats) -> Floats:
    """Return what a convolution reads at each place: [..., times, bands, channels·9] of
    [..., times, bands, channels].

    A place lists its values by channel, then band, then time, as a kernel does; zeros lie around
    the grid.
    """
    edge = (KERNEL // 2, KERNEL // 2)
    padded = np.pad(grid, [(0, 0)] * (grid.ndim - 3) + [edge, edge, (0, 0)])
    near = np.lib.stride_tricks.sliding_window_view(padded, (KERNEL, KERNEL), axis=(-3, -2))
    near = near[..., ::STRIDE, ::STRIDE, :, :, :].swapaxes(-1, -2)
    return np.ascontiguousarray(near.reshape(*near.shape[:-3], -1))


def grid_entries(program: Program) -> list[str]:
    """Return the entries of a program's convolutions, in their order."""
    return [name for name in program.graphs if name.startswith(GRID.format(""))]


def convolved(
    pieces: Floats, entries: Sequence[str], run: Callable[[str, Floats], Floats]
) -> Floats:
    """Return the rows of an encoder that pieces of a spectrogram become, before its first matrix:
    [rows, channels·bands], a channel's bands side by side.

    Parameters
    ----------
    pieces : [pieces, frames, bands], each of which is convolved by itself.
    run : computes an entry of what its rows supply, [moments, bands, values].
    """
    grid = pieces[..., None]
    for entry in entries:
        grid = np.stack([run(entry, piece) for piece in cells(grid)])
    rows = grid.swapaxes(-1, -2)
    return np.ascontiguousarray(rows.reshape(-1, rows.shape[-2] * rows.shape[-1]))


def write_entry(b: Builder, number: int, bands: int, sizes: tuple[int, int], tensor: str) -> None:
    """Write an entry: a convolution of sizes[0] channels to sizes[1], biased, and GELU.

    Parameters
    ----------
    bands : that it makes.
    """
    inner, channels = sizes[0] * KERNEL**2, sizes[1]
    b.input("position")
    given: Value = b.input(CELLS, (bands, inner), "f32")
    weights = {"weight": f"{tensor}.weight", "bias": f"{tensor}.bias"}
    name = f"{STRIDED}.{number}"
    y = b.add(Linear(inner, channels, biased=True), given, name=f"{name}.sum", weights=weights)
    y = b.add(Activation("gelu"), y, name=name)
    b.graph(GRID.format(number), (name,))
