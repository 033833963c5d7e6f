"""Counts of work, for tests of cost: they hold on every processor and under any load."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

HANG_SECONDS = 300.0
"""How long a test waits for another process before it fails: long enough for a busy machine."""


def calls(function: Callable[..., Any], *given: Any, **named: Any) -> int:
    """Return how many Python and C functions `function(…)` calls, itself included."""
    count = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        function(*given, **named)
    finally:
        sys.setprofile(None)
    return count
