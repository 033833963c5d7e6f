"""Which rows a launch computes, as kernels read it: positions, owners, page tables, query blocks.

Everything of a batch is one array of 32-bit words, written on the host and copied once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from cortiq_triton.language import pow2
from cortiq_triton.state import TritonState


class Words:
    """Arrays packed into one, at offsets of 16 bytes."""

    def __init__(self) -> None:
        self.parts: dict[str, np.ndarray] = {}

    def add(self, name: str, values: Sequence[int] | np.ndarray, dtype: type = np.int32) -> None:
        """Another array."""
        self.parts[name] = np.ascontiguousarray(values, dtype)

    def upload(self, device: str) -> dict[str, torch.Tensor]:
        """All of them on the device, flat, by name."""
        places, size = {}, 0
        for name, part in self.parts.items():
            places[name] = size
            size += -(-part.nbytes // 16) * 16
        host = torch.zeros(max(size, 16), dtype=torch.uint8)
        for name, part in self.parts.items():
            raw = torch.from_numpy(part.reshape(-1).view(np.uint8))
            host[places[name] : places[name] + part.nbytes] = raw
        there = host.to(device)
        found = {}
        for name, part in self.parts.items():
            kind = torch.int64 if part.dtype == np.int64 else torch.int32
            found[name] = there[places[name] : places[name] + part.nbytes].view(kind)
        return found


@dataclass(frozen=True)
class Segment:
    """Rows start … stop − 1 of what is computed are consecutive positions of one sequence."""

    state: TritonState
    start: int
    stop: int
    position: int


@dataclass
class RowSet:
    """Rows on the device.

    Attributes
    ----------
    positions, owners : int32 [rows]; owners number the sequences of the batch.
    table : int64 [sequences, pages]; pages : its width. fixed : int64 [sequences].
    starts, stops : int32 [sequences], rows of each.
    segments : the same on the host; last : the highest position.
    """

    device: str
    segments: Sequence[Segment]
    positions: torch.Tensor
    owners: torch.Tensor
    table: torch.Tensor
    pages: int
    fixed: torch.Tensor
    starts: torch.Tensor
    stops: torch.Tensor
    last: int
    _blocks: dict[int, torch.Tensor] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self.positions)

    def blocks(self, rows: int) -> torch.Tensor:
        """Groups of at most so many rows of one sequence: int32 [n, 2] of first row and count."""
        if rows not in self._blocks:
            found = [
                (first, min(rows, segment.stop - first))
                for segment in self.segments
                for first in range(segment.start, segment.stop, rows)
            ]
            self._blocks[rows] = torch.tensor(found, dtype=torch.int32, device=self.device)
        return self._blocks[rows]

    def most_tiles(self, window: int) -> int:
        """Tiles that a row sees at most, rounded up to a power of two."""
        everything = self.last // 64 + 1
        return pow2(min(everything, (window + 62) // 64 + 1) if window else everything)


def row_sets(
    segments: Sequence[Segment], tokens: Sequence[int], tail: Sequence[int], device: str
) -> tuple[RowSet, RowSet, torch.Tensor, torch.Tensor]:
    """All rows; those of the tail; ids of all rows; numbers of the tail's rows."""
    words, rows = Words(), segments[-1].stop
    states = [segment.state for segment in segments]
    owners, positions = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
    for number, segment in enumerate(segments):
        owners[segment.start : segment.stop] = number
        stop = segment.position + segment.stop - segment.start
        positions[segment.start : segment.stop] = np.arange(segment.position, stop)
    pages = max(1, *(len(state.pages) for state in states))
    table = np.zeros((len(states), pages), np.int64)
    for number, state in enumerate(states):
        table[number, : len(state.pages)] = [page.address for page in state.pages]
    words.add("table", table, np.int64)
    words.add("fixed", [state.fixed.data_ptr() for state in states], np.int64)
    words.add("tokens", tokens)
    words.add("positions", positions)
    words.add("owners", owners)
    words.add("starts", [segment.start for segment in segments])
    words.add("stops", [segment.stop for segment in segments])
    words.add("tail", tail)
    words.add("tail_positions", positions[list(tail)])
    words.add("tail_owners", owners[list(tail)])
    there = words.upload(device)
    shared = (there["table"], pages, there["fixed"], there["starts"], there["stops"])
    whole = RowSet(
        device, segments, there["positions"], there["owners"], *shared, int(positions.max())
    )
    kept = _restricted(segments, tail)
    last = int(positions[list(tail)].max(initial=0))
    late = RowSet(device, kept, there["tail_positions"], there["tail_owners"], *shared, last)
    return whole, late, there["tokens"], there["tail"].long()


def _restricted(segments: Sequence[Segment], rows: Sequence[int]) -> list[Segment]:
    """The segments of some of the rows, numbered among these; each is of neighbours."""
    found: list[Segment] = []
    before = -2
    for place, row in enumerate(rows):
        segment = next(s for s in segments if s.start <= row < s.stop)
        position = segment.position + row - segment.start
        if found and found[-1].state is segment.state and before == row - 1:
            found[-1] = Segment(segment.state, found[-1].start, place + 1, found[-1].position)
        else:
            found.append(Segment(segment.state, place, place + 1, position))
        before = row
    return found
