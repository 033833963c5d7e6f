"""Arrays that may be larger than memory: small ones are held, large ones are mapped files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cortiq.errors import CortiqError

HELD_BYTES = 1 << 24
"""Largest array that is held in memory."""
PANEL = 256
"""Rows, or columns, of a large array that are worked on at a time."""


class ScratchArrays:
    """Room for arrays of a computation.

    Parameters
    ----------
    folder : where the files of large ones lie, the system's folder for temporary files if None.
        They have no name there: nothing is left of them when the process ends, however it does.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = Path(tempfile.gettempdir()) if folder is None else folder

    def zeros(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray:
        """Return an array of zeros; `CortiqError` if the disk has no room for it."""
        size = prod(shape) * np.dtype(dtype).itemsize
        if size <= HELD_BYTES:
            return np.zeros(shape, dtype)
        free = shutil.disk_usage(self.folder).free
        if size > free:
            what = f"needs {size} bytes for a while, {free} are free"
            raise CortiqError(what, where=str(self.folder), hint="free some, or go elsewhere")
        with tempfile.TemporaryFile(dir=self.folder) as file:
            file.truncate(size)
            return np.memmap(file, dtype, "r+", shape=shape)


def panels(size: int, most: int = 0) -> Iterator[slice]:
    """Yield the slices of `most` rows or columns that make up so many; of `PANEL` if it is 0."""
    step = most or PANEL
    for start in range(0, size, step):
        yield slice(start, min(start + step, size))
