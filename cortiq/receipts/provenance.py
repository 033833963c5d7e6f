"""Facts that a receipt states about the machine: backends, kernel sources, drivers, versions.

It cannot be verified elsewhere, so it proves nothing about the tokens; it says where to look when a
receipt turns out wrong, and a signature says who stated it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cortiq.backend import Executable
from cortiq.backend.error_attribution import attributed_to
from cortiq.formats.digest import file_sha256
from cortiq.placement.chain_executable import ChainExecutable

if TYPE_CHECKING:
    from cortiq.model.generation import Generation
    from cortiq.model.model import Model

COMPILED_SUFFIXES = {".pyc", ".pyo", ".so", ".pyd", ".dylib", ".dll"}
"""Suffixes of files that are compiled from a package's sources."""


def machine_facts(made: Generation, model: Model) -> dict[str, Any]:
    """Return facts about the machine of a generation: texts, integers, and objects of them.

    `computed_by` holds for every backend that computed a node: its distribution, the hash of its
    sources, and its executable's `provenance` (driver, libraries, instruction set).
    """
    return {
        "model": _name(model.name),
        "backend": made.backend,
        "device": made.device,
        "placement": dict(made.placement),
        "computed_by": {
            name: _about(name, executable)
            for name, executable in node_executables(model.executable)
        },
        "cortiq": _version("cortiq"),
        "python": sys.version.split()[0],
        "numpy": _version("numpy"),
        "platform": platform.platform(),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def node_executables(executable: Executable) -> Iterator[tuple[str, Executable]]:
    """Yield the executables that compute nodes, each with the name of its backend."""
    if isinstance(executable, ChainExecutable):
        yield from executable.parts
        return
    for name in dict.fromkeys(executable.placement.values()):
        yield name, executable


def _name(called: str) -> str:
    """Return a name; of a path only the last part, since the rest is private."""
    return called.rstrip("/").rpartition("/")[2] if os.path.exists(called) else called


def _about(name: str, executable: Executable) -> dict[str, str]:
    from cortiq.plugins import default_plugins

    plugins = default_plugins()
    known: Any = plugins.backends.get(name)
    maker = type(known or getattr(executable, "inner", executable))
    facts = {
        "distribution": _name(plugins.sources.get(plugins.brought_by.get(name, ""), "")),
        "sources": source_hash(maker.__module__.partition(".")[0]),
    }
    with attributed_to(name):
        stated: Mapping[str, Any] = executable.provenance
        return facts | {str(key): str(value) for key, value in stated.items()}


@cache  # what runs was imported once
def source_hash(package: str) -> str:
    """Return the SHA-256, in hex, of a package's sources; empty without files.

    Hashed are the sorted lines `path NUL sha256 LF` of all files but compiled ones; paths are
    relative to the package, with slashes.
    """
    lines = sorted(f"{name}\0{file_sha256(path)}\n" for name, path in _sources(package))
    return hashlib.sha256("".join(lines).encode()).hexdigest() if lines else ""


def _sources(package: str) -> Iterator[tuple[str, Path]]:
    spec = getattr(sys.modules.get(package), "__spec__", None)
    if spec is None:
        return
    for folder in map(Path, spec.submodule_search_locations or ()):
        for path in folder.rglob("*"):
            if path.suffix not in COMPILED_SUFFIXES and path.is_file():
                yield path.relative_to(folder).as_posix(), path
    if not spec.submodule_search_locations and spec.origin and Path(spec.origin).is_file():
        yield Path(spec.origin).name, Path(spec.origin)


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "(not installed)"
