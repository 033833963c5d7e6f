"""Convolutions over time and frequency: a spectrogram to fewer, wider rows, in several entries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

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
STRIP_TIMES, STRIP_FLOATS = 256, 1 << 24
"""Moments, and floats of what is read there, that are convolved at a time."""
CONVOLUTIONS = "convolutions"
"""Fact of a program that is a `Convolutions`."""


@dataclass(frozen=True)
class Convolutions(Described):
    """Convolutions over a spectrogram: zeros around it, and a norm after each.

    Attributes
    ----------
    ahead : they read times after a row's own; by default one before and one after.
    eps : of norms by all rows so far; 0 for none.
    apart : after the first one, each channel has a kernel of its own, and places list their values
        by time, band, then channel.
    by_channel : rows have a channel's bands side by side, though kernels have time first.
    """

    ahead: bool = False
    eps: float = 0.0
    apart: bool = False
    by_channel: bool = False


USUAL = Convolutions()


def halved(count: int, times: int = 1) -> int:
    """Return how many places are left of so many after some convolutions."""
    for _ in range(times):
        count = -(-count // STRIDE)
    return count


def cells(grid: Floats, by_band: bool, ahead: bool = False, apart: bool = False) -> Floats:
    """Return what a convolution reads at each place: [..., times, bands, channels, 3, 3] of
    [..., times, bands, channels], a view of a few times as many numbers.

    A place lists its values by channel, then band, then time, or time, then band (`by_band`), as
    a kernel does, or by time, band, then channel (`apart`: [..., 3, 3, channels]); zeros lie around
    the grid, or of times after it alone (`ahead`).
    """
    edge = (KERNEL // 2, KERNEL // 2)
    times = (0, KERNEL - 1) if ahead else edge
    padded = np.pad(grid, [(0, 0)] * (grid.ndim - 3) + [times, edge, (0, 0)])
    near = np.lib.stride_tricks.sliding_window_view(padded, (KERNEL, KERNEL), axis=(-3, -2))
    near = near[..., ::STRIDE, ::STRIDE, :, :, :]
    near = near if by_band or apart else near.swapaxes(-1, -2)
    return np.moveaxis(near, -3, -1) if apart else near


def _strips(near: Floats, run: Callable[[Floats], Floats]) -> Floats:
    """Return what an entry computes of a piece's places, some moments at a time: as many as are not
    too large a copy.
    """
    times, bands = near.shape[:2]
    step = max(1, min(STRIP_TIMES, STRIP_FLOATS // max(1, near[:1].size)))
    parts = (near[start : start + step] for start in range(0, times, step))
    rows = [run(np.ascontiguousarray(part.reshape(len(part), bands, -1))) for part in parts]
    return np.concatenate(rows)


def grid_entries(program: Program) -> list[str]:
    """Return the entries of a program's convolutions, in their order."""
    return [name for name in program.graphs if name.startswith(GRID.format(""))]


def convolved(pieces: Floats, program: Program, run: Callable[[str, Floats], Floats]) -> Floats:
    """Return the rows of an encoder that pieces of a spectrogram become, before its first matrix.

    Where the encoder's input is `BANDS`, the file's convolutions have time first, and rows a band's
    channels side by side, unless the program's `Convolutions` say otherwise; for another input
    bands are first, and rows have a channel's bands so.

    Parameters
    ----------
    pieces : [pieces, frames, bands], each of which is convolved by itself.
    run : computes an entry of what its rows supply, [moments, bands, values].
    """
    how, by_band = program.facts.get(CONVOLUTIONS, USUAL), BANDS in program.trunk.inputs
    grid = pieces[..., None]
    for n, entry in enumerate(grid_entries(program)):
        near = cells(grid, by_band, how.ahead, how.apart and n > 0)
        grid = np.stack([_strips(piece, partial(run, entry)) for piece in near])
        if how.eps:
            grid = np.stack([running_norm(piece, how.eps) for piece in grid])
    rows = grid if by_band and not how.by_channel else grid.swapaxes(-1, -2)
    return np.ascontiguousarray(rows.reshape(-1, rows.shape[-2] * rows.shape[-1]))


def write_entry(
    b: Builder,
    number: int,
    bands: int,
    op: Linear,
    tensor: str,
    end: Callable[[Builder, Value, str], Value] | None = None,
    first: Callable[[Builder, Value, str], Value] | None = None,
    read: int = 0,
) -> None:
    """Write an entry.

    Parameters
    ----------
    bands : that it makes. op : product of a place's values with the kernel, `tensor`.
    end : writes what follows, under the name it is given. first : writes what comes before it.
    read : values of a place, where these are not those of the product.
    """
    b.input("position")
    given, name = b.input(CELLS, (bands, read or op.in_width), "f32"), f"{STRIDED}.{number}"
    weights = {role: f"{tensor}.{role}" for role in op.weight_shapes()}
    given = first(b, given, f"{name}.first") if first else given
    y = b.add(op, given, name=f"{name}.sum" if end else name, weights=weights)
    if end:
        end(b, y, name)
    b.graph(GRID.format(number), (name,))
