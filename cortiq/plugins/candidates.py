"""Sources of plugins: entry points of installed distributions, and files."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from cortiq import hookspecs
from cortiq.plugins.checks import BrokenPluginError, error_line

if TYPE_CHECKING:
    from types import ModuleType

ONLY_VARIABLE = "CORTIQ_PLUGINS"


@dataclass(frozen=True)
class Candidate:
    """A plugin that can be loaded.

    Attributes
    ----------
    requested : whether the user named it.
    """

    name: str
    source: str
    load: Callable[[], object]
    requested: bool = False


def installed_entry_points(reject: Callable[[str, str], None]) -> Iterator[metadata.EntryPoint]:
    """Yield the entry points of group `cortiq.plugins` of all installed distributions.

    Distributions are read one by one, so that one with malformed metadata does not hide others;
    `reject` is called with its name and a sentence. Of two copies on the path the first counts.
    """
    seen = set()
    for distribution in metadata.distributions():
        if hookspecs.GROUP not in (distribution.read_text("entry_points.txt") or ""):
            continue
        name = _distribution_name(distribution)
        if name in seen:
            continue
        seen.add(name)
        try:
            yield from distribution.entry_points.select(group=hookspecs.GROUP)
        except Exception as error:
            reject(name, f"its entry_points.txt cannot be read: {error_line(error)}")


def _distribution_name(distribution: metadata.Distribution) -> str:
    try:
        return distribution.metadata["Name"] or "a distribution without a name"
    except Exception as error:  # METADATA is missing or malformed
        return f"a distribution without metadata ({error_line(error)})"


def only_from_environment() -> list[str] | None:
    """Return the names of the plugins to load, or None for all."""
    text = os.environ.get(ONLY_VARIABLE)
    if text is None:
        return None
    return [name.strip() for name in text.split(",") if name.strip()]


def from_entry_point(point: metadata.EntryPoint) -> Candidate:
    """Return the plugin of an entry point."""
    dist = point.dist
    source = f"{_distribution_name(dist)} {dist.version}" if dist else point.value
    return Candidate(point.name, source, point.load)


def from_file(file: str | Path) -> Candidate:
    """Return the plugin in a file."""
    path = Path(file)
    return Candidate(path.stem, str(path), lambda: _load_file(path), requested=True)


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise BrokenPluginError("there is no such file")
    name = f"cortiq_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BrokenPluginError("is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
