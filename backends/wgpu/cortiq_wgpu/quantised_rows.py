"""Quantised rows as the words that kernels read, and back."""

from __future__ import annotations

import numpy as np

from cortiq.numerics.quantise import Quantised
from cortiq_wgpu.block_offsets import record_words, units_of


def records_of(value: Quantised, shape: tuple[int, ...]) -> np.ndarray:
    """Write quantised rows as words."""
    width = shape[-1]
    units = units_of(width)
    q = np.asarray(value.q, np.int32).reshape(-1, width)
    padded = np.zeros((len(q), 16 * units), np.int32)
    padded[:, :width] = q
    high = (padded + 128) >> 8
    records = np.zeros((len(q), record_words(width)), np.uint32)
    for plane, part in enumerate((high, padded - (high << 8))):
        words = np.ascontiguousarray(part.astype(np.int8)).view(np.uint32)
        records[:, plane * 4 * units : (plane + 1) * 4 * units] = words
    sums = padded.reshape(len(q), units, 16).sum(axis=2, dtype=np.int32)
    records[:, 8 * units : 9 * units] = sums.view(np.uint32)
    records[:, -4] = np.asarray(value.e, np.int32).reshape(-1).view(np.uint32)
    return records.reshape(-1)


def quantised_of(words: np.ndarray, shape: tuple[int, ...]) -> Quantised:
    """Read quantised rows from words."""
    *lead, width = shape
    units = units_of(width)
    records = words.reshape(-1, record_words(width))
    planes = [
        np.ascontiguousarray(records[:, plane * 4 * units : (plane + 1) * 4 * units])
        .view(np.int8)[:, :width]
        .astype(np.int32)
        for plane in range(2)
    ]
    q = planes[0] * 256 + planes[1]
    e = records[:, -4].view(np.int32).reshape(lead).copy()
    return Quantised(q.reshape(shape), e if lead else e[()])
