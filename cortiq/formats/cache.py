"""The model cache: its location, one writer per model, no partial files under final names."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from cortiq.errors import DownloadError

Progress = Callable[[str, int, int], None]
"""Called with (activity, bytes done, bytes in total); with total 0, the activity is a sentence.

While another program downloads, the calls come from a thread of their own.
"""

PARTIAL_SUFFIX = ".partial"
"""Suffix of the name of an incomplete folder."""

FULL_HINT = "free some space, or set CORTIQ_CACHE to a folder on another disk; then again"
_CHUNK = 1 << 20
_WATCH_SECONDS = 0.25


def models_folder() -> Path:
    """Return the folder of models: `models` in $CORTIQ_CACHE, or in the platform's cache folder.

    Raises
    ------
    DownloadError : there is no home folder.
    """
    chosen = os.environ.get("CORTIQ_CACHE")
    try:
        return (Path(chosen).expanduser() if chosen else _platform_cache() / "cortiq") / "models"
    except RuntimeError as error:  # neither HOME nor such a user
        hint = "set CORTIQ_CACHE to a folder that can be written"
        raise DownloadError(f"no place for models: {error}", where=chosen, hint=hint) from None


def _platform_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


@contextmanager
def workspace(name: str, progress: Progress | None, *, keep: bool = False) -> Iterator[Path]:
    """Lock the download of `name` across processes and yield a folder in the cache for it.

    The folder is removed at the end, after an interrupt, too; that of a killed process is removed
    by the next one. It is on the cache's file system, so that a rename out of it is atomic.

    Parameters
    ----------
    keep : keep the folder after an interrupt, a kill or an error, for the next attempt to resume;
        for files that are verified before they are used.

    Raises
    ------
    DownloadError : the cache cannot be written.
    """
    root = models_folder()
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = (root / f".{name}.lock").open("wb")
    except OSError as error:
        hint = "set CORTIQ_CACHE to a folder that can be written"
        raise DownloadError(
            f"cannot be written: {error.strerror or error}", where=str(root), hint=hint
        ) from None
    with lock:
        _acquire(lock, name, progress)
        folder = root / f".{name}{PARTIAL_SUFFIX}"
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        kept = keep
        try:
            folder.mkdir(exist_ok=keep)
            yield folder
            kept = False
        except OSError as error:
            message = f"{name} could not be stored: {error.strerror or error}"
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise DownloadError(
                message, where=str(root), hint=FULL_HINT if full else None
            ) from error
        finally:
            if not kept or not any(path.is_file() for path in folder.rglob("*")):
                shutil.rmtree(folder, ignore_errors=True)


def _acquire(lock: IO[bytes], name: str, progress: Progress | None) -> None:
    """Wait for the lock, which the operating system frees when its holder ends, however it ends."""
    if try_lock(lock, wait=False):
        return
    if progress:
        progress(f"another process is fetching {name}; waiting for it", 0, 0)
    while not try_lock(lock, wait=True):
        continue


def try_lock(lock: IO[bytes], wait: bool) -> bool:
    """Lock an open file against other processes; return whether that was possible."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(lock.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if wait and sys.platform != "win32":
            raise
        return False
    return True


def check_space(folder: Path, needed: int, name: str) -> None:
    """Raise DownloadError if the disk of a folder, which need not exist yet, has less space."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free
    if needed > free:
        what = f"needs {needed / 1e9:.2f} GB of disk, and {free / 1e9:.2f} GB are free in {place}"
        hint = "remove models that are not needed (cortiq list, cortiq rm), or set CORTIQ_CACHE or "
        hint += "HF_HOME to a folder on another disk"
        raise DownloadError(what, where=name, hint=hint)


@contextmanager
def report_growth(folder: Path, what: str, total: int, progress: Progress | None) -> Iterator[None]:
    """Report the growth of `folder` while another program downloads into it.

    The count never falls and ends at the total.
    """
    if progress is None:
        yield
        return
    finished = threading.Event()

    def report() -> None:
        most = 0  # the count must not fall when the downloader moves or removes a file
        while not finished.wait(_WATCH_SECONDS):
            most = max(most, min(_bytes_in(folder), total))
            progress(what, most, total)

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
    progress(what, total, total)


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue  # renamed or removed since it was listed
    return total


def read_chunks(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the rest of a file, a mebibyte at a time."""
    while chunk := file.read(_CHUNK):
        yield chunk


class CheckedWriter:
    """A context manager that writes a file of known size and SHA-256.

    Parameters
    ----------
    path : the new file.
    size, sha256 : of the finished file.
    """

    def __init__(self, path: Path, size: int, sha256: str, progress: Progress | None) -> None:
        self._path, self._size, self._sha256, self._progress = path, size, sha256, progress
        self._digest, self._written = hashlib.sha256(), 0

    def write(self, read_chunks: Iterable[bytes]) -> None:
        """Append all chunks; raise DownloadError as soon as they exceed the size."""
        for chunk in read_chunks:
            self._written += len(chunk)
            if self._written > self._size:
                self._fail(f"is longer than the expected {self._size} bytes")
            self._digest.update(chunk)
            self._file.write(chunk)
            if self._progress:
                self._progress(f"checking {self._path.name}", self._written, self._size)

    def finish(self) -> None:
        """Check size and digest and sync the file to disk."""
        if self._written != self._size:
            self._fail(f"has {self._written} bytes, expected {self._size}")
        if self._digest.hexdigest() != self._sha256:
            self._fail(f"has SHA-256 {self._digest.hexdigest()}, expected {self._sha256}")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _fail(self, what: str) -> None:
        hint = "the download is damaged or of another file; nothing was kept"
        raise DownloadError(what, where=self._path.name, hint=hint)

    def __enter__(self) -> CheckedWriter:
        self._file = self._path.open("xb")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
