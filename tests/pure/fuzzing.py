"""Mutated files for the readers: only our own errors may escape, quickly, in little memory."""

from __future__ import annotations

import os
import random
import resource
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from cortiq.errors import FormatError, UnsupportedError

ROUNDS = int(os.environ.get("CORTIQ_FUZZ", "3000"))
_ABSURD = [0, 1, 0x7F, 0xFF, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40]
_ABSURD += [(1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 64) - 8]


def mutate(data: bytes, random_: random.Random, pieces: list[bytes]) -> bytes:
    """One to three of: flip a bit, absurd number, cut, repeat, drop, or paste one of `pieces`."""
    changed = bytearray(data)
    for _ in range(random_.randint(1, 3)):
        at = random_.randrange(len(changed) + 1)
        kind = random_.randrange(7)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << random_.randrange(8)
        elif kind == 1:
            number = random_.choice(_ABSURD)
            form = "<Q" if number >> 32 else random_.choice(["<I", "<Q"])
            size = struct.calcsize(form)
            changed[at : at + size] = struct.pack(form, number)
        elif kind == 2 and random_.random() < 0.5:
            del changed[at:]
        elif kind == 3:
            length = random_.randrange(1, 64)
            changed[at:at] = changed[at : at + length]
        elif kind == 4:
            del changed[at : at + random_.randrange(1, 16)]
        elif kind == 5:
            piece = random_.choice(pieces)
            changed[at : at + len(piece)] = piece
        elif kind == 6:
            piece = random_.choice(pieces)
            changed[at:at] = piece
    return bytes(changed)


def outcomes(
    seeds: list[bytes],
    path: Path,
    read: Callable[[Path], None],
    pieces: list[bytes],
) -> Iterator[str]:
    """Write ROUNDS mutated files to `path` and read each; yield "read" or the error's name.

    Any exception but FormatError and UnsupportedError passes through, with the round in a note.
    """
    random_ = random.Random(20240607)
    for round_ in range(ROUNDS):
        data = mutate(random_.choice(seeds), random_, pieces)
        # A new file each time: shrinking one that is still mapped would kill the process.
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        try:
            read(path)
        except (FormatError, UnsupportedError) as error:
            yield type(error).__name__
        except BaseException as error:
            error.add_note(f"round {round_}: {data!r}")
            raise
        else:
            yield "read"


class memory_limit:
    """Allow this process that many MiB of address space more than it has now (Linux only)."""

    def __init__(self, mebibytes: int) -> None:
        self._extra = mebibytes << 20

    def __enter__(self) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        self._before = resource.getrlimit(resource.RLIMIT_AS)
        limit = pages * resource.getpagesize() + self._extra
        resource.setrlimit(resource.RLIMIT_AS, (limit, self._before[1]))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_AS, self._before)
