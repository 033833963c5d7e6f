"""A rank's share of the weights, cut out of them when it is taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from cortiq.ir import WeightSpec
from cortiq.numerics.layouts import Weight, raw_floats
from cortiq.ranks.shares import Range


@dataclass(frozen=True)
class WeightCut:
    """A part of a weight: indices of one axis of its shape.

    Attributes
    ----------
    name, shape : of the whole weight. axis : of that shape; vectors are cut along their only one.
    padded : whether zeros follow, as the expert that stands for those of other ranks.
    """

    name: str
    shape: tuple[int, ...]
    axis: int
    range: Range
    padded: bool = False

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of the part."""
        start, stop = self.range
        stop += self.padded
        return (*self.shape[: self.axis], stop - start, *self.shape[self.axis + 1 :])

    @property
    def local_name(self) -> str:
        """Name of the part."""
        start, stop = self.range
        return f"{self.name}[{':, ' * self.axis}{start}:{stop}{'+' * self.padded}]"

    def spec(self, whole: WeightSpec) -> WeightSpec:
        """Return the part's specification."""
        return WeightSpec(self.local_shape, whole.layout)

    def of(self, weight: Weight) -> Weight:
        """Return the part: rows as views where they are neighbours, columns of floats as a copy."""
        start, stop = self.range
        if self.axis == len(self.shape) - 1:
            values = raw_floats(weight).reshape(-1, self.shape[-1])[:, start:stop]
            return Weight.from_floats(np.pad(values, ((0, 0), (0, int(self.padded)))))
        inner = prod(self.shape[self.axis + 1 : -1])
        if self.axis == 0:
            rows = weight.once().rows(start * inner, stop * inner)
            return _with_zeros(rows, inner) if self.padded else rows
        numbers = np.arange(weight.shape[0]).reshape(self.shape[:-1])
        return weight.take(numbers[:, start:stop].reshape(-1))


def _with_zeros(weight: Weight, count: int) -> Weight:
    """Add rows whose scales and codes are 0: products with them are +0 in every layout."""
    parts = {
        name: np.concatenate([part, np.zeros((count, *part.shape[1:]), part.dtype)])
        for name, part in weight.parts.items()
    }
    return Weight(weight.layout, (weight.shape[0] + count, weight.shape[1]), parts)


class LocalWeights(Mapping[str, Weight]):
    """Weights of a rank's program; a part is made once and kept until this is dropped."""

    def __init__(
        self, whole: Mapping[str, Weight], names: tuple[str, ...], cuts: Mapping[str, WeightCut]
    ) -> None:
        self._whole, self._names, self._cuts = whole, names, cuts
        self._made: dict[str, Weight] = {}

    def __getitem__(self, name: str) -> Weight:
        cut = self._cuts.get(name)
        if cut is None:
            return self._whole[name]
        if name not in self._made:
            self._made[name] = cut.of(self._whole[cut.name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
