"""Sequences of a batch that are computed."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq_cpu.state import CpuState


@dataclass(frozen=True)
class Accepted:
    """A sequence to compute.

    Attributes
    ----------
    state : the sequence.
    indices : its rows in the batch.
    tokens : their ids.
    """

    state: CpuState
    indices: range
    tokens: list[int]
