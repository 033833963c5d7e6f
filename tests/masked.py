"""The plugin of masks, loaded for a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint

from cortiq.plugins import loading
from cortiq.plugins.candidates import installed_entry_points


@contextmanager
def loaded_plugins(**modules: str) -> Iterator[None]:
    """Let this process have the installed plugins and these, NAME=module."""
    points = [p for p in installed_entry_points(lambda *_: None) if p.name not in modules]
    points += [EntryPoint(name, module, "cortiq.plugins") for name, module in modules.items()]
    before, loading._default = loading._default, loading.load_plugins(points)
    try:
        assert not loading._default.problems
        yield
    finally:
        loading._default = before
