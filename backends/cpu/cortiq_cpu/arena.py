"""An arena for the values of a batch: a value's memory is reused once it has been read.

Places depend on a request's steps only, so that nothing is allocated while batches run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cortiq.backend.arena import FreeSpans, place
from cortiq.backend.fuse import FusedElementwise
from cortiq.backend.lower import Lowered, LoweredStep
from cortiq.ir import ops

LINE = 64
"""Alignment of a value, in bytes."""
REPLACING = (ops.CausalConv, FusedElementwise)
"""Steps whose output may lie where an input of theirs does: a cache then holds one of both."""


def aligned(size: int) -> int:
    """Round a size up to whole cache lines."""
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
        """Return bytes of the block."""
        start = self._skip + offset
        return self._block[start : start + size]


@dataclass(frozen=True)
class ArenaOffsets:
    """Offsets of values in an arena of `size` bytes."""

    offsets: dict[str, int]
    size: int


def assign(
    lowered: Lowered,
    steps: Sequence[LoweredStep],
    sizes: dict[str, int],
    kept: set[str],
    first: list[str],
) -> ArenaOffsets:
    """Assign an offset to every value of the steps; see `cortiq.backend.arena.place`."""
    free, whole = FreeSpans(), {name: aligned(size) for name, size in sizes.items()}
    offsets = place(
        [[step] for step in steps],
        lowered.root,
        whole,
        kept,
        first,
        lambda name: free,
        lambda step, read: _replaced(lowered, step, sizes, read),
    )
    return ArenaOffsets(offsets, free.end)


def _replaced(
    lowered: Lowered, step: LoweredStep, sizes: dict[str, int], read: set[str]
) -> str | None:
    """Return the input, `read` here for the last time, that the output overwrites."""
    if not isinstance(step.op, REPLACING) or not step.outputs:
        return None
    out = step.outputs[0]
    inputs = (lowered.root(name) for name in step.inputs)
    return next((n for n in inputs if n in read and sizes[n] == sizes.get(out)), None)
