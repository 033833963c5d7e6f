"""Masks of a model: a factor for each neuron and head, layers left out, and their algebra."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from cortiq.numerics.contract import F32, Floats

Vectors = Mapping[int, Floats]
"""A vector for each layer; a layer without one is as it was."""


@dataclass(frozen=True)
class ActivationMask:
    """A mask of a model's feed-forward layers, heads and layers.

    A neuron's activation, which is what the matrix `down` multiplies, is multiplied by its factor:
    by 0 where the neuron is closed, by 1 where it is open. A head's part of the row that the matrix
    `o` multiplies is multiplied by the head's.

    Attributes
    ----------
    name : of the task.
    neurons : float32 [width of the layer's feed-forward part], by layer.
    heads : float32 [heads], by layer.
    closed : layers whose attention and feed-forward part add nothing.
    means : float32 [width]: what the activations of closed neurons become instead of 0, by layer.
    """

    name: str
    neurons: Vectors = field(default_factory=dict)
    heads: Vectors = field(default_factory=dict)
    closed: frozenset[int] = frozenset()
    means: Vectors = field(default_factory=dict)

    @property
    def is_binary(self) -> bool:
        """Whether every factor is 0 or 1."""
        vectors = (*self.neurons.values(), *self.heads.values())
        return all(bool(((v == 0) | (v == 1)).all()) for v in vectors)

    @property
    def fully_open(self) -> bool:
        """Whether it changes nothing."""
        vectors = (*self.neurons.values(), *self.heads.values())
        return not self.closed and all(bool((v == 1).all()) for v in vectors)

    def live(self, layer: int, width: int) -> np.ndarray:
        """Return which neurons of a layer are not closed, bool [width]."""
        found = self.neurons.get(layer)
        return np.ones(width, np.bool_) if found is None else found != 0

    def active_count(self, layer: int, width: int) -> int:
        """Return how many neurons of a layer are not closed."""
        return int(self.live(layer, width).sum())

    def sparsity(self, widths: Mapping[int, int]) -> float:
        """Return the share of neurons that are closed, of layers with these widths."""
        total = sum(widths.values())
        return 1.0 - sum(self.active_count(i, w) for i, w in widths.items()) / total

    def times(self, gain: float) -> ActivationMask:
        """Return the mask whose factors and means of neurons are multiplied by a gain.

        The gain √(energy of all/energy of what is kept) gives `down` rows of the length they had.
        """
        neurons = {i: F32(gain) * v for i, v in self.neurons.items()}
        means = {i: F32(gain) * v for i, v in self.means.items()}
        return replace(self, neurons=neurons, means=means)


def union(one: ActivationMask, other: ActivationMask) -> ActivationMask:
    """Return the mask with everything open that is open in either: the larger of two factors.

    Means are dropped: those of a neuron that one of the masks has open would be wrong.
    """
    return _joined(one, other, "+", np.maximum, one.closed & other.closed)


def intersection(one: ActivationMask, other: ActivationMask) -> ActivationMask:
    """Return the mask with everything closed that is closed in either: the product of factors."""
    return _joined(one, other, "&", np.multiply, one.closed | other.closed)


def _joined(
    one: ActivationMask,
    other: ActivationMask,
    sign: str,
    how: Callable[[Floats, Floats], Floats],
    closed: frozenset[int],
) -> ActivationMask:
    parts: list[Vectors] = []
    for mine, theirs in ((one.neurons, other.neurons), (one.heads, other.heads)):
        made = {}
        for layer in sorted({*mine, *theirs}):
            known = mine.get(layer, theirs.get(layer))
            open_ = np.ones_like(known)
            made[layer] = how(mine.get(layer, open_), theirs.get(layer, open_))
        parts.append({i: v for i, v in made.items() if (v != 1).any()})
    neurons, heads = parts
    return ActivationMask(f"{one.name}{sign}{other.name}", neurons, heads, closed)


@dataclass(frozen=True)
class LayerDifference:
    """The difference of two masks in one layer.

    Attributes
    ----------
    added, removed : neurons that only the second, or only the first, has open.
    heads : whether heads differ. gate : whether one of them leaves the layer out.
    """

    added: int
    removed: int
    heads: bool
    gate: bool


def difference(one: ActivationMask, other: ActivationMask) -> dict[int, LayerDifference]:
    """Return the layers in which two masks differ in what is open."""
    layers = {*one.neurons, *other.neurons, *one.heads, *other.heads, *(one.closed ^ other.closed)}
    found = {}
    for layer in sorted(layers):
        before, after = _open_sets(one.neurons, other.neurons, layer)
        mine, theirs = _open_sets(one.heads, other.heads, layer)
        gate = (layer in one.closed) != (layer in other.closed)
        added, removed = int((after & ~before).sum()), int((before & ~after).sum())
        made = LayerDifference(added, removed, bool((mine != theirs).any()), gate)
        if made != LayerDifference(0, 0, False, False):
            found[layer] = made
    return found


def _open_sets(one: Vectors, other: Vectors, layer: int) -> tuple[np.ndarray, np.ndarray]:
    known = one.get(layer, other.get(layer))
    if known is None:
        return np.ones(0, np.bool_), np.ones(0, np.bool_)
    open_ = np.ones_like(known)
    return one.get(layer, open_) != 0, other.get(layer, open_) != 0
