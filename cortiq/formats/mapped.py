"""Memory-mapped files and the tensor table that every reader fills."""

from __future__ import annotations

import mmap
import stat
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from cortiq.errors import FormatError, ModelNotFoundError
from cortiq.formats.lfs import MAX_POINTER_BYTES, refuse_pointer


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's type, shape and location in its file.

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


class MappedTensors:
    """Tensors by name over one or several mapped files; a context manager that closes itself.

    Attributes
    ----------
    path : the opened file or folder, for messages.
    paths : the mapped files; `TensorInfo.part` counts in this list.
    tensors : name -> TensorInfo.
    """

    def __init__(
        self,
        path: Path,
        paths: list[Path],
        tensors: dict[str, TensorInfo],
        buffers: list[mmap.mmap],
    ) -> None:
        self.path, self.paths, self.tensors = path, paths, tensors
        self._buffers = buffers

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the bytes of a tensor, read-only and not copied: uint8 [rows..., bytes of a row].

        A vector has shape [bytes]. The view stays valid after `close`.

        Raises
        ------
        FormatError : there is no such tensor, or the file is closed.
        """
        tensor = self.tensors.get(name)
        if tensor is None:
            raise FormatError(f"has no tensor {name!r}", where=str(self.path))
        if not self._buffers:
            raise FormatError("is closed", where=str(self.path))
        data = np.frombuffer(self._buffers[tensor.part], np.uint8, tensor.nbytes, tensor.offset)
        return data.reshape(*tensor.shape[:-1], tensor.row_bytes)

    def close(self) -> None:
        """Release the files; they are unmapped with the last view of a tensor."""
        self._buffers = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def map_file(path: Path) -> mmap.mmap:
    """Map a regular, non-empty file read-only.

    The map lives as long as something refers to it and is never closed explicitly, so that a view
    of a tensor cannot outlive its bytes. A file that shrinks while mapped kills the process:
    replace model files by renaming, never in place.

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
            refuse_pointer(path, file.read(MAX_POINTER_BYTES))
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
