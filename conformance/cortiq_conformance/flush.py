"""Set flush-to-zero in the calling thread, as a library built with fast-math leaves it."""

from __future__ import annotations

import ctypes
import mmap
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

X86_FLUSH = 0x8040
"""FTZ and DAZ of MXCSR."""
ARM_FLUSH = 1 << 24
"""FZ of FPCR."""

# Each pair of routines reads the control register to, and writes it from, the first argument.
_ROUTINES = {
    ("x86_64", "Linux"): (b"\x0f\xae\x1f\xc3", b"\x0f\xae\x17\xc3", X86_FLUSH),
    ("aarch64", "Linux"): (
        bytes.fromhex("01443bd5010000b9c0035fd6"),
        bytes.fromhex("010040b901441bd5c0035fd6"),
        ARM_FLUSH,
    ),
}


def available() -> str | None:
    """Return why flush-to-zero cannot be set here, or None."""
    here = (platform.machine(), platform.system())
    return None if here in _ROUTINES else f"cannot set flush-to-zero on {' '.join(here)}"


def _routine(code: bytes) -> tuple[Callable[..., None], mmap.mmap]:
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_uint32))(address), page


def is_flushing() -> bool:
    """Return whether NumPy in this thread turns subnormal results into zero."""
    return not (np.full(64, 2.0**-100, np.float32) * np.float32(2.0**-40)).any()


@contextmanager
def flush_to_zero() -> Iterator[None]:
    """Set FTZ and DAZ in this thread, and restore them at the end.

    Raises
    ------
    OSError : it cannot be set on this machine.
    """
    reason = available()
    if reason:
        raise OSError(reason)
    load, store, bits = _ROUTINES[platform.machine(), platform.system()]
    (read, page), (write, other) = _routine(load), _routine(store)
    before = ctypes.c_uint32()
    read(ctypes.byref(before))
    write(ctypes.byref(ctypes.c_uint32(before.value | bits)))
    try:
        if not is_flushing():
            raise OSError("the processor did not accept flush-to-zero")
        yield
    finally:
        write(ctypes.byref(before))
        del page, other
