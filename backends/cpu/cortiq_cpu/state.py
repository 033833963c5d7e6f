"""Sequences: `cortiq.backend.paged.PagedState` with addresses for the native kernels."""

from __future__ import annotations

import numpy as np

from cortiq.backend.paged import PagedState
from cortiq_cpu.state_layout import StateLayout


class CpuState(PagedState):
    """One sequence.

    Attributes
    ----------
    table_addresses : for each `KVRows` slot, where the addresses of its pages lie.
    fixed_addresses : of each ring and recurrent state.
    """

    def locate(self) -> None:
        """Note the addresses of all pages."""
        layout: StateLayout = self.owner.layout
        stop = max((table.end for table in self.tables), default=0)
        starts = np.zeros((len(self.tables), stop), np.uint64)
        for row, table in zip(starts, self.tables, strict=True):
            row[table.first : table.end] = [page.data.address for page in table.pages]
        offsets = layout.kv_offsets
        self._addresses = np.ascontiguousarray(starts[layout.kv_groups] + offsets[:, None])
        step = np.uint64(self._addresses.strides[0] if self._addresses.size else 0)
        numbers = np.arange(len(offsets), dtype=np.uint64)
        self.table_addresses = np.uint64(self._addresses.ctypes.data) + numbers * step
        block = 0 if self.block is None else self.block.data.address
        self.fixed_addresses = np.uint64(block) + layout.fixed_offsets
