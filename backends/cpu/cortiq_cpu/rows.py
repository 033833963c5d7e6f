"""The rows that ops run on: fixed arrays that a batch is written into, chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from cortiq.backend.executable import Accepted
from cortiq_cpu.arguments import SEGMENT
from cortiq_cpu.state import CpuState
from cortiq_cpu.state_layout import StateLayout

Stretch = tuple[CpuState, int, int, int]
"""A sequence, its rows start…stop−1, and the first one's position."""


class RowSet:
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
        """Become these rows, none of them at fault."""
        count = len(tokens)
        self.count[0], self.segment_count[0] = count, len(stretches)
        self.tokens[:count], self.positions[:count] = tokens, positions
        self.faults[:count] = 0
        for index, (state, start, stop, position) in enumerate(stretches):
            self.segments[index] = (start, stop, position)
            self.pages[:, index] = state.table_addresses
            self.fixed[:, index] = state.fixed_addresses


class Flat:
    """The rows of all accepted sequences, one after the other.

    Attributes
    ----------
    tokens, positions : int32 [rows].
    indices : of the rows in the batch, ascending. owner : which sequence each belongs to.
    """

    def __init__(self, accepted: Sequence[Accepted], entry: str) -> None:
        self.accepted = accepted
        starts = [sequence.state.length(entry) for sequence in accepted]
        pairs = list(zip(accepted, starts, strict=True))
        self.tokens = np.array([t for sequence in accepted for t in sequence.tokens], np.int32)
        self.positions = np.concatenate(
            [np.arange(at, at + len(s.indices), dtype=np.int32) for s, at in pairs]
        )
        self.indices = [index for sequence in accepted for index in sequence.indices]
        counts = [len(sequence.indices) for sequence in accepted]
        self.owner = np.repeat(np.arange(len(accepted)), counts)
        self.starts = np.cumsum([0, *counts])

    def stretches(self, rows: np.ndarray) -> list[Stretch]:
        """Neighbouring rows of one sequence, for ascending `rows`; places count from the first."""
        if len(rows) == 1:
            row = int(rows[0])
            return [(self.accepted[self.owner[row]].state, 0, 1, int(self.positions[row]))]
        owner = self.owner[rows]
        breaks = np.flatnonzero((np.diff(rows) != 1) | (np.diff(owner) != 0)) + 1
        edges = [0, *breaks.tolist(), len(rows)]
        return [
            (
                self.accepted[owner[start]].state,
                start,
                stop,
                int(self.positions[rows[start]]),
            )
            for start, stop in pairwise(edges)
        ]

    def history(self, row: int, entry: str) -> np.ndarray:
        """Every id the row's sequence was fed, up to and including the row."""
        number = int(self.owner[row])
        state, start = self.accepted[number].state, int(self.starts[number])
        before = state.tokens[: state.length(entry)]
        return np.concatenate([np.array(before, np.int32), self.tokens[start : row + 1]])
