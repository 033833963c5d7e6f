"""What the makers of dispatches know: where values, weights and angles are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from cortiq.backend.lower import Lowered, Step
from cortiq.ir import Type, ops
from cortiq.numerics.attention import ScoreConstants
from cortiq_wgpu.angles import Angles
from cortiq_wgpu.places import Places, record_words, units_of
from cortiq_wgpu.pools import Pools
from cortiq_wgpu.tuning import Tuning
from cortiq_wgpu.weights import Weights


@dataclass(frozen=True)
class Binder:
    """Places of one request.

    Attributes
    ----------
    tuning : of the kernels for GPUs; None where those for processors are used.
    """

    lowered: Lowered
    places: Places
    weights: Weights
    angles: Angles
    pools: Pools
    dot: str
    scoring: Mapping[ops.Attend, ScoreConstants]
    tuning: Tuning | None
    rows: int
    context: int

    def type_of(self, name: str) -> Type:
        """Type of a value."""
        return self.lowered.types[name]

    def at(self, name: str) -> int:
        """Where a value begins, in words of its block."""
        return self.places.offsets[self.lowered.root(name)]

    def size(self, name: str) -> int:
        """Numbers of a row of a value."""
        return prod(self.type_of(name).shape)

    def heads(self, name: str) -> tuple[int, int]:
        """Stretches of a row, and how long they are."""
        *lead, width = self.type_of(name).shape
        return prod(lead), width

    def vector(self, step: Step, role: str, absent: int) -> int:
        """Where a vector of a node's begins; `absent` if the node has none in this role."""
        assert step.node is not None
        if role not in step.node.weights:
            return absent
        return self.weights.vector(step.node, role)

    def record(self, name: str) -> Mapping[str, int]:
        """Where quantised rows begin, their words and units."""
        width = self.type_of(name).shape[-1]
        return {"at": self.at(name), "size": record_words(width), "units": units_of(width)}

    def matrix(self, step: Step, role: str) -> Any:
        """A node's matrix on the device."""
        assert step.node is not None
        return self.weights.matrix(step.node, role)
