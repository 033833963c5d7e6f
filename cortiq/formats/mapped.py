"""Memory-mapped files and the tensor table that every reader fills."""

from __future__ import annotations

import mmap
import stat
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from cortiq.errors import FormatError, ModelNotFoundError


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies.

    Attributes
    ----------
    name : name in the file.
    shape : elements, outermost axis first; the last axis is contiguous.
    type : storage type, named as GGUF names them: "F32", "BF16", "Q4_1", ...
    part : index of the file that holds it.
    offset : its first byte in that file.
    nbytes : its size in bytes.
    row_bytes : bytes of one run along the last axis.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    part: int
    offset: int
    nbytes: int
    row_bytes: int


def map_file(path: Path) -> mmap.mmap:
    """Map a regular, non-empty file read-only.

    The map lives as long as something refers to it; nobody closes it by hand, so that a view of a
    tensor can never outlive its bytes. A file that shrinks while mapped kills the process: replace
    model files by renaming, never in place.

    Raises
    ------
    ModelNotFoundError : there is no such file.
    FormatError : it is empty, unreadable, or not a regular file.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise FormatError("is not a regular file", where=str(path))
        if status.st_size == 0:
            raise FormatError("is empty", where=str(path))
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelNotFoundError("no such file", where=str(path)) from None
    except (OSError, ValueError) as error:
        raise FormatError(f"cannot be read: {error}", where=str(path)) from None


def refuse_overlaps(tensors: list[TensorInfo], path: Path) -> None:
    """Raise FormatError when two tensors of one file share a byte."""
    ordered = sorted(tensors, key=lambda tensor: tensor.offset)
    for before, after in pairwise(ordered):
        if before.offset + before.nbytes > after.offset:
            message = f"tensors {before.name!r} and {after.name!r} overlap at byte {after.offset}"
            raise FormatError(message, where=str(path))
