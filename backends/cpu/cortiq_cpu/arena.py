"""One block of memory for the values of a batch: a value's place is given away once it is read.

Places depend on a request's steps only, so that nothing is allocated while batches run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cortiq.backend.stretches import Free
from cortiq.ir import ops
from cortiq_cpu.fuse import Wise
from cortiq_cpu.lower import Lowered, Step

LINE = 64
"""Alignment of a value, in bytes."""
REPLACING = (ops.CausalConv, Wise)
"""Steps whose output may lie where an input of theirs does: a cache then holds one of both."""


def aligned(size: int) -> int:
    """The size rounded up to whole cache lines."""
    return -(-size // LINE) * LINE


class Arena:
    """An aligned block of bytes; memory that nothing is written to is never touched.

    Attributes
    ----------
    size : bytes.
    address : of its first byte, a multiple of 64.
    """

    def __init__(self, size: int) -> None:
        self._block = np.empty(size + LINE, np.uint8)
        self.size = size
        self._skip = -self._block.ctypes.data % LINE
        self.address = self._block.ctypes.data + self._skip

    def view(self, offset: int, size: int) -> np.ndarray:
        """Bytes of the block."""
        start = self._skip + offset
        return self._block[start : start + size]


@dataclass(frozen=True)
class Places:
    """Offsets of values in an arena of `size` bytes."""

    offsets: dict[str, int]
    size: int


def assign(
    lowered: Lowered,
    groups: list[list[Step]],
    sizes: dict[str, int],
    kept: set[str],
    first: list[str],
) -> Places:
    """Give every value of the steps a place.

    Parameters
    ----------
    groups : steps in order; those of one group run interleaved, so that a place is not given away
        inside it.
    sizes : bytes of each value's buffer.
    kept : values whose places are never given away: wants and the graph's inputs.
    first : of these, values that exist before the first step.
    """
    last: dict[str, int] = {}
    for index, group in enumerate(groups):
        for step in group:
            for name in (*step.inputs, *step.outputs):
                last[lowered.root(name)] = index
    free = Free()
    offsets: dict[str, int] = {}
    roots = {lowered.root(name) for name in kept}
    offsets.update((name, free.take(aligned(sizes[name]))) for name in first)
    for index, group in enumerate(groups):
        touched = dict.fromkeys(
            lowered.root(name) for step in group for name in (*step.inputs, *step.outputs)
        )
        read = {n for n in touched if last[n] == index and n in offsets and n not in roots}
        for step in group:
            replaced = _replaced(lowered, step, sizes, read) if len(group) == 1 else None
            if replaced is not None:
                offsets[step.outputs[0]] = offsets[replaced]
                last[replaced] = -1  # its place is the output's to give away
        for name in touched:
            if name not in offsets and name in sizes:
                offsets[name] = free.take(aligned(sizes[name]))
        for name in touched:
            if last[name] == index and name not in roots and name in sizes:
                free.give(offsets[name], aligned(sizes[name]))
    return Places(offsets, free.end)


def _replaced(lowered: Lowered, step: Step, sizes: dict[str, int], read: set[str]) -> str | None:
    """The input, of those that are `read` for the last time, whose place the output takes."""
    if not isinstance(step.op, REPLACING) or not step.outputs:
        return None
    out = step.outputs[0]
    inputs = (lowered.root(name) for name in step.inputs)
    return next((n for n in inputs if n in read and sizes[n] == sizes.get(out)), None)
