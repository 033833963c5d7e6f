"""Statistics of neurons' activations over a text, and masks that keep what matters in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np
import numpy.typing as npt

from cortiq.errors import RequestError
from cortiq.explain.observed import compiled_to_observe, value_rows
from cortiq.model.source import ModelSource
from cortiq.numerics.contract import F32, Floats
from cortiq_masks.mask import ActivationMask
from cortiq_masks.sites import activation_values

Doubles = npt.NDArray[np.float64]
WINDOW = 256
"""Tokens of a sequence."""


@dataclass
class NeuronStatistics:
    """Sums over the rows of a text, float64 [width of the layer], by layer.

    Attributes
    ----------
    rows : how many there were. magnitude : Σ|a|. square : Σa². total : Σa.
    hits : how often |a| was among the `top` largest of its row.
    """

    rows: int = 0
    magnitude: dict[int, Doubles] = field(default_factory=dict)
    square: dict[int, Doubles] = field(default_factory=dict)
    total: dict[int, Doubles] = field(default_factory=dict)
    hits: dict[int, Doubles] = field(default_factory=dict)

    def add(self, layer: int, rows: Doubles, top: int) -> None:
        """Add rows of a layer, in order."""
        _add(self.magnitude, layer, np.abs(rows))
        _add(self.square, layer, rows * rows)
        _add(self.total, layer, rows)
        if top:
            _add(self.hits, layer, _among_largest(np.abs(rows), top))

    def means(self) -> dict[int, Floats]:
        """Return the mean activation of every neuron."""
        return {i: (total / self.rows).astype(F32) for i, total in self.total.items()}


def neuron_statistics(
    source: ModelSource,
    ids: Sequence[int],
    *,
    top: int = 0,
    window: int = WINDOW,
    backend: str | None = None,
) -> NeuronStatistics:
    """Compute the statistics of a text's rows.

    Sums are in the order of the rows, so that they do not depend on the backend.

    Parameters
    ----------
    top : k of `hits`; a tie with the k-th largest counts. 0 counts nothing.
    """
    found, values = NeuronStatistics(), activation_values(source.program)
    if not values:
        raise RequestError("the model has no feed-forward parts of its own", where="masks")
    executable = compiled_to_observe(source, backend)
    try:
        for held in value_rows(executable, ids, list(values.values()), window):
            for layer, name in values.items():
                found.add(layer, held[name].astype(np.float64), top)
            found.rows += len(next(iter(held.values())))
    finally:
        executable.close()
    return found


def _add(sums: dict[int, Doubles], layer: int, rows: Doubles) -> None:
    held = sums.get(layer)
    made = np.zeros(rows.shape[1]) if held is None else held
    for row in rows:
        made += row
    sums[layer] = made


def _among_largest(magnitudes: Doubles, top: int) -> Doubles:
    width = magnitudes.shape[1]
    least = np.sort(magnitudes, axis=1)[:, width - min(top, width)]
    return (magnitudes >= least[:, None]).astype(np.float64)


def keep_largest(mass: Doubles, keep: float, align: int = 1) -> npt.NDArray[np.bool_]:
    """Return which entries are the largest: ⌈share·width⌉ of them, rounded up to whole `align`s.

    Of equal ones the first are kept.

    Raises
    ------
    RequestError : `keep` is not in (0, 1], or `align` is not positive.
    """
    if not 0.0 < keep <= 1.0 or align < 1:
        what = f"takes a share in (0, 1] and a positive multiple, not {keep:g} and {align}"
        raise RequestError(what, where="masks.keep")
    count = min(len(mass), align * ceil(ceil(len(mass) * keep) / align))
    kept = np.zeros(len(mass), np.bool_)
    kept[np.argsort(-mass, kind="stable")[:count]] = True
    return kept


def mask_of(
    name: str,
    mass: Mapping[int, Doubles],
    keep: float,
    *,
    align: int = 1,
    means: Mapping[int, Floats] | None = None,
) -> ActivationMask:
    """Return the mask that keeps the neurons of the largest mass in each layer.

    Parameters
    ----------
    keep : share of a layer's neurons. align : their number is a multiple of it.
    means : what closed neurons' activations become; None for 0.
    """
    neurons = {i: keep_largest(m, keep, align).astype(F32) for i, m in mass.items()}
    neurons = {i: v for i, v in neurons.items() if not v.all()}
    filled = {i: (means or {})[i] for i in neurons if means is not None}
    return ActivationMask(name, neurons, means=filled)


def energy_gain(square: Mapping[int, Doubles], mask: ActivationMask) -> float:
    """Return √(energy of all neurons / energy of those that are open): a gain for `times`."""
    whole = sum(float(s.sum()) for s in square.values())
    kept = sum(float(s[mask.live(i, len(s))].sum()) for i, s in square.items())
    if kept <= 0:
        raise RequestError("the open neurons have no energy", where="masks.gain")
    return float(np.sqrt(whole / kept))
