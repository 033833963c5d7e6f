"""Weights of `synthetic:` models in w8, any rows of which are made where they are needed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from cortiq.numerics.layouts import W8, Weight
from cortiq.numerics.synthetic import row_scales, synthetic_weight


class FormulaCodes:
    """Codes [rows, columns] of a tensor, in place of an array: slices of it make nothing.

    Attributes
    ----------
    name, seed, gain, shape : of the tensor, as `synthetic_weight` takes them.
    rows : where these begin in it, and end.
    """

    dtype = np.dtype(np.int8)

    def __init__(
        self, name: str, seed: int, gain: int, shape: tuple[int, int], rows: tuple[int, int]
    ) -> None:
        self.name, self.seed, self.gain, self.whole, self.rows = name, seed, gain, shape, rows
        self.shape = (rows[1] - rows[0], shape[1])
        self.nbytes = self.shape[0] * self.shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice):
            return self._made[index]
        start, stop, step = index.indices(len(self))
        assert step == 1
        first = self.rows[0]
        rows = first + start, first + stop
        return FormulaCodes(self.name, self.seed, self.gain, self.whole, rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self._made

    def astype(self, dtype: Any) -> Any:
        """Return them as an array."""
        return self._made.astype(dtype)

    @cached_property
    def _made(self) -> Any:
        given = "w8", self.name, self.seed, self.whole, self.rows, self.gain
        return synthetic_weight(*given).parts["codes"]


def by_formula(weights: Mapping[str, Weight]) -> dict[str, Weight]:
    """Return weights of a synthetic model, those in w8 with `FormulaCodes`."""
    return {name: _by_formula(weight) for name, weight in weights.items()}


def _by_formula(weight: Weight) -> Weight:
    make = getattr(weight.parts, "_make", None)
    if weight.layout is not W8 or make is None:
        return weight
    known: Mapping[str, Any] = inspect.getclosurevars(make).nonlocals
    name, seed, gain = (known[key] for key in ("name", "seed", "gain"))
    rows = (0, weight.shape[0])
    codes: Any = FormulaCodes(name, seed, gain, weight.shape, rows)
    scale = row_scales(name, seed, rows, weight.shape[1], 1, gain - 6)
    return Weight(W8, weight.shape, {"codes": codes, "scale": scale})
