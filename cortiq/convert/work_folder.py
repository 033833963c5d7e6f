"""Resumable writing of one large file: a hidden folder beside it, and a journal of what is done.

`.NAME.converting` holds the file as it grows and a line for every tensor that is whole, with the
hashes of its bytes. A later start with the same plan reads those bytes again and goes on behind
them; one with another plan begins afresh. Only a finished file is renamed to its name, so that an
interruption leaves nothing that opens as a model and is not whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from cortiq.errors import CortiqError, RequestError
from cortiq.formats.cache import try_lock
from cortiq.formats.own_layout import WEIGHTS_FILE

PLAN, JOURNAL, LOCK, WEIGHTS = "plan", "journal", "lock", "weights.part"
CHUNK = 1 << 22


class Place(NamedTuple):
    """A tensor, or a part of one, in the file."""

    name: str
    start: int
    nbytes: int


class WorkFolder:
    """The folder in which a file is made.

    Attributes
    ----------
    path : of the folder. weights : the file, open.
    done : hashes of finished tensors' parts, by tensor.
    """

    def __init__(self, path: Path, weights: IO[bytes]) -> None:
        self.path, self.weights = path, weights
        self.done: dict[str, dict[str, str]] = {}

    def resume(self, places: Mapping[str, Sequence[Place]]) -> None:
        """Take over every tensor of the journal whose bytes are still what it says."""
        journal = self.path / JOURNAL
        lines = journal.read_text().splitlines() if journal.is_file() else []
        for line in lines:
            try:
                name, hashes = json.loads(line)
                wanted = {place.name: self.hash_of(place) for place in places[name]}
            except (ValueError, KeyError, TypeError, OSError):
                continue  # a line that was being written, or bytes that are not there
            if hashes == wanted:
                self.done[name] = hashes
        with journal.open("w") as file:
            file.writelines(f"{json.dumps([n, h])}\n" for n, h in self.done.items())

    def hash_of(self, place: Place) -> str:
        """Return the SHA-256 of a part of the file."""
        digest, position, left = hashlib.sha256(), place.start, place.nbytes
        self.weights.seek(position)
        while left:
            data = self.weights.read(min(CHUNK, left))
            if not data:
                raise OSError("the file ends before")
            digest.update(data)
            left -= len(data)
        return digest.hexdigest()

    def write(self, at: int, data: memoryview | bytes) -> None:
        """Write bytes at a place of the file."""
        self.weights.seek(at)
        self.weights.write(data)

    def finish_tensor(self, name: str, hashes: dict[str, str]) -> None:
        """Note that a tensor is whole."""
        self.weights.flush()
        self.done[name] = hashes
        with (self.path / JOURNAL).open("a") as file:
            file.write(f"{json.dumps([name, hashes])}\n")

    def finish(self) -> Path:
        """Sync the file to disk and close it; return its path."""
        self.weights.flush()
        os.fsync(self.weights.fileno())
        self.weights.close()
        return self.path / WEIGHTS

    def set_size(self, size: int) -> None:
        """Give the file its size; `CortiqError` if the disk has no room for it."""
        there = os.fstat(self.weights.fileno())
        taken = getattr(there, "st_blocks", 0) * 512
        free = shutil.disk_usage(self.path).free
        if size - taken > free:
            what = f"needs {size - taken} bytes, {free} are free"
            raise CortiqError(what, where=str(self.path.parent), hint="free some, or go elsewhere")
        self.weights.truncate(size)


@contextmanager
def work_folder(out: Path, plan: str) -> Iterator[WorkFolder]:
    """Yield the folder in which `out` is made: what an earlier start with this plan left, or anew.

    It stays after an error, for a later start.

    Raises
    ------
    RequestError : `out` exists, or another process is making it.
    CortiqError : the folder cannot be written.
    """
    if os.path.lexists(out):
        raise RequestError("is there already", where=str(out), hint="name another, or remove it")
    folder = out.with_name(f".{out.name}.converting")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOCK).open("wb") as lock:
            if not try_lock(lock, wait=False):
                what = "another process is converting to it"
                raise RequestError(what, where=str(out), hint="wait for it, or name another")
            if (folder / WEIGHTS_FILE).is_file():  # stopped when only names were to be changed
                (folder / WEIGHTS_FILE).rename(folder / WEIGHTS)
            same = (folder / PLAN).is_file() and (folder / PLAN).read_text() == plan
            if not same:
                for name in (JOURNAL, WEIGHTS, PLAN):
                    (folder / name).unlink(missing_ok=True)
                (folder / PLAN).write_text(plan)
            (folder / WEIGHTS).touch()
            with (folder / WEIGHTS).open("r+b") as weights:
                yield WorkFolder(folder, weights)
    except OSError as error:
        what = f"cannot be written: {error.strerror or error}"
        raise CortiqError(what, where=str(error.filename or folder)) from error


def publish(source: Path, out: Path) -> None:
    """Rename a finished file or folder to its name, and sync that to disk."""
    os.rename(source, out)
    handle = os.open(out.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(folder: Path) -> None:
    """Remove a work folder."""
    shutil.rmtree(folder, ignore_errors=True)
