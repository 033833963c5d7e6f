"""Dispatches, recorded once by a plan and encoded by each batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cortiq_wgpu.shader_source import ShaderSource

ALL_ROWS = "rows"
SEGMENTS = "segments"
MOST_TURNS = 1 << 15
"""Turns of all loops that a lane may take in one dispatch: llvmpipe ends loops after 65,535."""
NONE = 0xFFFFFFFF
"""A parameter that says: there is none."""


@dataclass(frozen=True)
class Grid:
    """Workgroups of a dispatch: x (0: it is left out), rows (or segments) over `each`, times
    `inner`, z.

    `parts` : z is the batch's number of parts of attention's keys.
    """

    x: int = 1
    each: int = 1
    inner: int = 1
    z: int = 1
    over: str = ALL_ROWS
    parts: bool = False

    def groups(self, rows: int, segments: int, parts: int) -> tuple[int, int, int]:
        """Return the numbers for a batch."""
        count = rows if self.over == ALL_ROWS else segments
        return self.x, -(-count * self.inner // self.each), parts if self.parts else self.z


@dataclass(frozen=True)
class Dispatch:
    """One dispatch.

    Attributes
    ----------
    values : of each stage's parameters. buffers : by the kernel's names, those of this dispatch
    alone; pool : the slot whose memory it sees. some, many : used
    instead for a few rows, and for many, where there is one.
    given : the value whose rows it admits, where rows bring it. begin : the first of a sequence's
    rows (of a row's runs of keys) that it is about; without any it is left out.
    turned : words of the buffer `turned` that it needs.
    """

    kernel: ShaderSource
    values: tuple[Mapping[str, int], ...]
    grid: Grid
    tail: bool
    buffers: Mapping[str, Any] = field(default_factory=dict)
    pool: str | None = None
    label: str = ""
    nodes: frozenset[str] = frozenset()
    outputs: tuple[str, ...] = ()
    some: Dispatch | None = None
    many: Dispatch | None = None
    given: str | None = None
    begin: int = 0
    turned: int = 0
