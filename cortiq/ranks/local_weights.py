"""A rank's share of the weights, cut out of them when it is taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from cortiq.ir import WeightSpec
from cortiq.numerics.layouts import Weight, raw_floats
from cortiq.ranks.shares import Range


@dataclass(frozen=True)
class WeightCut:
    """A part of a weight: ranges of indices of one axis of its shape.

    Attributes
    ----------
    name, shape : of the whole weight. axis : of that shape; vectors are cut along their only one.
    padded : whether zeros follow, as the expert that stands for those of other ranks.
    """

    name: str
    shape: tuple[int, ...]
    axis: int
    ranges: tuple[Range, ...]
    padded: bool = False

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of the part."""
        size = sum(stop - start for start, stop in self.ranges) + self.padded
        return (*self.shape[: self.axis], size, *self.shape[self.axis + 1 :])

    @property
    def local_name(self) -> str:
        """Name of the part."""
        ranges = "+".join(f"{start}:{stop}" for start, stop in self.ranges)
        return f"{self.name}[{':, ' * self.axis}{ranges}{'+' * self.padded}]"

    def spec(self, whole: WeightSpec) -> WeightSpec:
        """Return the part's specification."""
        return WeightSpec(self.local_shape, whole.layout)

    def of(self, weight: Weight) -> Weight:
        """Return the part: rows of one range as views, columns of floats and others as a copy."""
        if self.axis == len(self.shape) - 1:
            values = raw_floats(weight).reshape(-1, self.shape[-1])[:, self._numbers()]
            return Weight.from_floats(np.pad(values, ((0, 0), (0, int(self.padded)))))
        inner = prod(self.shape[self.axis + 1 : -1])
        if self.axis == 0:
            once = weight.once()
            parts = [once.rows(start * inner, stop * inner) for start, stop in self.ranges]
            rows = parts[0] if len(parts) == 1 else _one_after_another(parts)
            return _with_zeros(rows, inner) if self.padded else rows
        numbers = np.arange(weight.shape[0]).reshape(self.shape[:-1])
        return weight.take(numbers[:, self._numbers()].reshape(-1))

    def _numbers(self) -> slice | npt.NDArray[np.int64]:
        if len(self.ranges) == 1:
            return slice(*self.ranges[0])
        return np.concatenate([np.arange(start, stop) for start, stop in self.ranges])


def _one_after_another(weights: Sequence[Weight]) -> Weight:
    """Return the rows of several weights of one layout as one weight."""
    first = weights[0]
    parts = {name: np.concatenate([one.parts[name] for one in weights]) for name in first.parts}
    origin = np.concatenate([one.row_numbers() for one in weights])
    return Weight(first.layout, (len(origin), first.shape[1]), parts, origin)


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
