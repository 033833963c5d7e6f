"""Memory of packed weights in large pages of the system, where it has them.

A step reads every weight once, so a page of 4 KiB costs a translation for each 64 lines of memory.
NumPy asks for large pages for arrays of 4 MiB and more; most matrices are smaller, so that they lie
together here.
"""

from __future__ import annotations

import mmap
import threading

import numpy as np
import numpy.typing as npt

SLAB_BYTES = 1 << 25
LEAST_BYTES, MOST_BYTES = 1 << 16, 1 << 22
"""Smaller arrays don't matter, larger ones get large pages anyway."""
ALIGNMENT = 64


class Slabs:
    """Arrays side by side in slabs; a slab lives as long as an array in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slab = np.empty(0, np.uint8)
        self._used = 0

    def take(self, nbytes: int) -> npt.NDArray[np.uint8] | None:
        """Return a uint8 array at a multiple of 64 bytes; None: the system has no large pages, or
        the array is too small or too large for a slab.
        """
        advice = getattr(mmap, "MADV_HUGEPAGE", None)
        if advice is None or not LEAST_BYTES <= nbytes < MOST_BYTES:
            return None
        with self._lock:
            if self._used + nbytes > len(self._slab):
                # Python maps shared memory unless told otherwise, and that has no large pages.
                private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
                memory = mmap.mmap(-1, SLAB_BYTES, flags=private)
                try:
                    memory.madvise(advice)
                except OSError:  # a kernel built without them
                    return None
                self._slab, self._used = np.frombuffer(memory, np.uint8), 0
            start = self._used
            self._used = -(-(start + nbytes) // ALIGNMENT) * ALIGNMENT
            return self._slab[start : start + nbytes]


SLABS = Slabs()
"""Those of this process."""
