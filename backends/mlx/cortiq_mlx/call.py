"""What a kernel is called with besides its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cortiq_mlx.arithmetic import Faults
from cortiq_mlx.library import mx
from cortiq_mlx.state import MlxState


@dataclass(frozen=True)
class Segment:
    """Rows start…stop−1 of what a kernel is given are these positions of a sequence."""

    state: MlxState
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
    segments : whose rows these are. faults : what `snap` sees of each row.
    shared : what nodes of the batch have in common, by whatever it depends on.
    angles : cosines and sines [rows, 1, pairs] of a `Rope` for these rows.
    """

    op: Any
    weights: Mapping[str, Any]
    slots: Mapping[str, str]
    segments: Sequence[Segment]
    faults: Faults
    shared: dict
    angles: Callable[[], tuple[mx.array, mx.array]]
