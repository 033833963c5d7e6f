"""A file of prepared weights: written front to back, checked as a whole, and mapped.

Bytes 0 … 63 say where the table is; weights follow, each at a multiple of 64; the table, JSON with
their places and a checksum of every `PIECE` of the file before it, is last. The first bytes are
written last: a file without them is no file of weights. It is written in whole pieces, so that
file systems keep it in large folios, which the processor maps as huge pages.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import stat
import struct
import zlib
from concurrent.futures import Executor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cortiq.errors import FormatError
from cortiq.formats.strict_json import parse_object

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

MAGIC = b"cortiqw2"
START = 64
"""Bytes before the first weight, and what the places of weights are multiples of."""
HEAD = struct.Struct("<8sQQI")
PIECE = 4 << 20
"""Bytes that are written at once and have one checksum."""
MOST_TABLE = 16 << 20
POPULATE_READ = 22
"""`MADV_POPULATE_READ` of Linux: an error where reading would end the process."""


class WeightPlace(NamedTuple):
    """A weight in a file: what its bytes mean, and where they are."""

    form: str
    offset: int
    nbytes: int


class Table(NamedTuple):
    """The table of a file: the model's first file, places of weights, checksums, where they end."""

    source: str
    weights: dict[str, WeightPlace]
    checksums: list[int]
    end: int


def read_table(path: Path) -> Table | None:
    """Return the table of a file; None of one that is no whole file of weights."""
    try:
        with path.open("rb") as file:
            return _table(file.fileno())
    except OSError:
        return None


def _table(number: int) -> Table | None:
    """Return the table of an open file if every place in it is within the file."""
    start = os.pread(number, START, 0)
    if len(start) < START or any(start[HEAD.size :]):
        return None
    magic, end, length, checksum = HEAD.unpack(start[: HEAD.size])
    whole = end + length == os.fstat(number).st_size
    if magic != MAGIC or not whole or end < START or length > MOST_TABLE:
        return None
    data = os.pread(number, length, end)
    if len(data) < length or zlib.crc32(data) != checksum:
        return None
    try:
        said = parse_object(data, "kept weights")
        source, sums = said["source"], said["checksums"]
        weights = {name: WeightPlace(*place) for name, place in said["weights"].items()}
    except (FormatError, KeyError, TypeError, AttributeError):
        return None
    right = isinstance(source, str) and isinstance(sums, list) and len(sums) == -(-end // PIECE)
    right = right and all(type(n) is int for n in sums)
    if not right or not all(_within(place, end) for place in weights.values()):
        return None
    return Table(source, weights, sums, end)


def _within(place: WeightPlace, end: int) -> bool:
    form, *numbers = place
    if not isinstance(form, str) or not all(type(n) is int and n >= 0 for n in numbers):
        return False
    aligned = place.offset % START == 0 and place.offset >= START
    return aligned and place.offset + place.nbytes <= end


class MappedFile:
    """The first bytes of an open file, mapped to be read, in huge pages where there are such.

    Nobody may shorten the file meanwhile, or the process ends when it reads there: files of weights
    are only ever replaced by renaming, and removed.

    Attributes
    ----------
    bytes : uint8, read-only; the mapping lives as long as a view of it.
    """

    def __init__(self, number: int, size: int) -> None:
        import numpy as np

        mapping = mmap.mmap(number, size, access=mmap.ACCESS_READ)
        with contextlib.suppress(AttributeError, OSError):
            mapping.madvise(mmap.MADV_HUGEPAGE)
        self.bytes: Bytes = np.frombuffer(mapping, np.uint8)

    def populate(self, start: int, stop: int) -> None:
        """Have bytes read and mapped, where the system can be asked to.

        Raises
        ------
        OSError : the file has no such bytes, or the disk does not give them.
        """
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        address, call = self.bytes.ctypes.data + first, _madvise()
        if call is not None and call(address, stop - first, POPULATE_READ):
            failed = ctypes.get_errno()
            if failed != errno.EINVAL:  # which an older kernel says
                raise OSError(failed, "cannot be read")

    def huge_bytes(self) -> int:
        """Return how many bytes are mapped as huge pages now; 0 where the system does not say."""
        first, found, inside = self.bytes.ctypes.data, 0, False
        with contextlib.suppress(OSError), open("/proc/self/smaps") as lines:
            for line in lines:
                key, *rest = line.split()
                if not key.endswith(":"):
                    begin, end = (int(word, 16) for word in key.split("-"))
                    inside = begin < first + len(self.bytes) and end > first
                elif inside and key == "FilePmdMapped:":
                    found += int(rest[0]) << 10
        return found


class WeightsFile:
    """A file of weights that is there; see `opened`."""

    def __init__(self, table: Table, mapped: MappedFile) -> None:
        self.weights, self.mapped = table.weights, mapped
        self._checksums, self._end = table.checksums, table.end

    def is_whole(self, pool: Executor | None) -> bool:
        """Read all of it, on the threads of `pool`; return whether it is as it was written."""

        def check(index: int) -> bool:
            start = max(START, index * PIECE)
            stop = min((index + 1) * PIECE, self._end)
            self.mapped.populate(start, stop)
            return zlib.crc32(self.mapped.bytes[start:stop].data) == self._checksums[index]

        pieces = range(len(self._checksums))
        try:
            return all(list(map(check, pieces) if pool is None else pool.map(check, pieces)))
        except OSError:
            return False


def opened(path: Path) -> WeightsFile | None:
    """Open and map a file; None where there is none, or what is there cannot be trusted.

    It must be this user's, writable by nobody else, and have a right table; its weights are not
    read yet.
    """
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            mine = found.st_uid == os.geteuid() and not found.st_mode & 0o022
            if not (mine and stat.S_ISREG(found.st_mode)):
                return None
            table = _table(file.fileno())
            if table is None or table.end == START:
                return None
            return WeightsFile(table, MappedFile(file.fileno(), table.end))
    except (OSError, ValueError):
        return None


@cache
def _madvise() -> Any:
    """Return the C library's madvise, which lets other threads run; None where there is none."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    function = ctypes.CDLL(None, use_errno=True).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function
