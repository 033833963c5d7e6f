"""Hashes of cached models, recorded so that files are hashed again only after a change.

Records lie outside the models' folders, in `checked/NAME.json` beside them: SHA-256, size and
modification time (nanoseconds) of each file.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cortiq.atomic import write_atomically
from cortiq.errors import FormatError
from cortiq.formats.cache import models_folder
from cortiq.formats.digest import file_sha256
from cortiq.formats.strict_json import read_optional

HashRecord = dict[str, Any]


def first_mismatch(folder: Path, expected: Mapping[str, str]) -> str | None:
    """Return the first file of a model's folder whose hash differs, or None if all are as expected.

    Parameters
    ----------
    expected : SHA-256 in hex by the file's name.
    """
    known, found = _read(folder), {}
    for name, sha256 in expected.items():
        path = folder / name
        if not path.is_file():
            return name
        facts = _facts(path, sha256)
        if known.get(name) != facts and file_sha256(path) != sha256:
            return name
        found[name] = facts
    if found != known:
        _write(folder, found)
    return None


def record_hashes(
    folder: Path, names: Iterable[str], known: Mapping[str, str] | None = None
) -> None:
    """Hash and record the files of a model's folder, which has just been fetched and verified.

    Parameters
    ----------
    known : SHA-256 of files that have been hashed already.
    """
    hashes = dict(known or {})
    paths = {name: folder / name for name in names}
    found = {n: _facts(path, hashes.get(n) or file_sha256(path)) for n, path in paths.items()}
    _write(folder, found)


def recorded_hashes(folder: Path) -> dict[str, str]:
    """Return the recorded SHA-256 of a model's files; empty without a record."""
    return {
        name: facts["sha256"]
        for name, facts in _read(folder).items()
        if isinstance(facts, dict) and isinstance(facts.get("sha256"), str)
    }


def remove_record(folder: Path) -> None:
    """Remove the record of a model's folder."""
    with contextlib.suppress(OSError):
        _record_path(folder).unlink(missing_ok=True)


def _facts(path: Path, sha256: str) -> HashRecord:
    status = path.stat()
    return {"sha256": sha256, "size": status.st_size, "time": status.st_mtime_ns}


def _record_path(folder: Path) -> Path:
    return models_folder().parent / "checked" / f"{folder.name}.json"


def _read(folder: Path) -> HashRecord:
    try:
        return read_optional(_record_path(folder))
    except FormatError:  # an unreadable record counts as none: the files are hashed again
        return {}


def _write(folder: Path, record: HashRecord) -> None:
    """Write a record; if the cache is read-only, the next start hashes again."""
    place = _record_path(folder)
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, [json.dumps(record, sort_keys=True).encode()])
