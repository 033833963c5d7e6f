"""The search for four-bit codes of llama.cpp's Q4_K and Q4_1, written from its description.

A block of 32 with weights w: of 21 step counts from 14 to 16 the codes, then scale and minimum of
weighted least squares, kept where the weighted error is least; for Q4_K the weights are |x| plus
the block's root mean square, and scales and minima become six bits by their largest. Q4_1 takes the
block's least and largest value.
"""

from __future__ import annotations

import gguf
import numpy as np

from cortiq.numerics.contract import Floats
from cortiq.numerics.four_bit_packing import pack_q4_k
from cortiq.numerics.unpacked_weights import Bytes

STEPS = 15.0 + np.arange(-10, 11) / 10


def _searched(x: Floats, w: Floats) -> tuple[np.ndarray, np.ndarray]:
    """Return scale and minimum (taken off) of blocks [n, 32]."""
    low, high = np.minimum(x.min(-1), 0), x.max(-1)
    span = np.where(high > low, high - low, 1)
    sw, sx = w.sum(-1), (w * x).sum(-1)
    codes = np.clip(np.rint(15 / span[:, None] * (x - low[:, None])), 0, 15)
    scale, least = span / 15, low.copy()
    best = (w * (scale[:, None] * codes + least[:, None] - x) ** 2).sum(-1)
    for steps in STEPS:
        codes = np.clip(np.rint(steps / span[:, None] * (x - low[:, None])), 0, 15)
        c, cc, cx = (w * codes).sum(-1), (w * codes**2).sum(-1), (w * codes * x).sum(-1)
        spread = sw * cc - c * c
        safe = np.where(spread > 0, spread, 1)
        s, m = (sw * cx - c * sx) / safe, (cc * sx - c * cx) / safe
        s = np.where(m > 0, cx / np.where(cc > 0, cc, 1), s)
        m = np.minimum(m, 0)
        error = (w * (s[:, None] * codes + m[:, None] - x) ** 2).sum(-1)
        better = (spread > 0) & (error < best)
        best = np.where(better, error, best)
        scale, least = np.where(better, s, scale), np.where(better, m, least)
    flat = high <= low
    return np.where(flat, 0, scale), -np.where(flat, low, least)


def q4_k(values: Floats) -> Bytes:
    """Return rows [n, K] as Q4_K, uint8 [n, K/256·144]."""
    x = values.reshape(-1, 32)
    weights = np.sqrt((x * x).mean(-1))[:, None] + np.abs(x)
    scale, least = (part.reshape(-1, 8) for part in _searched(x, weights))
    d, dmin = ((part.max(1) / 63).astype("<f2") for part in (scale, least))
    six = [
        np.minimum(np.rint(part * (63 / np.maximum(part.max(1, keepdims=True), 1e-30))), 63)
        for part in (scale, least)
    ]
    a, b = (unit.astype("f4")[:, None] * part for unit, part in zip((d, dmin), six, strict=True))
    blocks = x.reshape(-1, 8, 32)
    codes = np.rint((blocks + b[..., None]) / np.where(a > 0, a, 1)[..., None])
    codes = np.where(a[..., None] > 0, np.clip(codes, 0, 15), 0)
    halves = [unit[:, None].view(np.uint8).reshape(-1, 2) for unit in (d, dmin)]
    parts = [part.astype(np.uint8) for part in six]
    return pack_q4_k(halves, parts, codes.reshape(len(blocks), -1)).reshape(len(values), -1)


def q4_1(values: Floats) -> Bytes:
    """Return rows [n, K] as Q4_1, uint8 [n, K/32·20]."""
    return gguf.quantize(values, gguf.GGMLQuantizationType.Q4_1).view(np.uint8)


def q5_0(values: Floats) -> Bytes:
    """Return rows [n, K] as Q5_0, uint8 [n, K/32·22]."""
    return gguf.quantize(values, gguf.GGMLQuantizationType.Q5_0).view(np.uint8)
