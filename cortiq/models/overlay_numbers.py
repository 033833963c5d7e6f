"""Numbers of overlays: as banks hold them, and what is computed of the model's own weights."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.errors import FormatError
from cortiq.ir.overlays import BANK_LAYOUT
from cortiq.models.exact_products import row_sums
from cortiq.models.overlay_pieces import MatrixChange, OverlayPlace
from cortiq.models.weights import raw_weight
from cortiq.numerics.contract import F32, Floats, snap
from cortiq.numerics.dequantise import embedding_rows
from cortiq.numerics.layouts import F32_LAYOUT, LAYOUTS, Weight, floats
from cortiq.numerics.weights import convert, in_layout

Doubles = npt.NDArray[np.float64]
_ROWS = 1 << 12
"""Rows of a matrix that are looked at at a time."""


def stored_matrix(values: Doubles, where: str) -> Weight:
    """Return factors as a bank holds them, those of a stack one below the other."""
    with np.errstate(over="ignore"):
        rounded = np.ascontiguousarray(values.reshape(-1, values.shape[-1]), F32)
    return convert(Weight.from_floats(rounded), BANK_LAYOUT, where)


def stored_vector(values: Doubles, where: str) -> Floats:
    """Return a vector as a bank holds it; FormatError where it is no vector of the contract's."""
    with np.errstate(over="ignore"):
        rounded = np.ascontiguousarray(values.reshape(-1), F32)
    if not np.isfinite(rounded).all() or (np.abs(rounded) >= 2.0**50).any():
        raise FormatError("holds a length that is not finite, or too large", where=where)
    return snap(rounded)


def _blocks(weight: Weight, start: int, stop: int, name: str) -> Iterator[tuple[int, Doubles]]:
    """Yield rows of a weight as it is loaded, with the first one's number from `start` on."""
    for first in range(start, stop, _ROWS):
        rows = np.arange(first, min(first + _ROWS, stop))
        yield first - start, embedding_rows(weight, rows, name=name).astype(np.float64)


def changed_lengths(weight: Weight, place: OverlayPlace, change: MatrixChange) -> Doubles:
    """Return the lengths of a tensor's rows in a weight with a low-rank change, [n, rows].

    Parameters
    ----------
    weight : as it is loaded; in a turned one the tensor's rows are columns.
    """
    assert change.a is not None and change.b is not None
    found, height = [], change.b.shape[1]
    for i, (a, b) in enumerate(zip(change.a, change.b, strict=True)):
        start, squares = ((place.index or 0) + i) * height, []
        for first, values in _blocks(weight, start, start + height, place.weight):
            changed = values + b[first : first + len(values)] @ a
            squares.append(changed * changed)
        if place.piece.swapped:
            squares = [np.concatenate(squares).T]
        found.append(np.concatenate([np.sqrt(row_sums(part)[:, 0]) for part in squares]))
    return np.stack(found)


def own_matrix(values: Doubles, like: Weight, where: str) -> Weight:
    """Return a matrix in a weight's place, in its layout."""
    with np.errstate(over="ignore"):
        rounded = np.ascontiguousarray(values.reshape(like.shape), F32)
    return in_layout(rounded, like.layout.name, where)


def same_tensor(tensor: Any, values: Doubles) -> bool:
    """Return whether a tensor of the model has these numbers."""
    if LAYOUTS.get(tensor.type, F32_LAYOUT).kind != "float":
        return False
    size = (prod(values.shape[:-1]), values.shape[-1])
    own = floats(raw_weight(tensor, size), tensor.name)
    return bool(np.array_equal(own.reshape(values.shape), values))
