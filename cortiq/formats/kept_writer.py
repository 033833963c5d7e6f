"""Writing a file of prepared weights (`kept_file`), weight by weight as they are made."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from cortiq.formats import kept_file
from cortiq.formats.kept_file import HEAD, MAGIC, START, MappedFile, WeightPlace

if TYPE_CHECKING:
    from cortiq.formats.kept_file import Bytes

PART = ".part"
"""Suffix of files that have no name of their own yet."""


class WeightsWriter:
    """A file of weights in the making. It has no name before it is whole, where that is possible.

    Elsewhere its name ends in `PART`. It is locked: `drop_parts` removes what killed ones
    left.

    Raises
    ------
    OSError : of every call: the folder cannot be written, or the disk is full.

    Attributes
    ----------
    weights : places by name. end : bytes so far.
    """

    def __init__(self, folder: Path) -> None:
        import fcntl

        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._part = folder / f".{secrets.token_hex(8)}{PART}"
        how = os.O_RDWR | os.O_CLOEXEC
        try:
            self._number = os.open(folder, how | os.O_TMPFILE, 0o600)
            self._is_named = False
        except (AttributeError, OSError):
            self._number = os.open(self._part, how | os.O_CREAT | os.O_EXCL, 0o600)
            self._is_named = True
        fcntl.flock(self._number, fcntl.LOCK_EX)
        self.weights: dict[str, WeightPlace] = {}
        self.end, self._written = START, 0
        self._staged = bytearray(START)
        self._checksums: list[int] = []

    def start(self, name: str, form: str, nbytes: int) -> None:
        """Begin a weight, whose bytes are appended next."""
        gap = -self.end % START
        self._staged += bytes(gap)
        self.end += gap
        self.weights[name] = WeightPlace(form, self.end, nbytes)

    def append(self, data: Bytes) -> None:
        """Take the next bytes; after an error they are not lost either (`read`)."""
        self._staged += data.data
        self.end += data.nbytes
        piece = kept_file.PIECE
        while len(self._staged) >= piece:
            _write(self._number, memoryview(self._staged)[:piece], self._written)
            begin = START if self._written == 0 else 0
            self._checksums.append(zlib.crc32(memoryview(self._staged)[begin:piece]))
            self._written += piece
            del self._staged[:piece]

    def read(self, place: WeightPlace, target: Bytes) -> None:
        """Fill an array with a weight's bytes as far as they were taken."""
        stop = min(place.offset + place.nbytes, self.end)
        middle = min(max(place.offset, self._written), stop)
        at = place.offset
        while at < middle:
            data = os.pread(self._number, min(kept_file.PIECE, middle - at), at)
            target[at - place.offset :][: len(data)].data[:] = data
            at += len(data)
        rest = self._staged[middle - self._written : stop - self._written]
        target[middle - place.offset : stop - place.offset].data[:] = rest

    def map(self) -> MappedFile:
        """Write what is staged, and map the file as it is now."""
        _write(self._number, memoryview(self._staged), self._written)
        return MappedFile(self._number, self.end)

    def seal(self, source: str) -> None:
        """Write what is staged, the table, and the first bytes."""
        last = memoryview(self._staged)[START if self._written == 0 else 0 :]
        sums = [*self._checksums, zlib.crc32(last)] if self._staged else self._checksums
        said = {"source": source, "weights": self.weights, "checksums": sums}
        table = json.dumps(said).encode()
        _write(self._number, memoryview(bytes(self._staged) + table), self._written)
        start = HEAD.pack(MAGIC, self.end, len(table), zlib.crc32(table))
        _write(self._number, memoryview(start), 0)

    def rename(self, path: Path) -> None:
        """Give the sealed file its name, in place of the one that has it."""
        if not self._is_named:
            # `link` does not follow links, whatever Python is told; with a folder it is `linkat`.
            where = f"/proc/self/fd/{self._number}"
            os.link(where, self._part, src_dir_fd=self._number, follow_symlinks=True)
            self._is_named = True
        os.replace(self._part, path)
        self._is_named = False

    def close(self) -> None:
        """Forget the file; without a name it goes with its last mapping."""
        os.close(self._number)
        if self._is_named:
            with contextlib.suppress(OSError):
                os.unlink(self._part)


def drop_parts(folder: Path) -> int:
    """Remove what killed processes left, nothing that is being written; return the bytes freed."""
    import fcntl

    freed = 0
    for path in folder.glob(f".*{PART}"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            freed += os.fstat(file.fileno()).st_size
    return freed


def _write(number: int, data: memoryview, at: int) -> None:
    """Write all of it."""
    while len(data):
        count = os.pwrite(number, data, at)
        data, at = data[count:], at + count
