"""What a kernel is called with besides its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from cortiq_torch.state import TorchState


@dataclass(frozen=True)
class Segment:
    """Rows start…stop−1 of what a kernel is given are these positions of a sequence."""

    state: TorchState
    start: int
    stop: int
    positions: Sequence[int]

    @property
    def cut(self) -> slice:
        """Its rows."""
        return slice(self.start, self.stop)


@dataclass
class Call:
    """What a kernel is called with.

    Attributes
    ----------
    op : the operator. weights : prepared by `prepare`, by role. slots : names of slots, by role.
    segments : whose rows these are. faults : a flag a row, set in place by `snap`.
    """

    op: Any
    weights: Mapping[str, Any]
    slots: Mapping[str, str]
    segments: Sequence[Segment]
    faults: Tensor
