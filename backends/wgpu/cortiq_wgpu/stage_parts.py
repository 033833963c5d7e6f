"""Types and functions that makers of stages share."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cortiq.backend.lower import LoweredStep
from cortiq_wgpu.binder import DispatchBinder
from cortiq_wgpu.shader_source import Stage, stage

Bound = list[tuple[Stage, Mapping[str, int]]]
"""Stages and the values of their parameters."""
Maker = Callable[[DispatchBinder, LoweredStep], Bound]
LANES = 256
A = "from_bits(x[$x + row * $n + i])"
"""Value i of a row."""


def mapped(body: str, **values: int) -> tuple[Stage, Mapping[str, int]]:
    """Make a stage whose body writes value i of a row."""
    return stage("map", BODY=body), values


def lanes_for(width: int) -> int:
    """Return the lanes that share a stretch: a power of two."""
    return min(LANES, 1 << max(0, width - 1).bit_length())
