"""The backends that are installed and should be right: those of tests that hold on every one."""

from __future__ import annotations

import os

from cortiq.plugins import availability, default_plugins

INTERPRETED = {"triton"} if os.environ.get("TRITON_INTERPRET") == "1" else set()
WRONG_OR_LOUD = {"faulty", "null"}
"""Plugins that are wrong on purpose, or that log every call."""


def backends() -> list[str]:
    """Their names, those that have no device here left out, and kernels that are only interpreted:
    those have tests of their own.
    """
    plugins = default_plugins()
    return [
        name
        for name, backend in plugins.backends.items()
        if plugins.brought_by.get(name) not in WRONG_OR_LOUD
        and name not in INTERPRETED
        and availability(backend)[1] is None
    ]
