"""What a kept state stands for: decides which one goes first when there are too many."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class CacheRole(IntEnum):
    """Why a sequence's state is kept; the lowest goes first."""

    BRANCH = 0
    """Where a cancelled or preempted sequence stood."""
    THINKING = 1
    """Before a thinking tail, which the next turn's prompt leaves out."""
    TURN = 2
    """The end of a turn: what the next prompt of the conversation goes on from."""
    SYSTEM = 3
    """The end of a system prompt: what every conversation goes on from."""
    FILE = 4
    """Loaded from a file."""


class CachePoint(NamedTuple):
    """A place in a prompt: `position` ids lie before it."""

    position: int
    role: CacheRole
