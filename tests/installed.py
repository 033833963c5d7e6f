"""The backends that are installed and should be right: those of tests that hold on every one."""

from __future__ import annotations

from cortiq.plugins import availability, default_plugins

WRONG_OR_LOUD = {"faulty", "null"}
"""Plugins that are wrong on purpose, or that log every call."""


def backends() -> list[str]:
    """Their names, those that have no device here left out."""
    plugins = default_plugins()
    return [
        name
        for name, backend in plugins.backends.items()
        if plugins.brought_by.get(name) not in WRONG_OR_LOUD and availability(backend)[1] is None
    ]
