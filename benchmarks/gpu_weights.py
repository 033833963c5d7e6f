"""Weights for `benchmarks/gpu_products.py` with scales as other programs' files have them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cortiq.numerics.contract import F32
from cortiq.numerics.groupquants import E4M3_VALUES
from cortiq.numerics.layouts import Weight
from cortiq.numerics.synthetic import synthetic_weight


@dataclass(frozen=True)
class FileFormat:
    """A format of files: our layout, columns under a scale, and bits that a weight takes there.

    rows : rows under a scale. eight : whether the scale is an E4M3 number times one of the matrix.
    zero : whether a minimum −z·scale goes with it.
    """

    layout: str
    columns: int
    bits: float
    rows: int = 1
    eight: bool = False
    zero: bool = False


STORED = {
    "FP8 blocks of 128": FileFormat("e4m3b32", 128, 8 + 32 / 128**2, rows=128),
    "NVFP4": FileFormat("e2m1b16", 16, 4.5, eight=True),
    "INT4 groups of 128": FileFormat("i4b32", 128, 4 + 16 / 128),
    "AWQ INT4 groups of 128": FileFormat("i4b32m", 128, 4 + 20 / 128, zero=True),
}


def stored_weight(name: str, rows: int, columns: int) -> Weight:
    """Return random codes under the scales of a format."""
    how = STORED[name]
    weight = synthetic_weight(how.layout, "weight", 1, (rows, columns))
    size, block = weight.layout.block_bytes, weight.layout.block
    raw = weight.parts["raw"].reshape(rows, -1, size).copy()
    rng = np.random.default_rng(1)
    shape = (-(-rows // how.rows), columns // how.columns)
    if how.eight:
        scale = E4M3_VALUES[rng.integers(64, 120, shape)].astype(F32) * F32(0.0123 / 2**17)
    else:
        scale = (rng.uniform(1, 2, shape) / 2**12).astype(np.float16).astype(F32)
    scale = np.repeat(scale, how.rows, axis=0)[:rows]
    scale = np.repeat(scale, how.columns // block, axis=1)
    raw[..., :4] = scale.astype("<f4")[..., None].view(np.uint8)
    if how.zero:
        zero = np.repeat(rng.integers(0, 16, shape), how.columns // block, axis=1).astype(F32)
        raw[..., 4:8] = (-scale * zero).astype("<f4")[..., None].view(np.uint8)
    return Weight.from_bytes(weight.layout, raw.reshape(rows, -1), (rows, columns))
