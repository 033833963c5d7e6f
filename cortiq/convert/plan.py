"""The plan of a conversion: every tensor that the model uses, and the layout that it gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.convert.feedback import Feedback, best_rows
from cortiq.convert.recipes import KEEP, Recipe
from cortiq.errors import RequestError
from cortiq.models.bind import LoadedProgram
from cortiq.models.tensor_pieces import TensorSlice
from cortiq.models.tensors import configuring_tensors
from cortiq.models.weight_rules import delicate_names, matrix_names
from cortiq.models.weights import raw_weight
from cortiq.numerics.contract import Floats
from cortiq.numerics.four_bits import BLOCKS
from cortiq.numerics.layouts import LAYOUTS, Layout, Weight
from cortiq.numerics.weights import SEARCHED, refuse_large, weight_values

LayoutOf = Callable[[str, int, str], Layout]
Rows = Callable[[Weight, "PlannedTensor"], Mapping[str, npt.NDArray[Any]]]
SLICE_ELEMENTS = 1 << 21
"""Elements converted at a time."""


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor of the new file.

    Attributes
    ----------
    name, shape : as in the old one. layout : that it gets. target : its format.
    weights : canonical names of what it holds.
    source : the old tensor.
    """

    name: str
    shape: tuple[int, ...]
    layout: Layout
    target: str
    weights: tuple[str, ...]
    source: Any

    @property
    def rows(self) -> int:
        """Rows of all matrices; a number is one of one column."""
        return prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        """Columns."""
        return prod(self.shape[-1:])

    @property
    def step(self) -> int:
        """Rows that are converted at a time."""
        return max(1, SLICE_ELEMENTS // self.columns)

    def weight(self) -> Weight:
        """Return the old tensor as a weight; rows of it are read when they are asked for."""
        return raw_weight(self.source, (self.rows, self.columns))

    def slices(self) -> Iterator[Weight]:
        """Yield all rows of the old tensor in order, some at a time."""
        weight = self.weight()
        for start in range(0, self.rows, self.step):
            yield weight.rows(start, min(start + self.step, self.rows))

    def values(self) -> Iterator[Floats]:
        """Yield all rows of the old tensor in order, as floats."""
        for part in self.slices():
            yield weight_values(part, self.name)

    @property
    def searched(self) -> str:
        """The layout of four-bit blocks whose codes are searched for; empty for other formats."""
        found = self.target in SEARCHED and self.layout.name in BLOCKS
        return self.layout.name if found else ""

    @property
    def takes_feedback(self) -> bool:
        """Whether it becomes one matrix, or some side by side, whose codes errors decide."""
        return bool(self.searched) and len(self.shape) == 2

    def fed_pieces(self, feedback: Feedback) -> Iterator[Sequence[npt.NDArray[Any]]]:
        """Yield all rows in order, as the new file has them, by part, with codes that lose less."""
        layout = self.searched
        for values in self.values():
            raw = best_rows(layout, values, feedback)
            refuse_large(LAYOUTS[layout], raw, values, self.name)
            yield [raw]

    def described(self) -> list[object]:
        """Return what of the plan decides the new bytes."""
        return [self.name, list(self.shape), self.layout.name, self.target]


def plan_tensors(loaded: LoadedProgram, recipe: Recipe, layout_of: LayoutOf) -> list[PlannedTensor]:
    """Plan every tensor that the program or its configuration uses, in the file's order.

    Parameters
    ----------
    layout_of : the layout of a format for so many columns of a tensor of this name.

    Raises
    ------
    RequestError : a pattern fits no matrix, or one that has to stay as it is.
    """
    matrices, delicate = matrix_names(loaded.program), delicate_names(loaded.program)
    users: dict[str, list[tuple[str, TensorSlice]]] = {}
    for weight, pieces in loaded.pieces.items():
        for piece in pieces:
            users.setdefault(piece.tensor, []).append((weight, piece))
    planned = []
    users |= {name: [] for name in configuring_tensors(loaded.module, loaded.checkpoint.kind)}
    for name in loaded.checkpoint.tensor_names:
        if name not in users:
            continue
        source = loaded.checkpoint.tensor(name)
        own = LAYOUTS[source.type]
        weights = tuple(weight for weight, _ in users[name])
        layout, target = own, KEEP
        if weights and matrices >= set(weights) and len(source.shape) > 1:
            target, asked = recipe.format_of((name, *weights), bool(delicate & set(weights)))
            if not all(_by_rows(piece) for _, piece in users[name]) and target != KEEP:
                target = _left(name, asked)
            elif target != KEEP:
                layout = layout_of(target, source.shape[-1], name)
        planned.append(PlannedTensor(name, tuple(source.shape), layout, target, weights, source))
    recipe.check_used()
    return planned


def _by_rows(piece: TensorSlice) -> bool:
    """Return whether a weight is whole rows of the tensor, as codes under a row's scales are."""
    return piece.is_whole or not (piece.swapped or piece.axis == len(piece.shape) - 1)


def _left(name: str, asked: bool) -> str:
    """Return the format of a tensor that is used by columns."""
    if asked:
        what = f"{name} is used by columns, and has to stay as it is"
        raise RequestError(what, where="tensor")
    return KEEP


def contiguous_bytes(array: npt.NDArray[Any]) -> memoryview:
    """Return an array's bytes, little-endian, rows in order."""
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).data


def described_plan(tensors: Sequence[PlannedTensor]) -> list[object]:
    """Return what of all tensors decides the new bytes."""
    return [tensor.described() for tensor in tensors]
