"""Memory that captured graphs keep to themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

ORDINARY = (0, 0)
"""The pool of what is no graph's."""


def idle_bytes(device: str) -> int:
    """Return the bytes that pools of graphs hold and nothing uses: only graphs can take them."""
    number = torch.device(device).index or 0
    return idle_of(torch.cuda.memory_snapshot(), number)


def idle_of(segments: Iterable[Mapping[str, Any]], device: int) -> int:
    """Return the same of a snapshot of PyTorch's memory."""
    return sum(
        segment["total_size"] - segment["allocated_size"]
        for segment in segments
        if segment["device"] == device and tuple(segment["segment_pool_id"]) != ORDINARY
    )
