"""Plugins: packages that bring backends, model families and commands.

Importing this imports no plugin and no numpy; `load_plugins` and `find_backend` do.
"""

from cortiq.plugins.loading import (
    PluginProblem,
    Plugins,
    check_requested,
    default_plugins,
    load_plugins,
    use_files,
    used_files,
)
from cortiq.plugins.selection import availability, fallback_backend, find_backend

__all__ = [
    "PluginProblem",
    "Plugins",
    "availability",
    "check_requested",
    "default_plugins",
    "fallback_backend",
    "find_backend",
    "load_plugins",
    "use_files",
    "used_files",
]
