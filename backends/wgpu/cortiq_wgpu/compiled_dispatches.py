"""Dispatches compiled for a set of requested outputs, their offsets and buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cortiq.backend.lower import Lowered
from cortiq.backend.requests import Ask
from cortiq_wgpu.block_offsets import BlockOffsets
from cortiq_wgpu.device import GpuDevice
from cortiq_wgpu.dispatch import Dispatch


@dataclass
class BoundDispatch:
    """A dispatch with its buffers bound."""

    pipeline: Any
    group: Any
    work: Dispatch


@dataclass
class CompiledDispatches:
    """Dispatches for one set of requested outputs.

    Attributes
    ----------
    works : in order, trunk before tail. answers : where each ask's answers begin in x; late : asks
        and wanted values that exist for the tail's rows only. regions : fault flags, as (begin,
        whether of the tail, the nodes concerned or None for all).
    """

    lowered: Lowered
    places: BlockOffsets
    works: list[Dispatch]
    answers: dict[Ask, int]
    late: frozenset[str]
    tops: dict[Ask, int]
    regions: list[tuple[int, bool, frozenset[str] | None]]
    ready: list[tuple[BoundDispatch, BoundDispatch, BoundDispatch]]
    version: tuple[int, int]

    def at(self, name: str) -> int:
        """Return the offset of a value."""
        return self.places.offsets[self.lowered.root(name)]


class SharedBuffers:
    """Buffers that all requests of a plan share; they only grow.

    Attributes
    ----------
    ahead : commands that see them and are not submitted yet, by what they are for.
    """

    def __init__(self, gpu: GpuDevice) -> None:
        self.gpu, self.version = gpu, 0
        self.ahead: dict[tuple, Any] = {}
        self.buffers: dict[str, Any] = {}

    def have(self, name: str, words: int) -> Any:
        """Return a buffer of at least so many words."""
        held = self.buffers.get(name)
        if held is None or held.size < 4 * words:
            self.buffers[name] = self.gpu.buffer(max(4 * words, 1024))
            self.version += 1
            self.ahead = {}
        return self.buffers[name]
