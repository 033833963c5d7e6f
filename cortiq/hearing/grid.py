"""Convolutions over time and frequency: a spectrogram to fewer, wider rows, in several entries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cortiq.ir import Builder, Program, Value
from cortiq.ir.layers import Linear
from cortiq.ir.op import Described
from cortiq.numerics.contract import Floats
from cortiq.numerics.running_norm import running_norm

GRID, CELLS = "grid.{}", "cells"
"""Entries of the convolutions, and their input: what a moment's bands are made of."""
BANDS = "frame.bands"
"""Input of an encoder whose rows have a band's channels side by side."""
STRIDED = "strided"
"""Output of these entries."""
KERNEL, STRIDE = 3, 2
"""Of each convolution, along both axes."""
CONVOLUTIONS = "convolutions"
"""Fact of a program that is a `Convolutions`."""


@dataclass(frozen=True)
class Convolutions(Described):
    """Convolutions over a spectrogram: zeros around it, and a norm after each.

    Attributes
    ----------
    ahead : they read times after a row's own; by default one before and one after.
    eps : of norms by all rows so far; 0 for none.
    """

    ahead: bool = False
    eps: float = 0.0


USUAL = Convolutions()


def halved(count: int, times: int = 1) -> int:
    """Return how many places are left of so many after some convolutions."""
    for _ in range(times):
        count = -(-count // STRIDE)
    return count


def cells(grid: Floats, by_band: bool, ahead: bool = False) -> Floats:
    """Return what a convolution reads at each place: [..., times, bands, channels·9] of
    [..., times, bands, channels].

    A place lists its values by channel, then band, then time, or time, then band (`by_band`), as
    a kernel does; zeros lie around the grid, or of times after it alone (`ahead`).
    """
    edge = (KERNEL // 2, KERNEL // 2)
    times = (0, KERNEL - 1) if ahead else edge
    padded = np.pad(grid, [(0, 0)] * (grid.ndim - 3) + [times, edge, (0, 0)])
    near = np.lib.stride_tricks.sliding_window_view(padded, (KERNEL, KERNEL), axis=(-3, -2))
    near = near[..., ::STRIDE, ::STRIDE, :, :, :]
    near = near if by_band else near.swapaxes(-1, -2)
    return np.ascontiguousarray(near.reshape(*near.shape[:-3], -1))


def grid_entries(program: Program) -> list[str]:
    """Return the entries of a program's convolutions, in their order."""
    return [name for name in program.graphs if name.startswith(GRID.format(""))]


def convolved(pieces: Floats, program: Program, run: Callable[[str, Floats], Floats]) -> Floats:
    """Return the rows of an encoder that pieces of a spectrogram become, before its first matrix.

    Where the encoder's input is `BANDS`, the file's convolutions have time first, and rows a band's
    channels side by side; otherwise bands are first, and rows have a channel's bands so.

    Parameters
    ----------
    pieces : [pieces, frames, bands], each of which is convolved by itself.
    run : computes an entry of what its rows supply, [moments, bands, values].
    """
    how, by_band = program.facts.get(CONVOLUTIONS, USUAL), BANDS in program.trunk.inputs
    grid = pieces[..., None]
    for entry in grid_entries(program):
        grid = np.stack([run(entry, piece) for piece in cells(grid, by_band, how.ahead)])
        if how.eps:
            grid = np.stack([running_norm(piece, how.eps) for piece in grid])
    rows = grid if by_band else grid.swapaxes(-1, -2)
    return np.ascontiguousarray(rows.reshape(-1, rows.shape[-2] * rows.shape[-1]))


def write_entry(
    b: Builder,
    number: int,
    bands: int,
    op: Linear,
    tensor: str,
    end: Callable[[Builder, Value, str], Value] | None = None,
    first: Callable[[Builder, Value, str], Value] | None = None,
) -> None:
    """Write an entry.

    Parameters
    ----------
    bands : that it makes. op : product of a place's values with the kernel, `tensor`.
    end : writes what follows, under the name it is given. first : writes what comes before it.
    """
    b.input("position")
    given, name = b.input(CELLS, (bands, op.in_width), "f32"), f"{STRIDED}.{number}"
    weights = {role: f"{tensor}.{role}" for role in op.weight_shapes()}
    given = first(b, given, f"{name}.first") if first else given
    y = b.add(op, given, name=f"{name}.sum" if end else name, weights=weights)
    if end:
        end(b, y, name)
    b.graph(GRID.format(number), (name,))
