"""Running single ops of the CPU backend's native core on NumPy arrays.

Tests that import this are skipped where the core isn't built (the package installs without a
compiler; then its tests have nothing to run).
"""

from __future__ import annotations

import contextlib
from functools import cache

import numpy as np
import pytest
from floats import flush_to_zero

from cortiq.errors import BackendError
from cortiq.numerics.quantise import Quantised

native = pytest.importorskip("cortiq_cpu.native", exc_type=ImportError)
args = pytest.importorskip("cortiq_cpu.arguments", exc_type=ImportError)

try:
    ISAS = native.supported_isas()
except BackendError as error:
    pytest.skip(str(error), allow_module_level=True)

PATHS = [
    pytest.param((isa, threads, flushed), id=f"{isa}-{threads}{'-ftz' * flushed}")
    for isa in ISAS
    for threads, flushed in ((1, False), (2, False), (2, True))
]
"""(isa, threads, flushed): every instruction set of this machine, on one thread and on two, and
with subnormals flushed to zero in every thread."""

address, aligned_zeros = args.address, args.aligned_zeros


@cache
def _pool(isa, threads, flushed):
    """Threads inherit the control word of the thread that starts them."""
    with flush_to_zero() if flushed else contextlib.nullcontext():
        return native.ThreadPool(threads, isa)


def run_ops(path, rows, *ops):
    """Run (kind, struct) ops in order on a path of `PATHS`; the rows' fault flags."""
    flags = np.zeros(rows, np.uint8)
    count = np.array([rows], np.int32)
    listed = [
        native.NativeOp(kind, 0, address(count), address(flags), args.ctypes.addressof(struct))
        for kind, struct in ops
    ]
    with flush_to_zero() if path[2] else contextlib.nullcontext():
        _pool(*path).run(native.op_list(listed), len(listed))
    return flags.astype(bool)


def record_buffer(count, width):
    """Room for `count` records, filled with ones: what a kernel doesn't write shows."""
    stride = native.library().cortiq_record_bytes(width)
    buffer = aligned_zeros(count * stride)
    buffer[:] = 1
    return buffer.reshape(count, stride)


def _exponents(buffer, width):
    """The bytes of e in records; see cortiq_native.h."""
    at = 88 * -(-width // 32)
    return buffer[:, at : at + 4]


def read_rows(buffer, width):
    """`Quantised` rows of records whose padding and sums need not be filled in."""
    e = np.ascontiguousarray(_exponents(buffer, width)).view(np.int32)[:, 0]
    return Quantised(buffer[:, : 2 * width].view(np.int16).astype(np.int32), e)


def read_records(buffer, width):
    """`Quantised` rows of finished records: what else they hold is what finishing again gives."""
    again = buffer.copy()
    again[:, 2 * width :] = 7
    _exponents(again, width)[:] = _exponents(buffer, width)
    for row in again:
        native.library().cortiq_record_finish(address(row), width)
    at = 88 * -(-width // 32)
    assert np.array_equal(again[:, :at], buffer[:, :at])
    return read_rows(buffer, width)


def write_records(rows):
    """Finished records of `Quantised` rows [..., width]."""
    width = rows.q.shape[-1]
    q, e = rows.q.reshape(-1, width), rows.e.reshape(-1)
    buffer = record_buffer(len(q), width)
    buffer[:, : 2 * width].view(np.int16)[:] = q
    _exponents(buffer, width)[:] = np.ascontiguousarray(e, np.int32).view(np.uint8).reshape(-1, 4)
    for row in buffer:
        native.library().cortiq_record_finish(address(row), width)
    return buffer
