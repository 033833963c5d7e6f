"""Rows of a launch as kernels read them: positions, owners, page tables, query blocks.

Everything of a batch is one array of 32-bit words, written on the host and copied once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch

from cortiq.backend.walk import Segment
from cortiq_triton.grouping import Groups
from cortiq_triton.language import pow2

Ids: TypeAlias = Sequence[int] | np.ndarray
"""A number for each row."""


GIVEN = "given "
"""Before the names of values that rows supply, among the arrays of a batch."""


class RowBuffer:
    """Arrays packed into one on the device, at offsets of 16 bytes, and filled by one copy.

    A second filling with arrays of the same shapes leaves every tensor of `views` where it is.
    """

    def __init__(self, device: str, turns: int = 4) -> None:
        self.device, self.turns = device, turns
        self.there: torch.Tensor | None = None
        self._hosts: list[torch.Tensor] = []
        self._copied: list[torch.cuda.Event | None] = [None] * turns
        self._turn = 0

    def fill(self, parts: Mapping[str, np.ndarray]) -> None:
        """Copy arrays of int32 and int64 to the device."""
        size = sum(_padded(part) for part in parts.values())
        host, at = self._host(size), 0
        words = host.numpy()
        for part in parts.values():
            words[at : at + part.nbytes] = part.reshape(-1).view(np.uint8)
            at += _padded(part)
        if self.there is None:
            self.there = torch.empty(size, dtype=torch.uint8, device=self.device)
        self.there.copy_(host, non_blocking=True)
        if self.device != "cpu":
            copied = self._copied[self._turn] = torch.cuda.Event()
            copied.record()

    def _host(self, size: int) -> torch.Tensor:
        """Return memory that no copy under way reads: fillings take turns, and one that comes round
        waits for its last copy. An engine has two batches under way, other callers any number.
        """
        if self.device == "cpu":
            return torch.empty(size, dtype=torch.uint8)
        if not self._hosts:
            self._hosts = [pinned(size) for _ in range(self.turns)]
        self._turn = (self._turn + 1) % len(self._hosts)
        before = self._copied[self._turn]
        if before is not None:
            before.synchronize()
        return self._hosts[self._turn]

    def views(self, parts: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
        """The arrays on the device, by name."""
        assert self.there is not None
        found, at = {}, 0
        for name, part in parts.items():
            kind = torch.int64 if part.dtype == np.int64 else torch.int32
            found[name] = self.there[at : at + part.nbytes].view(kind).view(part.shape)
            at += _padded(part)
        return found


def pinned(size: int) -> torch.Tensor:
    """Return so many bytes that the device copies from while the host goes on."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def uploaded(host: np.ndarray, device: str | torch.device) -> torch.Tensor:
    """A copy on the device, which nothing waits for."""
    there = torch.from_numpy(np.ascontiguousarray(host))
    if torch.device(device).type == "cpu":
        return there.clone()
    return there.pin_memory().to(device, non_blocking=True)


def _padded(part: np.ndarray) -> int:
    return max(16, -(-part.nbytes // 16) * 16)


@dataclass
class RowSet:
    """Rows on the device.

    Attributes
    ----------
    positions, owners : int32 [rows]; owners number the sequences of the batch.
    table : int64 [groups, sequences, pages], of each group of slots; pages : its width.
    fixed : int64 [sequences].
    starts, stops : int32 [sequences], rows of each.
    segments : the same on the host; last : the highest position.
    """

    device: str
    segments: Sequence[Segment[Any]]
    positions: torch.Tensor
    owners: torch.Tensor
    table: torch.Tensor
    pages: int
    fixed: torch.Tensor
    starts: torch.Tensor
    stops: torch.Tensor
    last: int
    _blocks: dict[int, torch.Tensor] = field(default_factory=dict)
    _chosen: torch.Tensor | None = None
    _by_expert: dict[tuple[int, int], Groups] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Return the number of rows."""
        return len(self.positions)

    def blocks(self, rows: int) -> torch.Tensor:
        """Groups of at most so many rows of one sequence: int32 [n, 2] of first row and count."""
        if rows not in self._blocks:
            found = [
                (first, min(rows, segment.stop - first))
                for segment in self.segments
                for first in range(segment.start, segment.stop, rows)
            ]
            self._blocks[rows] = uploaded(np.array(found, np.int32), self.device)
        return self._blocks[rows]

    def forget_groups(self) -> None:
        """Group rows anew: where the chosen experts lie, others may have been written."""
        self._chosen = None

    def groups(self, index: torch.Tensor) -> dict[tuple[int, int], Groups]:
        """Return what products with these chosen experts have found; of the latest ones only."""
        if index is not self._chosen:
            self._chosen, self._by_expert = index, {}
        return self._by_expert

    def most_tiles(self, window: int) -> int:
        """Tiles that a row sees at most, rounded up to a power of two."""
        everything = self.last // 64 + 1
        return pow2(min(everything, (window + 62) // 64 + 1) if window else everything)


def arrays(
    segments: Sequence[Segment[Any]],
    tokens: Ids,
    sources: Ids,
    tail: Sequence[int],
    pages: int,
    groups: int = 1,
) -> dict[str, np.ndarray]:
    """A batch's rows as arrays.

    Parameters
    ----------
    pages : the width of tables of pages, 0 for the least. groups : of slots, with a table each.
    """
    starts = np.array([segment.start for segment in segments], np.int32)
    stops = np.array([segment.stop for segment in segments], np.int32)
    first = np.array([segment.position for segment in segments], np.int32)
    owners = np.repeat(np.arange(len(segments), dtype=np.int32), stops - starts)
    positions = np.arange(len(owners), dtype=np.int32) + (first - starts)[owners]
    states = [segment.state for segment in segments]
    width = pages or max(1, *(state.page_addresses.shape[1] for state in states))
    table = np.zeros((groups, len(states), width), np.int64)
    for number, state in enumerate(states):
        table[:, number, : state.page_addresses.shape[1]] = state.page_addresses
    late = np.array(tail, np.int32)
    return {
        "table": table,
        "fixed": np.array([state.block_address for state in states], np.int64),
        "tokens": np.array(tokens, np.int32),
        "sources": np.array(sources, np.int32),
        "positions": positions,
        "owners": owners,
        "starts": starts,
        "stops": stops,
        "tail": late,
        "tail_positions": positions[late],
        "tail_owners": owners[late],
    }


def row_sets(
    segments: Sequence[Segment[Any]], tail: Sequence[int], parts: Mapping[str, np.ndarray],
    there: Mapping[str, torch.Tensor], device: str, last: int | None = None,
) -> tuple[RowSet, RowSet]:  # fmt: skip
    """All rows of a batch, and those of the tail. `last` stands for the highest position."""
    pages = parts["table"].shape[2]
    shared = (there["table"], pages, there["fixed"], there["starts"], there["stops"])
    highest = int(parts["positions"].max()) if last is None else last
    late = int(parts["tail_positions"].max(initial=0)) if last is None else last
    whole = RowSet(device, segments, there["positions"], there["owners"], *shared, highest)
    kept = _restricted(segments, tail)
    some = RowSet(device, kept, there["tail_positions"], there["tail_owners"], *shared, late)
    return whole, some


def _restricted(segments: Sequence[Segment[Any]], rows: Sequence[int]) -> list[Segment[Any]]:
    """The segments of some of the rows, numbered among these; each is of neighbours."""
    found: list[Segment[Any]] = []
    if segments and [*rows] == [*range(segments[-1].stop)]:
        return [*segments]
    starts = [segment.start for segment in segments]
    before = -2
    for place, row in enumerate(rows):
        segment = segments[bisect_right(starts, row) - 1]
        position = segment.position + row - segment.start
        if found and found[-1].state is segment.state and before == row - 1:
            first = found[-1].position
            found[-1] = Segment(
                segment.state, found[-1].start, place + 1, range(first, position + 1)
            )
        else:
            found.append(Segment(segment.state, place, place + 1, range(position, position + 1)))
        before = row
    return found
