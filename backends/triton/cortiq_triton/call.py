"""Arguments of kernels besides their inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from cortiq.backend.paged_layout import PagedLayout
from cortiq.backend.peers import ALONE, Peers
from cortiq.ir import Program
from cortiq.numerics.column_order import ColumnOrder
from cortiq_triton.rotary import Angles
from cortiq_triton.rowset import RowSet


class Counters:
    """Zeros on a device, which launches leave as they find them; where they are never changes."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._kept: list[torch.Tensor] = []

    def of(self, count: int) -> torch.Tensor:
        """At least so many: int32, 0 between launches."""
        if not self._kept or len(self._kept[-1]) < count:
            size = max(1 << 14, 1 << (count - 1).bit_length())
            self._kept.append(torch.zeros(size, dtype=torch.int32, device=self._device))
        return self._kept[-1]


@dataclass(frozen=True)
class Shared:
    """Arguments that all calls of an executable share."""

    program: Program
    layout: PagedLayout
    angles: Angles
    device: str
    counters: Counters
    orders: dict[ColumnOrder, torch.Tensor] = field(default_factory=dict)
    peers: Peers = ALONE

    @property
    def table_groups(self) -> int:
        """Tables of pages that a sequence has in a batch."""
        return max(1, len(self.layout.groups))

    def wait(self, event: Any) -> None:
        """Wait for an event of the device; None is one that has happened.

        Raises
        ------
        BackendError : a peer was lost, for which the device waits.
        """
        if event is not None:
            self.peers.wait(event)

    def order(self, order: ColumnOrder) -> torch.Tensor:
        """The columns of an order, uploaded once: int64 [K]."""
        if order not in self.orders:
            columns = torch.from_numpy(order.columns).to(torch.int64)
            self.orders[order] = columns.to(self.device)
        return self.orders[order]


@dataclass
class LaunchCall:
    """Arguments of one kernel.

    Attributes
    ----------
    op : the operator. weights : prepared by `prepare`, by role. slots : names of slots, by role.
    rows : which rows are computed. faults : int32, a flag a row, which kernels set.
    """

    op: Any
    weights: Mapping[str, Any]
    slots: Mapping[str, str]
    rows: RowSet
    faults: torch.Tensor
    shared: Shared

    def slot(self, role: str) -> tuple[Any, int]:
        """A slot and its offset in a page or in the fixed block."""
        name = self.slots[role]
        return self.shared.program.slots[name], self.shared.layout.offsets[name]

    def table(self, role: str) -> torch.Tensor:
        """Page tables of a slot, int64 [sequences, pages]: those of its group."""
        return self.rows.table[self.shared.layout.group_of[self.slots[role]]]
