"""Tubes: neurons of a part in an order in which each group that tasks share is contiguous.

A plan says, for each layer, in what order neurons lie and how wide each segment is; segment 0 is
the core, which no task closes. A model in that order computes what it did, but for the order of
sums, and a mask of it closes whole runs, which a product leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cortiq.errors import RequestError
from cortiq.numerics.contract import F32
from cortiq_masks.mask import ActivationMask

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LayerTubes:
    """A layer's order.

    Attributes
    ----------
    order : old numbers of its neurons, in the new order.
    widths : of its segments, the core first. tasks : which tasks have each segment open.
    """

    order: Indices
    widths: tuple[int, ...]
    tasks: tuple[frozenset[str], ...]

    @property
    def edges(self) -> tuple[int, ...]:
        """First neuron of each tube, in the new order."""
        return tuple(int(n) for n in np.cumsum(self.widths)[:-1])


def tubes_of(masks: Sequence[ActivationMask], widths: Mapping[int, int]) -> dict[int, LayerTubes]:
    """Return the order of each layer: neurons that all tasks have, then those of each set of tasks,
    the larger sets first, and last those of none. In a segment numbers ascend.

    Raises
    ------
    RequestError : two masks have one name.
    """
    names = [mask.name for mask in masks]
    if len(set(names)) < len(names):
        raise RequestError("two masks have one name", where="tubes")
    found = {}
    for layer, width in widths.items():
        live = np.stack([mask.live(layer, width) for mask in masks], axis=1)
        patterns, group = np.unique(live, axis=0, return_inverse=True)
        ranked = sorted(range(len(patterns)), key=lambda at: _rank(patterns[at]))
        members = [np.flatnonzero(group.reshape(-1) == at) for at in ranked]
        sets = [frozenset(n for n, on in zip(names, patterns[at], strict=True) if on)
                for at in ranked]  # fmt: skip
        if not sets or sets[0] != frozenset(names):
            members, sets = [np.zeros(0, np.int64), *members], [frozenset(names), *sets]
        order = np.concatenate(members)
        found[layer] = LayerTubes(order, tuple(len(m) for m in members), tuple(sets))
    return found


def _rank(pattern: npt.NDArray[np.bool_]) -> tuple[int, tuple[bool, ...]]:
    return -int(pattern.sum()), tuple(not bool(on) for on in pattern)


def in_new_order(mask: ActivationMask, tubes: Mapping[int, LayerTubes]) -> ActivationMask:
    """Return a mask of the model whose neurons are in another order."""
    neurons = {i: v[tubes[i].order] for i, v in mask.neurons.items()}
    means = {i: v[tubes[i].order] for i, v in mask.means.items()}
    return ActivationMask(mask.name, neurons, mask.heads, mask.closed, means)


def task_mask(task: str, tubes: Mapping[int, LayerTubes]) -> ActivationMask:
    """Return the mask of a task over the new order: segments of the task are open.

    Raises
    ------
    RequestError : there is no such task.
    """
    if not any(task in held for one in tubes.values() for held in one.tasks):
        raise RequestError(f"no tube is of a task {task!r}", where="tubes")
    neurons = {}
    for layer, one in tubes.items():
        on = [task in held for held in one.tasks]
        neurons[layer] = np.repeat(np.array(on), one.widths).astype(F32)
    return ActivationMask(task, {i: v for i, v in neurons.items() if not v.all()})


def closed_tubes(
    mask: ActivationMask, tubes: Mapping[int, LayerTubes]
) -> dict[int, tuple[int, ...]]:
    """Return the tubes of each layer that a mask closes: one bit, at its start, decides a tube."""
    return {
        layer: tuple(at for at, start in enumerate(one.edges)
                     if layer in mask.neurons and mask.neurons[layer][start] == 0)
        for layer, one in tubes.items()
    }  # fmt: skip
