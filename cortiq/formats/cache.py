"""The cache of models: where it is, one writer per model, nothing half-done left in it."""

from __future__ import annotations

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
"""Called with (what is going on, bytes done, bytes in all); 0 in all: a sentence to show.

While another program downloads, the calls come from a thread of their own.
"""

PARTIAL = ".partial"
"""How the name of a folder ends that is not whole."""

_CHUNK = 1 << 20
_WATCH_SECONDS = 0.25


def models_folder() -> Path:
    """Where models are kept: `models` in $CORTIQ_CACHE, or in the platform's cache folder.

    Raises
    ------
    DownloadError : there is no home folder to begin at.
    """
    chosen = os.environ.get("CORTIQ_CACHE")
    try:
        return (Path(chosen).expanduser() if chosen else _platform_cache() / "cortiq") / "models"
    except RuntimeError as error:  # nobody's home: no HOME and no such user
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
    """Lend a folder inside the cache to the only process that may fetch `name` now.

    The folder is removed whatever happens, an interrupt included; after a killed process the next
    one removes it. It is on the cache's file system, so that a rename out of it is atomic.

    Parameters
    ----------
    keep : what an interrupt, a kill or an error has left is lent again to the next one; it is for
        files that are checked before they are used.

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
        folder = root / f".{name}{PARTIAL}"
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        kept = keep
        try:
            folder.mkdir(exist_ok=keep)
            yield folder
            kept = False
        except OSError as error:
            message = f"{name} could not be stored: {error}"
            raise DownloadError(message, where=str(root)) from error
        finally:
            if not kept or not any(path.is_file() for path in folder.rglob("*")):
                shutil.rmtree(folder, ignore_errors=True)


def _acquire(lock: IO[bytes], name: str, progress: Progress | None) -> None:
    """Wait for the lock; the operating system frees it when its holder ends, however it ends."""
    if _try_lock(lock, wait=False):
        return
    if progress:
        progress(f"another process is fetching {name}; waiting for it", 0, 0)
    while not _try_lock(lock, wait=True):
        continue


def _try_lock(lock: IO[bytes], wait: bool) -> bool:
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


@contextmanager
def watched(folder: Path, what: str, total: int, progress: Progress | None) -> Iterator[None]:
    """Report the growth of `folder` while somebody else's program downloads into it.

    The count never falls, and is the total at the end.
    """
    if progress is None:
        yield
        return
    finished = threading.Event()

    def report() -> None:
        most = 0  # a file that its downloader moves or drops takes no progress back
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


def chunks(file: IO[bytes]) -> Iterator[bytes]:
    """The rest of a file, a mebibyte at a time."""
    while chunk := file.read(_CHUNK):
        yield chunk


class CheckedWriter:
    """Write a file of known size and SHA-256; a context manager.

    Parameters
    ----------
    path : the new file.
    size, sha256 : what it must become.
    """

    def __init__(self, path: Path, size: int, sha256: str, progress: Progress | None) -> None:
        self._path, self._size, self._sha256, self._progress = path, size, sha256, progress
        self._digest, self._written = hashlib.sha256(), 0

    def write(self, chunks: Iterable[bytes]) -> None:
        """Append all chunks; DownloadError as soon as they are too long."""
        for chunk in chunks:
            self._written += len(chunk)
            if self._written > self._size:
                self._fail(f"is longer than the expected {self._size} bytes")
            self._digest.update(chunk)
            self._file.write(chunk)
            if self._progress:
                self._progress(f"checking {self._path.name}", self._written, self._size)

    def finish(self) -> None:
        """Check size and digest and put the bytes on the disk."""
        if self._written != self._size:
            self._fail(f"has {self._written} bytes, expected {self._size}")
        if self._digest.hexdigest() != self._sha256:
            self._fail(f"has SHA-256 {self._digest.hexdigest()}, expected {self._sha256}")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _fail(self, what: str) -> None:
        hint = "the download is damaged, or not the file it should be; nothing was kept"
        raise DownloadError(what, where=self._path.name, hint=hint)

    def __enter__(self) -> CheckedWriter:
        self._file = self._path.open("xb")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
