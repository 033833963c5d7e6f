"""Files that are there whole, or as they were before: whatever is interrupted, killed or full."""

from __future__ import annotations

import contextlib
import glob
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

ABANDONED = 3600.0
"""Seconds after which nobody writes to a part any more."""


def write_whole(path: str | os.PathLike[str], parts: Iterable[bytes]) -> None:
    """Write a file under another name, put it on the disk, then give it its name.

    A link is followed; a device or a pipe is written to as it is. A process that is killed leaves
    at most a hidden file, `.NAME.….part`, which nothing reads and a later write removes.

    Raises
    ------
    OSError : it cannot be written; what was there before is there still.
    """
    target = Path(path).resolve()
    if target.exists() and not target.is_file():
        with target.open("wb") as device:
            device.writelines(parts)
        return
    _clear(target)
    handle, part = tempfile.mkstemp(".part", f".{target.name}.", target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(part, _mode_of(target))
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def _clear(target: Path) -> None:
    """Remove what killed processes have left; one that still writes is left alone."""
    for part in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        with contextlib.suppress(OSError):
            if part.stat().st_mtime < time.time() - ABANDONED:
                part.unlink()


def _mode_of(target: Path) -> int:
    """The permissions it has, or those of a new file; asking for the mask is setting it."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0o022)
    os.umask(mask)
    return 0o666 & ~mask
