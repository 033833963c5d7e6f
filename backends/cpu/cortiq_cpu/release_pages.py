"""Release of a mapped file's pages once its weights are packed, lest a model take memory twice."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt


def _owner(array: Any) -> Any:
    """Return the object that owns a view's memory."""
    while isinstance(array, np.ndarray | memoryview):
        array = array.base if isinstance(array, np.ndarray) else array.obj
    return array


def release_pages(array: npt.NDArray[Any]) -> None:
    """Let the system drop the pages of a view of a mapped file; they are read again if needed.

    Only whole pages go, and nothing happens to arrays that are not a file's.
    """
    owner = _owner(array)
    if not isinstance(owner, mmap.mmap) or not hasattr(owner, "madvise"):
        return
    base = np.frombuffer(owner, np.uint8, 1).ctypes.data
    first = array.ctypes.data - base
    start = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
    stop = (first + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if stop > start:
        owner.madvise(mmap.MADV_DONTNEED, start, stop - start)
