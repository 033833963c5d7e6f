"""What a kernel is called with besides its inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cortiq.backend import walk
from cortiq_mlx.arithmetic import Faults
from cortiq_mlx.library import mx


@dataclass
class Call(walk.Call):
    """What a kernel is called with; see `cortiq.backend.walk.Call`.

    Attributes
    ----------
    faults : what `snap` sees of each row.
    shared : what nodes of the batch have in common, by whatever it depends on.
    angles : cosines and sines [rows, 1, pairs] of a `Rope` for these rows.
    """

    faults: Faults
    shared: dict
    angles: Callable[[], tuple[mx.array, mx.array]]
