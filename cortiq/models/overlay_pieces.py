"""Changes of a file's tensor, as what they do to each weight that is made of it.

A tensor's change is a product of two factors, L·R, whose rows and columns lie as the tensor's do.
A weight may be some rows of the tensor, or a stack of matrices, perhaps turned: then its own
factors are those of (L·R)ᵀ = Rᵀ·Lᵀ, and what multiplied rows multiplies columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.models.tensor_pieces import TensorSlice

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class OverlayPlace:
    """A weight that a tensor of the file makes.

    Attributes
    ----------
    index : the matrix of the weight's stack that the tensor is; None where it makes all of them.
    count : matrices of the weight's stack.
    alone : whether the tensor makes the weight, or one matrix of it, without others.
    """

    weight: str
    piece: TensorSlice
    index: int | None
    count: int
    alone: bool

    @property
    def is_sound(self) -> bool:
        """Whether a change of the tensor is one of rows of the weight's matrices."""
        axes = len(self.piece.shape)
        by_row = self.piece.axis < axes - 1 or (self.piece.swapped and self.count > 1)
        return self.alone and by_row and (not self.piece.swapped or self.count > 1)


@dataclass
class MatrixChange:
    """Changes of the matrices of a weight, in float64; arrays begin with the matrix.

    Attributes
    ----------
    a, b : factors, [n, r, in] and [n, out, r].
    before, gain, after : vectors, [n, in], [n, out] and [n, out].
    """

    a: Doubles | None = None
    b: Doubles | None = None
    before: Doubles | None = None
    gain: Doubles | None = None
    after: Doubles | None = None


@dataclass
class StackChange:
    """Changes of single matrices of a stack, by their place in it."""

    count: int
    found: dict[int, MatrixChange] = field(default_factory=dict)

    def joined(self) -> MatrixChange:
        """Return them as one change: factors padded with zeros, vectors with ones."""
        made = MatrixChange()
        for name in ("a", "b", "before", "gain", "after"):
            parts = {i: v for i, c in self.found.items() if (v := getattr(c, name)) is not None}
            if not parts:
                continue
            size = np.max([v.shape[1:] for v in parts.values()], axis=0)
            whole = (np.zeros if name in "ab" else np.ones)((self.count, *size))
            for i, values in parts.items():
                cut: tuple[Any, ...] = (i, *map(slice, values.shape[1:]))
                whole[cut] = values[0]
            setattr(made, name, whole)
        return made


def taken(piece: TensorSlice, values: Any) -> Any:
    """Return the piece's part of a tensor's numbers, [n, out, in] as the weight has them."""
    values = values.reshape(piece.shape)
    values = values[(slice(None),) * piece.axis + (slice(piece.start, piece.stop),)]
    values = values.reshape(-1, *values.shape[-2:])
    return values.swapaxes(1, 2) if piece.swapped else values


def factors_of(piece: TensorSlice, left: Doubles, right: Doubles) -> MatrixChange:
    """Return the factors of a weight's change.

    Parameters
    ----------
    left, right : [n, rows, r] and [n, r, columns] of the tensor, or n = 1 of all its matrices.
    """
    rank, axes = left.shape[-1], len(piece.shape)
    count = prod(piece.shape[:-2])
    left = left.reshape(count, -1, rank)
    right = np.broadcast_to(right, (count, *right.shape[1:]))
    cut = slice(piece.start, piece.stop)
    if piece.axis == axes - 1:
        right = right[..., cut]
    elif piece.axis == axes - 2:
        left = left[:, cut]
    else:
        left, right = left[cut], right[cut]
    if piece.swapped:
        left, right = right.swapaxes(1, 2), left.swapaxes(1, 2)
    return MatrixChange(a=right, b=left)


def rows_of(piece: TensorSlice, values: Doubles) -> Doubles:
    """Return a vector of a tensor's rows as one of those that the piece has, [n, rows]."""
    lead = piece.shape[:-1]
    found = values.reshape(lead)[(slice(None),) * piece.axis + (slice(piece.start, piece.stop),)]
    return found.reshape(-1, found.shape[-1])


def columns_of(piece: TensorSlice, values: Doubles) -> Doubles:
    """Return a vector of a tensor's columns for each matrix of a piece, [n, columns]."""
    return np.broadcast_to(values.reshape(1, -1), (prod(piece.shape[:-2]), values.size))
