"""Addresses, shapes and constants of a request's values, for the functions that make its ops."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from math import prod
from typing import Any

from cortiq.backend.lower import Lowered
from cortiq.ir import Node, Type
from cortiq_cpu import arguments
from cortiq_cpu.arena import Arena, ArenaOffsets
from cortiq_cpu.arguments import OpKind, address
from cortiq_cpu.native import NativeOp
from cortiq_cpu.quantised_rows import record_bytes
from cortiq_cpu.rotary_arrays import RotaryArrays
from cortiq_cpu.row_arrays import RowArrays
from cortiq_cpu.state_layout import StateLayout
from cortiq_cpu.weights import PackedWeights, vector_form

FLOAT_BYTES = 4
SHARED_KINDS = (
    OpKind.MATMUL, OpKind.MATMUL_CHOSEN, OpKind.ATTEND, OpKind.CAUSAL_CONV, OpKind.GATED_DELTA,
    OpKind.CHOOSE_BLOCKS, OpKind.CHOOSE_KEYS, OpKind.COMPRESS, OpKind.LOW_RANK,
    OpKind.PACKAGE_STEP,
)  # fmt: skip
"""Ops worth sharing between threads even for one row."""
ALONE_ROWS = 2
"""Rows up to which the others are not: waiting for a thread takes longer than a row."""
OpArgs = list[tuple[OpKind, ctypes.Structure]]
"""Ops of a step: kinds and arguments."""


def row_bytes(type_: Type) -> int:
    """Return the bytes of one row of a value."""
    if type_.dtype != "q16":
        return FLOAT_BYTES * prod(type_.shape)
    return prod(type_.shape[:-1]) * record_bytes(type_.shape[-1])


def fields(node: Node) -> Any:
    """Return the node's operator untyped, since the caller knows its fields."""
    return node.op


@dataclass
class OpBinder:
    """Binds the steps of one row set.

    Attributes
    ----------
    kept : what ops point at, besides the arena and the weights.
    """

    lowered: Lowered
    places: ArenaOffsets
    arena: Arena
    rows: RowArrays
    angles: RotaryArrays
    layout: StateLayout
    weights: PackedWeights
    workspace: Any
    kept: list[Any] = field(default_factory=list)

    def op(self, kind: OpKind, args: ctypes.Structure) -> NativeOp:
        """Make an op on the set's rows."""
        self.kept.append(args)
        rows, faults = address(self.rows.count), address(self.rows.faults)
        alone = 0 if kind in SHARED_KINDS else ALONE_ROWS
        return NativeOp(int(kind), 0, rows, faults, ctypes.addressof(args), alone)

    def at(self, name: str | None) -> Any:
        """Return the address of a value's first row; None, a NULL pointer, for no value."""
        if name is None:
            return None
        return self.arena.address + self.places.offsets[self.lowered.root(name)]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a row."""
        return self.lowered.types[name].shape

    def stride(self, name: str | None) -> int:
        """Return the floats from one row to the next."""
        return 0 if name is None else prod(self.shape(name))

    def split(self, name: str) -> dict[str, int]:
        """Return a row's shape as `inner` vectors of `width` values."""
        *lead, width = self.shape(name) or (1,)
        return {"inner": prod(lead), "width": width}

    def vector(self, node: Any, role: str) -> int | None:
        """Return the address of a node's vector in this role; None if it has none."""
        if node is None or role not in node.weights:
            return None
        return self.weights.vector(node.weights[role], *vector_form(node.op, role))

    def kv(self, slot: str) -> arguments.KVSlotArgs:
        """Describe the rows of a slot, for the sequences of this set."""
        number, layout = self.layout.kv_numbers[slot], self.layout.rows[slot]
        geometry = layout.slot
        return arguments.KVSlotArgs(
            pages=self.rows.pages[number].ctypes.data,
            **self._segments(),
            heads=geometry.heads,
            key_dim=geometry.key_dim,
            value_dim=geometry.value_dim,
            page_tiles=layout.tiles,
        )

    def ring(self, slot: str) -> dict[str, int | None]:
        """Return the fields that describe a ring, for the sequences of this set."""
        number = self.layout.fixed_numbers[slot]
        return {
            "rings": self.rows.fixed[number].ctypes.data,
            "capacities": self.rows.ring_capacities[number].ctypes.data,
            **self._segments(),
        }

    def _segments(self) -> dict[str, int | None]:
        """Return the fields that say which rows of the batch are whose."""
        rows = self.rows
        return {"segments": address(rows.segments), "segment_count": address(rows.segment_count)}
