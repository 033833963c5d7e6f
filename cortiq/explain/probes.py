"""Rows behind layers: of every token, and their mean over a span."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cortiq.errors import RequestError
from cortiq.explain.observed import ObservedModel
from cortiq.ir import Program
from cortiq.ir.trunk_layers import layer_values
from cortiq.numerics.contract import F32, Floats


def layer_value(program: Program, layer: int) -> str:
    """Return the value behind a layer; RequestError if there is no such layer."""
    found = layer_values(program)
    if layer not in found:
        last = max(found, default=-1)
        raise RequestError(f"layer {layer} is none of 0 to {last}", where="layer")
    return found[layer]


def hidden_rows(run: ObservedModel, ids: Sequence[int], layer: int) -> Floats:
    """Return the rows behind a layer, before any norm that follows: float32 [tokens, width].

    Raises
    ------
    RequestError : there is no such layer, or the model cannot be given these ids.
    """
    name = layer_value(run.program, layer)
    return np.concatenate([values[name] for values in run.rows(ids, [name])])


def mean_row(
    run: ObservedModel, ids: Sequence[int], layer: int, start: int = 0, stop: int | None = None
) -> Floats:
    """Return the mean row behind a layer over positions from `start` up to `stop`: float32 [width].

    Sums are float64 in the order of the positions, rounded once. Nothing behind `stop` is computed;
    a span without positions gives zeros.
    """
    stop = len(ids) if stop is None else min(stop, len(ids))
    start = min(max(start, 0), stop)
    width = run.program.trunk.values[layer_value(run.program, layer)].shape
    total = np.zeros(width, np.float64)
    if start < stop:
        for row in hidden_rows(run, ids[:stop], layer)[start:]:
            total += row
    return (total / max(stop - start, 1)).astype(F32)
