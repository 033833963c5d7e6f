"""Faults of entries that stand for several rows, and of matrices made doubly stochastic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cortiq.backend.walk import Call
from cortiq.ir import ops
from cortiq.numerics import compression, streams
from cortiq.numerics.contract import F32, Flags, Floats, Ints, snap
from cortiq.numerics.ngrams import LARGEST_TOKEN
from cortiq.numerics.scalar import exp
from cortiq_conformance.faults.folds import Fold, ReplacedFunction, with_replaced
from cortiq_conformance.faults.kernels import Kernel, Wrong
from cortiq_reference.kernels import KERNELS


def entries(fold: Fold) -> Kernel:
    """Return entries whose rows, and their weights, are added in another order."""

    def wrong(values: Floats, z: Floats, faults: Flags | None) -> Floats:
        weights = snap(exp(z - z.max(axis=0)))
        total, y = fold(np.add, list(weights)), fold(np.add, list(weights * values))
        return snap((y * (F32(1) / total))[None], faults)[0]

    return with_replaced(KERNELS[ops.Compress], ReplacedFunction(compression, "_entry", wrong))


def matrices(fold: Fold) -> Kernel:
    """Return matrices whose rows and columns are summed in another order."""

    def wrong(c: Floats, floor: np.float32, axis: int) -> Floats:
        terms = [np.take(c, [at], axis=axis) for at in range(c.shape[axis])]
        return snap(c / (fold(np.add, terms) + floor))

    return with_replaced(KERNELS[ops.Sinkhorn], ReplacedFunction(streams, "_normalised", wrong))


def _rows_first(call: Call, x: Floats) -> Floats:
    """Normalise rows before columns."""

    def wrong(c: Floats, floor: np.float32, axis: int) -> Floats:
        return right(c, floor, -3 - axis)

    right = streams._normalised
    kernel = with_replaced(KERNELS[ops.Sinkhorn], ReplacedFunction(streams, "_normalised", wrong))
    return kernel(call, x)


def _no_bias(call: Call, rows: Floats, position: Ints, gates: Floats) -> Floats:
    """Compress gates without the bias of a row's place in its window."""
    call.weights = {"bias": np.zeros_like(call.weights["bias"])}
    return KERNELS[ops.Compress](call, rows, position, gates)


def _first_keys(call: Call, position: Ints) -> Ints:
    """List the first keys that close a window, not the last."""
    op = call.op
    listed = KERNELS[ops.ListKeys](call, position)
    first = np.arange(op.top, dtype=np.int32) * op.every + op.every - 1
    return np.where(first <= position[:, None, None], first, listed)


def _one_fewer(call: Call, scores: Floats, token: Ints) -> Floats:
    """Leave out the last expert of every list."""
    call.weights = {"table": call.weights["table"][:, :-1]}
    return KERNELS[ops.KeepListed](call, scores, token)


def _not_negative(call: Call, x: Floats) -> Floats:
    """Count indices below 0 from the end of the row."""
    index = call.weights["index"]
    call.weights = {"index": np.where(index < 0, index + x.shape[-1], index)}
    return KERNELS[ops.IndexSelect](call, x)


def _beyond_the_end(call: Call, token: Ints) -> Ints:
    """Hash tokens before one that ends n-grams, too."""
    call.op = replace(call.op, end=LARGEST_TOKEN)
    return KERNELS[ops.HashNGrams](call, token)


def _open_windows_only(call: Call, keys: Ints, position: Ints) -> Ints:
    """Count the row's own window from the position after it, and so leave it out."""
    return KERNELS[ops.WindowBlocks](call, keys, position + 1)


WRONG_COMPRESSION: dict[str, Wrong] = {
    "rows of a matrix before its columns": {ops.Sinkhorn: _rows_first},
    "an entry without the bias of its rows": {ops.Compress: _no_bias},
    "the first keys of a list": {ops.ListKeys: _first_keys},
    "a list without its last expert": {ops.KeepListed: _one_fewer},
    "indices from the end of a row": {ops.IndexSelect: _not_negative},
    "n-grams across the end of a text": {ops.HashNGrams: _beyond_the_end},
    "windows of the position after a row": {ops.WindowBlocks: _open_windows_only},
}
"""Wrong kernels by fault."""
