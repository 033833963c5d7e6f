"""Convolutions over time and frequency: a spectrogram to fewer, wider rows, in several entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from cortiq.ir import Builder, Program, Value
from cortiq.ir.layers import Linear
from cortiq.numerics.contract import Floats

GRID, CELLS = "grid.{}", "cells"
"""Entries of the convolutions, and their input: what a moment's bands are made of."""
BANDS = "frame.bands"
"""Input of an encoder whose rows have a band's channels side by side."""
STRIDED = "strided"
"""Output of these entries."""
KERNEL, STRIDE = 3, 2
"""Of each convolution, along both axes."""


def halved(count: int, times: int = 1) -> int:
    """Return how many places are left of so many after some convolutions."""
    for _ in range(times):
        count = -(-count // STRIDE)
    return count


def cells(grid: Floats, by_band: bool) -> Floats:
    """Return what a convolution reads at each place: [..., times, bands, channels·9] of
    [..., times, bands, channels].

    A place lists its values by channel, then band, then time, or time, then band (`by_band`), as
    a kernel does; zeros lie around the grid.
    """
    edge = (KERNEL // 2, KERNEL // 2)
    padded = np.pad(grid, [(0, 0)] * (grid.ndim - 3) + [edge, edge, (0, 0)])
    near = np.lib.stride_tricks.sliding_window_view(padded, (KERNEL, KERNEL), axis=(-3, -2))
    near = near[..., ::STRIDE, ::STRIDE, :, :, :]
    near = near if by_band else near.swapaxes(-1, -2)
    return np.ascontiguousarray(near.reshape(*near.shape[:-3], -1))


def grid_entries(program: Program) -> list[str]:
    """Return the entries of a program's convolutions, in their order."""
    return [name for name in program.graphs if name.startswith(GRID.format(""))]


def convolved(
    pieces: Floats, entries: Sequence[str], run: Callable[[str, Floats], Floats], by_band: bool
) -> Floats:
    """Return the rows of an encoder that pieces of a spectrogram become, before its first matrix.

    Parameters
    ----------
    pieces : [pieces, frames, bands], each of which is convolved by itself.
    run : computes an entry of what its rows supply, [moments, bands, values].
    by_band : the file's convolutions have time first, and rows a band's channels side by side;
        otherwise bands first, and a channel's bands.
    """
    grid = pieces[..., None]
    for entry in entries:
        grid = np.stack([run(entry, piece) for piece in cells(grid, by_band)])
    rows = grid if by_band else grid.swapaxes(-1, -2)
    return np.ascontiguousarray(rows.reshape(-1, rows.shape[-2] * rows.shape[-1]))


def write_entry(
    b: Builder,
    number: int,
    bands: int,
    op: Linear,
    tensor: str,
    end: Callable[[Builder, Value, str], Value],
) -> None:
    """Write an entry.

    Parameters
    ----------
    bands : that it makes. op : product of a place's values with the kernel, `tensor`.
    end : writes what follows, under the name it is given.
    """
    b.input("position")
    given, name = b.input(CELLS, (bands, op.in_width), "f32"), f"{STRIDED}.{number}"
    weights = {role: f"{tensor}.{role}" for role in op.weight_shapes()}
    end(b, b.add(op, given, name=f"{name}.sum", weights=weights), name)
    b.graph(GRID.format(number), (name,))
