"""Compressed attention: entries that stand for several rows of keys and values."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpy.typing as npt

from cortiq.domains import Integer
from cortiq.numerics.contract import F32, Flags, Floats, snap
from cortiq.numerics.scalar import exp

MOST_ROWS = 1024
"""Rows that an entry stands for, at most: their weights are added one by one."""
Rate = Annotated[int, Integer(2, MOST_ROWS)]
"""Rows from one entry to the next."""


def gated_bias(
    gates: Floats, bias: Floats, positions: npt.NDArray[np.integer], faults: Flags | None
) -> Floats:
    """Return z = snap(RN(gate + bias[p mod rate])), what a row's weights are made from."""
    return snap(gates + bias[np.asarray(positions) % len(bias)], faults)


def compress(
    history: Floats,
    rows: Floats,
    gates: Floats,
    positions: npt.NDArray[np.integer],
    bias: Floats,
    width: int,
    faults: Flags | None = None,
) -> tuple[Floats, Floats]:
    """Compress a sequence's rows: entries float32 [rows, width], and what a history keeps of rows.

    A row at position p with (p + 1) mod rate = 0 closes a window, the rows p − rate + 1 … p; other
    rows give +0. An entry is the sum of the window's rows with the softmax of their z as weights,
    for each column: M = max z; w = snap(exp(RN(z − M))); s = +0; s = RN(s + w); y = +0;
    y = RN(y + RN(w·row)), the oldest row first; snap(RN(y·RN(1/s))).

    Where rows are 2·width wide, windows overlap: an entry is of the first halves of the window
    before, if there is one, and of the second halves of its own.

    Parameters
    ----------
    history : float32 [n, 2·parts·width], [row | z] of the n rows before, n = parts·rate − 1;
        zeros before the start. parts : 1, or 2 where windows overlap.
    rows, gates : float32 [rows, parts·width]; bias : float32 [rate, parts·width]; canonical.
    positions : of the rows, one after the other.
    faults : bool [rows], see `snap`.

    Source: DeepSeek-V4, "compressed sparse attention" and "heavily compressed attention".
    """
    rate, parts = len(bias), rows.shape[1] // width
    kept = np.concatenate([rows, gated_bias(gates, bias, positions, faults)], axis=1)
    known, out = np.concatenate([history, kept]), np.zeros((len(rows), width), F32)
    for i, position in enumerate(positions):
        if (position + 1) % rate:
            continue
        window = known[i : i + parts * rate]
        values, z = (np.split(part, parts, axis=1) for part in np.split(window, 2, axis=1))
        first = [] if position + 1 < parts * rate else [(values[0][:rate], z[0][:rate])]
        own = [(values[-1][-rate:], z[-1][-rate:])]
        found = (first if parts > 1 else []) + own
        flags = None if faults is None else faults[i : i + 1]
        entry = (np.concatenate([part[which] for part in found]) for which in (0, 1))
        out[i] = _entry(next(entry), next(entry), flags)
    return out, kept


def _entry(values: Floats, z: Floats, faults: Flags | None) -> Floats:
    """Return one entry, of rows [n, width]."""
    weights = snap(exp(z - z.max(axis=0)))
    total, y = np.zeros_like(z[0]), np.zeros_like(z[0])
    for weight, value in zip(weights, values, strict=True):
        total, y = total + weight, y + weight * value
    return snap((y * (F32(1) / total))[None], faults)[0]
