"""Patterns that native ops compute at once."""

from __future__ import annotations

from cortiq.backend.fuse import Fuser
from cortiq.backend.lower import Lowered
from cortiq.backend.patterns import PATTERNS

NATIVE = tuple(
    PATTERNS[name]
    for name in (
        "quantised rows", "norms of sums", "overlays", "residual sums", "gates",
        "keys and values", "queries",
    )
)  # fmt: skip


def fuser(lowered: Lowered, exposed: frozenset[str], solid: frozenset[str]) -> Fuser:
    """Make the fuser of one request's steps; see `cortiq.backend.fuse.Fuser`."""
    return Fuser(NATIVE, lowered, exposed, solid)
