"""Roles of cached states, which order eviction, and cache points in a prompt."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class CacheRole(IntEnum):
    """Reason for caching a state; the lowest is evicted first."""

    BRANCH = 0
    """State of a cancelled or preempted sequence."""
    THINKING = 1
    """Before a thinking tail, which the next turn's prompt leaves out."""
    TURN = 2
    """The end of a turn: the next prompt of the conversation continues from it."""
    SYSTEM = 3
    """The end of a system prompt: every conversation continues from it."""
    FILE = 4
    """Loaded from a file."""


class CachePoint(NamedTuple):
    """A position in a prompt whose state is cached: `position` ids lie before it."""

    position: int
    role: CacheRole
