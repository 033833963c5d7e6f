"""Its hook takes an argument that cortiq's does not have."""

from __future__ import annotations

from cortiq.hookspecs import hookimpl


@hookimpl
def cortiq_backends(registry: object) -> list:
    """Takes what llm's plugins take."""
    return []
