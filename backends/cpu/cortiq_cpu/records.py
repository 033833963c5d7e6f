"""Quantised rows as the kernels keep them: records (`native/cortiq_native.h`)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cortiq.numerics.quantise import Quantised
from cortiq_cpu.native import library
from cortiq_cpu.packing import aligned


def record_bytes(width: int) -> int:
    """Bytes of a record of `width` columns, a multiple of 64."""
    return library().cortiq_record_bytes(width)


def records_of(rows: Quantised) -> npt.NDArray[np.uint8]:
    """Quantised rows q [n, K], e [n] as records: uint8 [n, record bytes], 64-byte aligned."""
    count, width = rows.q.shape
    stride = record_bytes(width)
    records = aligned(count * stride).reshape(count, stride)
    records[:] = 0
    q = records[:, : 2 * width].view(np.int16)
    q[:] = rows.q
    blocks = (width + 31) // 32
    e = records[:, 88 * blocks : 88 * blocks + 4].view(np.int32)
    e[:, 0] = rows.e
    for record in records:
        library().cortiq_record_finish(record.ctypes.data, width)
    return records
