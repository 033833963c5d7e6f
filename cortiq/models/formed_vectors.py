"""Vectors of a graph that a formula makes of a file's vectors, once, when a model is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from cortiq.models.tensor_pieces import split_name
from cortiq.models.weights import StoredTensor, vector_weight
from cortiq.numerics.contract import Floats, snap
from cortiq.numerics.layouts import Weight, floats
from cortiq.numerics.scalar import activation
from cortiq.numerics.sinusoids import sinusoids

Formula: TypeAlias = Callable[[Sequence[Floats], int, str], Floats]
"""The vectors, the layer's number, and the weight's name for errors, to the vector or a table."""


@dataclass(frozen=True)
class FormedVector:
    """A vector that is formed.

    Attributes
    ----------
    tensors : vectors of the file, named as in `FusedTensor`; none for numbers of a configuration.
    width : of each.
    """

    tensors: tuple[str, ...]
    width: int
    formula: Formula

    def made(self, raws: Sequence[StoredTensor], name: str) -> Weight:
        """Make the weight of this name of the file's tensors."""
        vectors = [floats(vector_weight([raw], (self.width,)), raw.name)[0] for raw in raws]
        layer = split_name(name)[0].removesuffix(".").rpartition(".")[2]
        formed = self.formula(vectors, int(layer or 0), name)
        return Weight.from_floats(formed if formed.ndim == 2 else formed[None])


def of_each_layer(numbers: Sequence[float]) -> FormedVector:
    """Return vectors of one number each, of a configuration that has them by layer."""

    def formula(vectors: Sequence[Floats], layer: int, name: str) -> Floats:
        return np.array([numbers[layer]], np.float32)

    return FormedVector((), 1, formula)


def of_gate(tensor: str) -> FormedVector:
    """Return the hyperbolic tangent of a tensor of one number, which multiplies a branch."""

    def formula(vectors: Sequence[Floats], layer: int, name: str) -> Floats:
        return activation(snap(vectors[0]), "tanh")

    return FormedVector((tensor,), 1, formula)


def of_positions(count: int, width: int, first: int = 0) -> FormedVector:
    """Return a table of sines and cosines of `count` positions from `first` on, of no tensor."""

    def formula(vectors: Sequence[Floats], layer: int, name: str) -> Floats:
        return sinusoids(first + count, width)[first:]

    return FormedVector((), width, formula)
