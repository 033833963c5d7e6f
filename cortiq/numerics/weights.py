"""Float weights to integer codes: w8, w16 and w8b256, in row slices of bounded memory."""

from __future__ import annotations

import numpy as np

from cortiq.errors import UnsupportedError
from cortiq.numerics.contract import F32, Floats, Ints, magnitude_bits, snap
from cortiq.numerics.layouts import F32_LAYOUT, LAYOUTS, W16, Layout, Weight, floats
from cortiq.numerics.quantise import planes

CODE_LIMITS = {"w8": 127, "w8b256": 127, "w16": 32512}
"""Largest |code| of the layouts a float weight can be converted to; `f32` is the fourth."""
SLICE_ELEMENTS = 1 << 22
"""Elements converted in one step: 16 MiB of float32."""


def block_scales(values: Floats, block: int, limit: int) -> Floats:
    """Return s = snap(RN(amax/limit)) of each block of each row: float32 [n, ⌈K/block⌉].

    A block whose scale would be below 2⁻⁴⁰ gets +0, and its codes are 0.
    """
    starts = np.arange(0, values.shape[1], block)
    amax = np.maximum.reduceat(magnitude_bits(values), starts, axis=1).view(F32)
    return snap(amax / F32(limit))


def block_codes(values: Floats, scale: Floats, block: int, limit: int) -> Ints:
    """Return clip(rint(RN(w/s)), ±limit), half to even; 0 for s = 0: int32 [n, K]."""
    scale = np.repeat(scale, block, axis=1)[:, : values.shape[1]]
    ratio = values / np.where(scale > 0, scale, F32(1))
    codes = np.clip(np.rint(ratio), F32(-limit), F32(limit)).astype(np.int32)
    return np.where(scale > 0, codes, np.int32(0))


def _empty(layout: Layout, shape: tuple[int, int]) -> Weight:
    rows, columns = shape
    blocks = -(-columns // (layout.block or columns))
    names = ("hi", "lo") if layout is W16 else ("codes",)
    parts = {name: np.empty(shape, np.int8) for name in names}
    return Weight(layout, shape, {**parts, "scale": np.empty((rows, blocks), F32)})


def _store(weight: Weight, start: int, codes: Ints, scale: Floats) -> None:
    cut = slice(start, start + len(codes))
    weight.parts["scale"][cut] = scale
    if weight.layout is W16:
        weight.parts["hi"][cut], weight.parts["lo"][cut] = planes(codes)
    else:
        weight.parts["codes"][cut] = codes


def convert(source: Weight, target: str, name: str) -> Weight:
    """Convert a float weight (F32, F16, BF16) to `target`: w8, w16, w8b256 or f32.

    Per row (w8, w16) or per 256 columns (w8b256, the last block may be shorter), after snap of w:
    s = snap(RN(amax/limit)), limit 127 or 32512; code = clip(rint(RN(w/s)), ±limit). The error of
    an element is at most s/2 + |w|·2⁻²³; where s is +0, all |w| are below limit·2⁻⁴⁰. The result
    does not depend on how rows are sliced.

    Raises
    ------
    FormatError : a value is not finite, or 2⁵⁰ or more; it names the tensor and the row.
    UnsupportedError : `target` is not one of the four.
    """
    if target not in (*CODE_LIMITS, "f32"):
        offered = ", ".join((*CODE_LIMITS, "f32"))
        raise UnsupportedError(
            f"weights are not converted to {target!r}", where=name, hint=f"Choose from {offered}."
        )
    rows, columns = source.shape
    step = max(1, SLICE_ELEMENTS // columns)
    if target == "f32":
        result = Weight.from_bytes(F32_LAYOUT, np.empty(rows * columns * 4, np.uint8), source.shape)
    else:
        result = _empty(LAYOUTS[target], source.shape)
    for start in range(0, rows, step):
        values = floats(source.rows(start, min(start + step, rows)), name)
        if target == "f32":
            result.parts["raw"][start : start + step] = values.astype("<f4").view(np.uint8)
            continue
        limit, block = CODE_LIMITS[target], result.layout.block or columns
        scale = block_scales(values, block, limit)
        _store(result, start, block_codes(values, scale, block, limit), scale)
    return result
