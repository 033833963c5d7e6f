"""Quantised rows as the kernels keep them: records (`native/cortiq_native.h`)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cortiq.numerics.quantise import Quantised
from cortiq_cpu.native import library
from cortiq_cpu.packing import aligned

Bytes = npt.NDArray[np.uint8]


def record_bytes(width: int) -> int:
    """Return the bytes of a record of `width` columns, a multiple of 64."""
    return library().cortiq_record_bytes(width)


def records_of(rows: Quantised) -> Bytes:
    """Write quantised rows q [n, K], e [n] as records: uint8 [n, record bytes], 64-byte aligned."""
    count, width = rows.q.shape
    records = aligned(count * record_bytes(width))
    write_records(records, rows, width)
    return records.reshape(count, -1)


def write_records(buffer: Bytes, rows: Quantised, width: int) -> None:
    """Fill a buffer with the records of quantised rows."""
    records = buffer.reshape(-1, record_bytes(width))
    records[:] = 0
    records[:, : 2 * width].view(np.int16)[:] = np.asarray(rows.q).reshape(-1, width)
    _exponents(records, width)[:] = np.asarray(rows.e).reshape(-1)
    for record in records:
        library().cortiq_record_finish(record.ctypes.data, width)


def read_records(buffer: Bytes, shape: tuple[int, ...]) -> Quantised:
    """Read quantised rows of this shape from a buffer."""
    *lead, width = shape
    records = buffer.reshape(-1, record_bytes(width))
    q = records[:, : 2 * width].view(np.int16).astype(np.int32)
    return Quantised(q.reshape(shape), _exponents(records, width).reshape(lead).copy()[()])


def _exponents(records: Bytes, width: int) -> npt.NDArray[np.int32]:
    at = library().cortiq_record_exponent_at(width)
    return records[:, at : at + 4].view(np.int32)[:, 0]
