"""Addresses of a request's values, weights and angles, for functions that make its dispatches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from cortiq.backend.lower import Lowered, LoweredStep
from cortiq.ir import Type, ops
from cortiq.numerics.contract import Floats
from cortiq.numerics.scores import ScoreConstants
from cortiq_wgpu.block_offsets import BlockOffsets, record_words, units_of
from cortiq_wgpu.rotary_records import RotaryRecords
from cortiq_wgpu.state_memory import WgpuStateMemory
from cortiq_wgpu.tuning import ProductTuning
from cortiq_wgpu.weights import DeviceWeights


@dataclass(frozen=True)
class DispatchBinder:
    """The offsets of one request.

    Attributes
    ----------
    tuning : of the kernels for GPUs; None where those for processors are used.
    """

    lowered: Lowered
    places: BlockOffsets
    weights: DeviceWeights
    angles: RotaryRecords
    pools: WgpuStateMemory
    dot: str
    scoring: Mapping[ops.Attend, ScoreConstants]
    steepness: Mapping[ops.Attend, Floats]
    tuning: ProductTuning | None
    rows: int
    context: int

    def type_of(self, name: str) -> Type:
        """Return the type of a value."""
        return self.lowered.types[name]

    def at(self, name: str) -> int:
        """Return the offset of a value, in words of its block."""
        return self.places.offsets[self.lowered.root(name)]

    def size(self, name: str) -> int:
        """Count the numbers in a row of a value."""
        return prod(self.type_of(name).shape)

    def heads(self, name: str) -> tuple[int, int]:
        """Return a row's shape as vectors and their width."""
        *lead, width = self.type_of(name).shape
        return prod(lead), width

    def vector(self, step: LoweredStep, role: str, absent: int) -> int:
        """Return the offset of a node's vector; `absent` if it has none in this role."""
        assert step.node is not None
        if role not in step.node.weights:
            return absent
        return self.weights.vector(step.node, role)

    def record(self, name: str) -> Mapping[str, int]:
        """Return the offset of quantised rows, their words and units."""
        width = self.type_of(name).shape[-1]
        return {"at": self.at(name), "size": record_words(width), "units": units_of(width)}

    def page_group(self, step: LoweredStep) -> int:
        """Return the number of the group of pages that a node's rows of keys are in."""
        assert step.node is not None
        return self.pools.layout.group_of[next(iter(step.node.slots.values()))]

    def matrix(self, step: LoweredStep, role: str) -> Any:
        """Return a node's matrix on the device."""
        assert step.node is not None
        return self.weights.matrix(step.node, role)
