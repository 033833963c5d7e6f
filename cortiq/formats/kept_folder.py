"""The folder of kept weights: what is in it, and what goes when it is full."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cortiq.formats.cache import models_folder
from cortiq.formats.kept_file import read_table
from cortiq.formats.kept_writer import drop_parts

SUFFIX = ".weights"
MOST_BYTES = 64 << 30
"""Most bytes of all kept files; those unused for longest go first."""


class KeptFileEntry(NamedTuple):
    """A file of kept weights, and the model file that it was made of."""

    path: Path
    nbytes: int
    source: str


def kept_folder() -> Path:
    """Return the folder of kept weights."""
    return models_folder().parent / "kept"


def kept_files() -> Iterator[KeptFileEntry]:
    """Yield the files of kept weights, by name."""
    for path in sorted(kept_folder().glob(f"*{SUFFIX}")):
        with contextlib.suppress(OSError):
            table = read_table(path)
            yield KeptFileEntry(path, path.stat().st_size, "" if table is None else table.source)


def remove_kept() -> int:
    """Remove all kept weights; return the bytes freed. Models that are in use keep their own."""
    freed = drop_parts(kept_folder())
    for path, nbytes, _ in kept_files():
        with contextlib.suppress(OSError):
            path.unlink()
            freed += nbytes
    return freed


def has_room(folder: Path, size: int) -> bool:
    """Return whether so many bytes may be kept: within the limit, half of the disk's free ones."""
    while not folder.exists():
        folder = folder.parent
    return size <= MOST_BYTES and shutil.disk_usage(folder).free > 2 * size


def make_room(folder: Path, size: int, path: Path) -> bool:
    """Remove files of models that are gone, then the least recently used ones over the limit.

    Return whether `size` bytes more, of the file that `path` will be, are within the limit.
    """
    with contextlib.suppress(OSError):
        drop_orphans(folder)
        others = sorted(
            (p.stat().st_mtime_ns, p.stat().st_size, p)
            for p in folder.glob(f"*{SUFFIX}")
            if p != path
        )
        total = sum(nbytes for _, nbytes, _ in others) + size
        for _, nbytes, other in others if size <= MOST_BYTES else ():
            if total <= MOST_BYTES:
                break
            other.unlink()
            total -= nbytes
        return total <= MOST_BYTES
    return False


def drop_orphans(folder: Path) -> int:
    """Remove kept files whose model is gone, or that are none; return the bytes freed."""
    freed = drop_parts(folder)
    for path in folder.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError):
            table = read_table(path)
            if table is None or not os.path.exists(table.source):
                freed += path.stat().st_size
                path.unlink()
    return freed
