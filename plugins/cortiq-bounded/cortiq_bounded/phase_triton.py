"""`PhaseFeatures` in Triton: imported when the backend computes the first batch with it."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl

from cortiq_bounded.phase import HIGH, LOW, TURN
from cortiq_triton.language import Tensor, kernel, launch
from cortiq_triton.scalar import snapped

BLOCK = 256


@kernel
def features(
    x: Tensor, out: Tensor, count: int, n: int, turn: float, BLOCK: tl.constexpr,
    HIGH: tl.constexpr, LOW: tl.constexpr
) -> None:  # fmt: skip
    """Cosines and sines of `count` angles, those of each n of them side by side."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    given = tl.load(x + at, mask=at < count, other=0.0)
    bits = given.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    t = magnitude.to(tl.float32, bitcast=True)
    small = t < 0.75
    shift = tl.maximum((magnitude >> 23).to(tl.int64) - 126, 0)
    mantissa = ((magnitude & 0x7FFFFF) | 0x800000).to(tl.int64)
    none = tl.full((BLOCK,), 0, tl.int64)
    word = ((none + HIGH) << shift) | ((none + LOW) >> (63 - shift))
    p = mantissa * word
    quarter = tl.where(small, 0, ((p + (1 << 61)) >> 62) & 3)
    rest = (p - (quarter << 62)) >> 32
    r = tl.where(small, t, rest.to(tl.float32) * turn)
    z = r * r
    s = ((-1.9515295891e-4 * z + 8.3321608736e-3) * z + -1.6666654611e-1) * z * r + r
    c = (2.443315711809948e-5 * z + -1.388731625493765e-3) * z + 4.166664568298827e-2
    c = (1.0 - 0.5 * z) + c * (z * z)
    odd = (quarter & 1) == 1
    cos = tl.where(odd, s, c)
    sin = tl.where(odd, c, s)
    cos = tl.where((quarter == 1) | (quarter == 2), -cos, cos)
    sin = tl.where((quarter >= 2) != (bits < 0), -sin, sin)
    place = at // n * 2 * n + at % n
    tl.store(out + place, snapped(cos), mask=at < count)
    tl.store(out + place + n, snapped(sin), mask=at < count)


def phase_features(call: Any, x: torch.Tensor) -> torch.Tensor:
    """Launches only: the backend may capture them in a graph and replay it."""
    n, count = call.op.width, x.numel()
    out = torch.empty((*x.shape[:-1], 2 * n), dtype=x.dtype, device=x.device)
    grid = (-(-count // BLOCK),)
    launch(features, grid, x, out, count, n, float(TURN), BLOCK=BLOCK, HIGH=HIGH, LOW=LOW)
    return out
