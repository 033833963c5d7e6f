"""Weights as a backend prepared them, kept in the cache between runs.

One file for each model and form, `kept/NAME-KEY.weights` beside the folder of models. The key
covers what the bytes follow from: the model's files (device, inode, size, times of change), how
they were loaded, and the code that prepares them. A file is hostile until it is checked: bounds
before anything is allocated, a checksum of every piece, and it must be this user's. Whatever is
wrong with one, the weights are prepared anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cortiq.atomic import write_atomically
from cortiq.errors import FormatError
from cortiq.formats.cache import models_folder
from cortiq.formats.strict_json import parse_object

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

MAGIC = b"cortiqw1"
SUFFIX = ".weights"
LEAST_BYTES = 1 << 20
"""Fewer are prepared sooner than they are written."""
MOST_BYTES = 16 << 30
"""Most bytes of all kept files; those unused for longest go first."""
MOST_HEADER = 16 << 20
PIECE = 4 << 20
"""Bytes under one checksum, which one thread reads."""
CODE = ("formats", "models", "numerics", "ir", "backend")
"""Packages whose code decides what is prepared."""


class _Entry(NamedTuple):
    """A weight's place in the file, and the checksums of its pieces."""

    form: str
    offset: int
    nbytes: int
    checksums: list[int]


class KeptWeights:
    """The prepared weights of one model: those of the last run, and those for the next.

    Parameters
    ----------
    path : the file, whether it exists or not. source : the model's first file.

    Attributes
    ----------
    taken : names that were read and found as they were written.
    """

    def __init__(self, path: Path, source: Path) -> None:
        self._path, self._source = path, source
        self.taken: set[str] = set()
        self._held: dict[str, tuple[str, Bytes]] = {}
        self._made = False
        self._file, self._entries = _opened(path)

    def read(self, name: str, form: str, target: Bytes, pool: Executor | None = None) -> bool:
        """Fill `target` with a weight; return whether it is there, in this form and whole.

        Parameters
        ----------
        form : what the bytes mean: another form is another weight.
        pool : whose threads read.
        """
        entry = self._entries.get(name)
        if entry is None or (entry.form, entry.nbytes) != (form, target.nbytes):
            return False
        number = self._file.fileno()

        def piece(index: int) -> bool:
            part = target.data[index * PIECE : (index + 1) * PIECE]
            at, got = entry.offset + index * PIECE, 0
            while got < len(part):
                count = os.preadv(number, [part[got:]], at + got)
                if not count:
                    return False
                got += count
            return zlib.crc32(part) == entry.checksums[index]

        pieces = range(len(entry.checksums))
        try:
            whole = all(list(map(piece, pieces) if pool is None else pool.map(piece, pieces)))
        except OSError:
            whole = False
        if whole:
            self.taken.add(name)
            self._held[name] = form, target
        return whole

    def add(self, name: str, form: str, data: Bytes) -> None:
        """Take a weight that was prepared, for the next run; it must not change until `finish`."""
        self._held[name], self._made = (form, data), True

    def finish(self) -> None:
        """Write what was prepared, if it was not all read; forget the arrays.

        A cache that cannot be written, or a full disk, keeps nothing.
        """
        held, self._held = self._held, {}
        if self._file is not None:
            self._file.close()
            self._file = None
        with contextlib.suppress(OSError):
            if not self._made:
                os.utime(self._path)  # used: others go first
                return
            size = sum(data.nbytes for _, data in held.values())
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if size >= LEAST_BYTES and make_room(self._path.parent, size, self._path):
                write_atomically(self._path, _written(held, str(self._source)))


def kept_weights(name: str, files: Sequence[Path], facts: Mapping[str, Any]) -> KeptWeights | None:
    """Return the kept weights of a model's files; None where nothing can be kept.

    Parameters
    ----------
    facts : what else decides the bytes: options of loading, the backend.
    """
    if not files or not hasattr(os, "preadv"):
        return None
    try:
        told = [_identity(file) for file in files]
        facts = {**facts, "files": told, "code": _code()}
        key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(name).name)[:60]
        folder = kept_folder()
    except (OSError, FormatError):
        return None
    return KeptWeights(folder / f"{stem}-{key}{SUFFIX}", files[0].resolve())


def kept_folder() -> Path:
    """Return the folder of kept weights."""
    return models_folder().parent / "kept"


def make_room(folder: Path, size: int, path: Path) -> bool:
    """Remove files of models that are gone, then the least recently used ones over the limit.

    Return whether `size` bytes more fit below the limit, and twice on the disk.
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
        return total <= MOST_BYTES and shutil.disk_usage(folder).free > 2 * size
    return False


def drop_orphans(folder: Path) -> int:
    """Remove kept files whose model is gone, or that are none; return the bytes freed."""
    freed = 0
    for path in folder.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError):
            with path.open("rb") as file:
                source = _header(file, path.stat().st_size).get("source")
            if not (isinstance(source, str) and os.path.exists(source)):
                freed += path.stat().st_size
                path.unlink()
    return freed


def _identity(file: Path) -> list[Any]:
    """Return what changes when a file does: its time of change cannot be set back."""
    found = file.stat()
    return [str(file.resolve()), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns,
            found.st_ctime_ns]  # fmt: skip


def _code() -> str:
    """Return a hash of names, sizes and times of the code that makes weights of files."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for package in CODE:
        for entry in sorted(os.scandir(root / package), key=lambda one: one.name):
            if entry.name.endswith(".py"):
                found = entry.stat()
                digest.update(f"{entry.name} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _opened(path: Path) -> tuple[Any, dict[str, _Entry]]:
    """Open a file and read its header; nothing of a file that is not whole, or another user's."""
    try:
        file = path.open("rb")
    except OSError:
        return None, {}
    try:
        found = os.fstat(file.fileno())
        if found.st_uid == os.geteuid():
            header = _header(file, found.st_size)
            return file, dict(_entries(header, file.tell(), found.st_size))
    except (OSError, ValueError, TypeError, KeyError):
        pass
    file.close()
    return None, {}


def _header(file: Any, size: int) -> dict[str, Any]:
    """Return the header of a file; empty if it has none."""
    start = file.read(len(MAGIC) + 12)
    if len(start) < len(MAGIC) + 12 or not start.startswith(MAGIC):
        return {}
    length, checksum = struct.unpack("<QI", start[len(MAGIC) :])
    if length > min(MOST_HEADER, size):
        return {}
    data = file.read(length)
    try:
        return parse_object(data, "kept weights") if zlib.crc32(data) == checksum else {}
    except FormatError:
        return {}


def _entries(header: Mapping[str, Any], start: int, size: int) -> Iterator[tuple[str, _Entry]]:
    """Yield the entries of a header, each within the file; bytes begin at `start`."""
    for name, (form, offset, nbytes, checksums) in header.get("weights", {}).items():
        numbers = [offset, nbytes, *checksums]
        right = isinstance(form, str) and all(type(n) is int and n >= 0 for n in numbers)
        if right and start + offset + nbytes <= size and len(checksums) == -(-nbytes // PIECE):
            yield name, _Entry(form, start + offset, nbytes, checksums)


def _written(held: Mapping[str, tuple[str, Bytes]], source: str) -> Iterator[bytes]:
    """Yield the bytes of a file; offsets are counted from the end of the header."""
    offset, weights = 0, {}
    for name, (form, data) in held.items():
        checksums = [zlib.crc32(piece) for piece in _pieces(data)]
        weights[name] = [form, offset, data.nbytes, checksums]
        offset += data.nbytes
    header = json.dumps({"source": source, "weights": weights}).encode()
    yield MAGIC + struct.pack("<QI", len(header), zlib.crc32(header)) + header
    for _, data in held.values():
        yield from _pieces(data)


def _pieces(data: Bytes) -> Iterable[Any]:
    return (data.data[at : at + PIECE] for at in range(0, data.nbytes, PIECE))
