"""Metadata of the rows that ops run on: fixed arrays, filled chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cortiq.backend.flat_rows import Stretch
from cortiq_cpu.arguments import SEGMENT
from cortiq_cpu.state_layout import StateLayout


class RowArrays:
    """Rows of a chunk, or those of its tail; ops point at these arrays for good.

    Attributes
    ----------
    count : int32 [1], rows there are. segment_count : int32 [1].
    tokens, positions : int32. faults : uint8, or-ed by the ops.
    source : int32, for the tail's rows where they are in the chunk.
    segments : `SEGMENT`. pages : addresses of page tables, uint64 [KV slots, capacity].
    fixed, ring_capacities : of every ring and state, uint64 and int32 [slots, capacity].
    """

    def __init__(self, capacity: int, layout: StateLayout) -> None:
        self.capacity = capacity
        self.count, self.segment_count = np.zeros(1, np.int32), np.zeros(1, np.int32)
        self.tokens, self.positions, self.source = np.zeros((3, capacity), np.int32)
        self.faults = np.zeros(capacity, np.uint8)
        self.segments = np.zeros(capacity, SEGMENT)
        self.pages = np.zeros((len(layout.kv), capacity), np.uint64)
        self.fixed = np.zeros((len(layout.fixed), capacity), np.uint64)
        self.ring_capacities = np.tile(layout.ring_capacities[:, None], capacity)

    def fill(self, tokens: np.ndarray, positions: np.ndarray, stretches: Sequence[Stretch]) -> None:
        """Write these rows, none of them at fault."""
        count = len(tokens)
        self.count[0], self.segment_count[0] = count, len(stretches)
        self.tokens[:count], self.positions[:count] = tokens, positions
        self.faults[:count] = 0
        for index, (state, start, stop, position) in enumerate(stretches):
            self.segments[index] = (start, stop, position)
            self.pages[:, index] = state.table_addresses
            self.fixed[:, index] = state.fixed_addresses
