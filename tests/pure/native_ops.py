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
        return native.Pool(threads, isa)


def run_ops(path, rows, *ops):
    """Run (kind, struct) ops in order on a path of `PATHS`; the rows' fault flags."""
    flags = np.zeros(rows, np.uint8)
    count = np.array([rows], np.int32)
    listed = [
        native.Op(kind, 0, address(count), address(flags), args.ctypes.addressof(struct))
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


def read_records(buffer, width):
    """`Quantised` rows of records, their padding checked to be zero."""
    padded = -(-width // 32) * 32
    q = buffer[:, : 2 * padded].view(np.int16)
    assert not q[:, width:].any()
    at = 4 * padded + padded // 16 * 4
    e = np.ascontiguousarray(buffer[:, at : at + 4]).view(np.int32)[:, 0]
    return Quantised(q[:, :width].astype(np.int32), e)


def write_records(rows):
    """Records of `Quantised` rows [..., width]; planes and sums filled in."""
    width = rows.q.shape[-1]
    q, e = rows.q.reshape(-1, width), rows.e.reshape(-1)
    buffer = record_buffer(len(q), width)
    buffer[:] = 0
    padded = -(-width // 32) * 32
    buffer[:, : 2 * width].view(np.int16)[:] = q
    at = 4 * padded + padded // 16 * 4
    buffer[:, at : at + 4] = np.ascontiguousarray(e, np.int32).view(np.uint8).reshape(-1, 4)
    for row in buffer:
        native.library().cortiq_record_planes(address(row), width, 0)
    return buffer
