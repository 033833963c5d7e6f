"""The layout of slots in native memory: rows in pages, rings and states in a block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cortiq.backend.extents import ring_rows
from cortiq.backend.kernel import NO_KERNELS, GivenKernels
from cortiq.backend.paged_layout import PagedLayout
from cortiq.errors import UnsupportedError
from cortiq.ir import Graph, KVRows, Program, Ring, Slot, ops
from cortiq.numerics.contract import TILE
from cortiq_cpu.arena import aligned
from cortiq_cpu.package_states import package_state
from cortiq_cpu.pages import PageLayout
from cortiq_cpu.recurrent_states import StateMemory, recurrent_layout


class StateLayout(PagedLayout):
    """Layout of the memory of a program's sequences.

    Attributes
    ----------
    rows, recurrences : how slots of rows, and recurrent ones, lie in memory, by name.
    kv_numbers, fixed_numbers : of slots in the native calls.
    ring_capacities : rows of each ring, int32 [rings and recurrent states].
    """

    def __init__(
        self,
        program: Program,
        graphs: Mapping[str, Graph],
        page_rows: int,
        windows: Mapping[str, int] | None = None,
        given: GivenKernels = NO_KERNELS,
    ) -> None:
        self.recurrences: dict[str, StateMemory] = {
            node.slots["state"]: recurrent_layout(node, graph)
            for graph in graphs.values()
            for node in graph.nodes
            if isinstance(node.op, ops.DeltaRule | ops.DiagonalDeltaRule | ops.StateSpace)
        }
        self.recurrences |= {
            node.slots["state"]: package_state(node, graph, given[type(node.op)])
            for graph in graphs.values()
            for node in graph.nodes
            if node.slots and type(node.op) in given
        }
        tiles = max(1, -(-page_rows // TILE))
        slots = program.slots.items()
        self.rows = {n: PageLayout(slot, tiles) for n, slot in slots if isinstance(slot, KVRows)}
        super().__init__(program, self._nbytes_of, page_rows, windows)
        self.kv_numbers = {name: number for number, name in enumerate(self.kv)}
        self.fixed_numbers = {name: number for number, name in enumerate(self.fixed)}
        fixed: list[Any] = list(self.fixed.values())
        capacities = [ring_rows(slot) if isinstance(slot, Ring) else 1 for slot in fixed]
        self.ring_capacities = np.array(capacities, np.int32)
        self.kv_groups = np.array([self.group_of[name] for name in self.kv], np.intp)
        self.kv_offsets = np.array([self.offsets[name] for name in self.kv], np.uint64)
        self.fixed_offsets = np.array([self.offsets[name] for name in self.fixed], np.uint64)

    def _nbytes_of(self, name: str, slot: Slot) -> int:
        if name in self.rows:
            return aligned(self.rows[name].page_bytes)
        if isinstance(slot, Ring):
            return aligned(4 * ring_rows(slot) * slot.width)
        if name not in self.recurrences:
            raise UnsupportedError(f"a slot of kind {type(slot).__name__}", where=name)
        return aligned(4 * self.recurrences[name].size)
