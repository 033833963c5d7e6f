"""Matmul and attention in WGSL: how operands are packed into at most eight storage buffers."""

from __future__ import annotations

import numpy as np

from stacks.base import Array
from stacks.wgsl_device import Device, source

F32 = np.float32


def packed(*planes: Array) -> Array:
    """int8 planes [..., K] one after the other, rows padded with zeros to whole words."""
    stacked = np.stack(planes)
    padding = [(0, 0)] * (stacked.ndim - 1) + [(0, -stacked.shape[-1] % 4)]
    return np.ascontiguousarray(np.pad(stacked, padding))


def matmul(
    device: Device, high: Array, low: Array, e: Array, codes: Array, scale: Array, offsets: Array,
    minimum: Array, *, block: int, sub: int,
) -> Array:  # fmt: skip
    """Activation planes [M, K] times code planes [1 or 2, N, K]; offsets only if sub > 0."""
    q, weight = packed(high, low), packed(*codes)
    rows, columns, width = len(high), codes.shape[1], q.shape[-1] // 4
    inputs = {
        "q": q,
        "exponent": e,
        "codes": weight,
        "scales": np.stack([scale, minimum if sub else scale]),
        "offsets": offsets,
    }
    blocks, words = scale.shape[1], -(-block // 4)
    parameters = (rows, columns, width, words, blocks, len(codes), sub // 4)
    groups = -(-rows * columns // 64)
    outputs = {"out": ((rows, columns), F32)}
    (out,) = device.dispatch(source("matmul"), parameters, inputs, outputs, groups)
    return out


def attention(
    device: Device, q_high: Array, q_low: Array, q_exponent: Array, k_high: Array, k_low: Array,
    k_exponent: Array, v_high: Array, v_low: Array, v_exponent: Array, positions: Array,
    sink: Array, factors: Array, *, window: int,
) -> Array:  # fmt: skip
    """Queries [T, H, Dk] over a cache [S, G, Dk], [S, G, Dv]; a sink of no elements means none."""
    (t, h, dk), (s, g, dv) = q_high.shape, v_high.shape
    exponents = np.concatenate([e.ravel() for e in (q_exponent, k_exponent, v_exponent)])
    inputs = {
        "q": packed(q_high, q_low),
        "k": packed(k_high, k_low),
        "v": packed(v_high, v_low),
        "exponents": exponents,
        "positions": positions,
        "sink": sink,
    }
    parameters = (t, h, s, g, dk // 4, dv // 4, window, int(sink.size > 0), *factors)
    outputs = {"out": ((t, h, dv), F32)}
    (out,) = device.dispatch(source("attention"), parameters, inputs, outputs, t * h)
    return out
