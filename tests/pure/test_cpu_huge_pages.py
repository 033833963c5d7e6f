"""Slabs of packed weights: arrays apart from each other, given back when none is left."""

import gc
import mmap
import weakref
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cortiq_cpu")
from cortiq_cpu.huge_pages import ALIGNMENT, LEAST_BYTES, MOST_BYTES, SLAB_BYTES, Slabs

pytestmark = pytest.mark.skipif(
    not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system has no large pages"
)


def test_arrays_lie_apart_and_aligned():
    slabs, sizes = Slabs(), [LEAST_BYTES + 1, MOST_BYTES - 1, LEAST_BYTES, 1_000_003] * 12
    arrays = [slabs.take(size) for size in sizes]
    assert sum(sizes) > SLAB_BYTES  # so that more than one slab is taken
    for number, (array, size) in enumerate(zip(arrays, sizes, strict=True)):
        assert len(array) == size and array.ctypes.data % ALIGNMENT == 0
        array[:] = number
    for number, array in enumerate(arrays):
        assert np.all(array == number)


def test_small_and_large_arrays_are_left_to_others():
    slabs = Slabs()
    assert slabs.take(LEAST_BYTES - 1) is None
    assert slabs.take(MOST_BYTES) is None


def test_a_slab_lives_as_long_as_an_array_in_it():
    slabs = Slabs()
    first = slabs.take(LEAST_BYTES)
    slab = weakref.ref(first.base)
    others = [slabs.take(MOST_BYTES - 1) for _ in range(SLAB_BYTES // MOST_BYTES + 1)]
    del others
    gc.collect()
    assert slab() is not None
    first[:] = 1
    del first
    gc.collect()
    assert slab() is None


def test_slabs_are_private_memory():
    """The system gives shared memory no large pages, whatever is asked for."""
    array = Slabs().take(LEAST_BYTES)
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, *_ = line.split()
        start, stop = (int(part, 16) for part in span.split("-"))
        if start <= array.ctypes.data < stop:
            assert rights == "rw-p"
            return
    raise AssertionError("the array is in no mapping")
