"""Sequences: `cortiq.backend.paged.PagedState` with addresses for the native kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cortiq.backend.paged import PagedState

if TYPE_CHECKING:
    from cortiq_cpu.executable import CpuExecutable


class CpuState(PagedState):
    """One sequence.

    Attributes
    ----------
    table_addresses : for each `KVRows` slot, where the addresses of its pages lie.
    fixed_addresses : of each ring and recurrent state.
    """

    owner: CpuExecutable

    def locate(self) -> None:
        """Note the addresses of all pages."""
        layout = self.owner.layout
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
