"""Models found in the cache, checked by hash: once, and again when a file's size or time changed.

What was checked is remembered outside the models' folders, in `checked/NAME.json` beside them: by
file its SHA-256, size and time of change in nanoseconds.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cortiq.atomic import write_whole
from cortiq.errors import FormatError
from cortiq.formats.cache import models_folder
from cortiq.formats.digest import file_sha256
from cortiq.formats.strict_json import read_optional

Record = dict[str, Any]


def differing(folder: Path, expected: Mapping[str, str]) -> str | None:
    """Return the first file of a model's folder that is not as expected; None where all are.

    Parameters
    ----------
    expected : SHA-256 in hex by the file's name.
    """
    known, found = _read(folder), {}
    for name, sha256 in expected.items():
        path = folder / name
        if not path.is_file():
            return name
        told = _facts(path, sha256)
        if known.get(name) != told and file_sha256(path) != sha256:
            return name
        found[name] = told
    if found != known:
        _write(folder, found)
    return None


def remember(folder: Path, names: Iterable[str]) -> None:
    """Take the files of a model's folder, just fetched and checked, for what they should be."""
    _write(folder, {name: _facts(folder / name, file_sha256(folder / name)) for name in names})


def remembered(folder: Path) -> dict[str, str]:
    """Return the SHA-256 by file that a model's folder should have; empty where nobody knows."""
    return {
        name: facts["sha256"]
        for name, facts in _read(folder).items()
        if isinstance(facts, dict) and isinstance(facts.get("sha256"), str)
    }


def forget(folder: Path) -> None:
    """Remove what is remembered of a model's folder."""
    with contextlib.suppress(OSError):
        _place(folder).unlink(missing_ok=True)


def _facts(path: Path, sha256: str) -> Record:
    status = path.stat()
    return {"sha256": sha256, "size": status.st_size, "time": status.st_mtime_ns}


def _place(folder: Path) -> Path:
    return models_folder().parent / "checked" / f"{folder.name}.json"


def _read(folder: Path) -> Record:
    try:
        return read_optional(_place(folder))
    except FormatError:  # a record that cannot be read is none: the files are hashed again
        return {}


def _write(folder: Path, record: Record) -> None:
    """Write a record; where the cache cannot be written, the next start hashes again."""
    place = _place(folder)
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, [json.dumps(record, sort_keys=True).encode()])
