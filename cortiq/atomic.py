"""Atomic file writes: after an interruption or a full disk, the old file is still there."""

from __future__ import annotations

import contextlib
import glob
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

ABANDONED_SECONDS = 3600.0
"""Age in seconds after which a temporary file counts as abandoned."""


def write_atomically(path: str | os.PathLike[str], parts: Iterable[bytes]) -> None:
    """Write a file as `atomic_file` does.

    Raises
    ------
    OSError : it cannot be written; the old file is unchanged.
    """
    with atomic_file(path) as file:
        file.writelines(parts)


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file under a temporary name; sync it to disk and rename it into place at the end.

    A link is followed; a device or a pipe is written to directly. A killed process leaves at most a
    hidden file, `.NAME.….part`, which nothing reads and a later write removes.

    Raises
    ------
    OSError : it cannot be written, by the file's own name; the old file is unchanged.
    """
    target = Path(path).resolve()
    if target.exists() and not target.is_file():
        with target.open("wb") as device:
            yield device
        return
    _clear(target)
    try:
        handle, part = tempfile.mkstemp(".part", f".{target.name}.", target.parent)
    except OSError as error:
        error.filename = os.fspath(path)
        raise
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(part, _mode_of(target))
        os.replace(part, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(part)
        if isinstance(error, OSError) and error.errno and error.filename in (None, part):
            error.filename = os.fspath(path)
        raise


def _clear(target: Path) -> None:
    """Remove temporary files of killed processes, but not those still being written."""
    for part in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        with contextlib.suppress(OSError):
            if part.stat().st_mtime < time.time() - ABANDONED_SECONDS:
                part.unlink()


def _mode_of(target: Path) -> int:
    """Return the file's permissions, or those of a new file."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0o022)
    os.umask(mask)
    return 0o666 & ~mask
