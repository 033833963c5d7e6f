"""Weights to our formats, w4, w4-5, w8, w8b256, w16 and f32, in row slices of bounded memory.

`w4` is blocks that have layouts already: Q4_K, whose blocks of 32 have integer scales and minima
under two floats for 256 columns, and Q4_1 for rows that are no whole blocks of 256 (`four_bits`).
`w4-5` gives such rows five bits instead, Q5_0.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from cortiq.errors import UnsupportedError
from cortiq.numerics.contract import F32, Floats, Ints, magnitude_bits, snap
from cortiq.numerics.dequantise import dequantise_codes
from cortiq.numerics.four_bits import BLOCKS, four_bit_rows
from cortiq.numerics.layouts import F32_LAYOUT, LAYOUTS, W16, WORDS, Layout, Weight, decode, floats
from cortiq.numerics.quantise import planes
from cortiq.numerics.unpacked_weights import Bytes

CODE_LIMITS = {"w8": 127, "w8b256": 127, "w16": 32512}
"""Largest |code| of the layouts of one float a row or block that a weight can be converted to."""
SEARCHED = {"w4": ("Q4_K", "Q4_1"), "w4-5": ("Q4_K", "Q5_0")}
"""Layouts of formats whose codes are searched for, the first that a row is whole blocks of; `w8`
for rows of neither."""
TARGETS = (*SEARCHED, *CODE_LIMITS, "f32")
"""Formats that a weight can be converted to."""
SLICE_ELEMENTS = 1 << 22
"""Elements converted in one step: 16 MiB of float32."""
SEARCH_ELEMENTS = 1 << 16
"""The same where many passes are made over them: they stay in a cache."""


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


def target_layout(target: str, columns: int, name: str = "weight") -> Layout:
    """Return the layout that a matrix of so many columns gets in a format.

    Raises
    ------
    UnsupportedError : there is no such format.
    """
    if target not in TARGETS:
        hint = f"Choose from {', '.join(TARGETS)}."
        raise UnsupportedError(f"weights are not converted to {target!r}", where=name, hint=hint)
    if target in SEARCHED:
        whole = (layout for layout in SEARCHED[target] if columns % LAYOUTS[layout].block == 0)
        return LAYOUTS[next(whole, "w8")]
    return F32_LAYOUT if target == "f32" else LAYOUTS[target]


def weight_values(source: Weight, name: str) -> Floats:
    """Return every element as float32 [N, K], snapped; errors as `unpack`."""
    if source.layout.kind == "float":
        return floats(source, name)
    return dequantise_codes(decode(source, name))


def convert(source: Weight, target: str, name: str) -> Weight:
    """Convert a weight, of floats or of codes, to a format: one of `TARGETS`.

    Per row (w8, w16) or per 256 columns (w8b256, the last block may be shorter), after snap of w:
    s = snap(RN(amax/limit)), limit 127 or 32512; code = clip(rint(RN(w/s)), ±limit). The error of
    an element is at most s/2 + |w|·2⁻²³; where s is +0, all |w| are below limit·2⁻⁴⁰. For w4 see
    `four_bits`. The result does not depend on how rows are sliced; a weight that is already in the
    target's layout is returned as it is.

    Raises
    ------
    FormatError : a value is not finite, or 2⁵⁰ or more; it names the tensor and the row.
    UnsupportedError : there is no such format, or values are too large for its f16 scales.
    """
    layout = target_layout(target, source.shape[1], name)
    if source.layout is layout and layout.kind != "float":
        return source
    rows, columns = source.shape
    result = _empty(layout, source.shape)
    step = max(1, (SEARCH_ELEMENTS if layout.name in BLOCKS else SLICE_ELEMENTS) // columns)
    for start in range(0, rows, step):
        part = source.rows(start, min(start + step, rows))
        _store(result, start, weight_values(part, name), name)
    return result


def in_layout(values: Floats, layout: str, name: str) -> Weight:
    """Return a matrix in the layout that another weight has.

    Raises
    ------
    UnsupportedError : nothing converts to that layout.
    """
    made, wanted = Weight.from_floats(values), LAYOUTS[layout]
    if wanted.kind == "float":
        return made
    for target in TARGETS:
        if target_layout(target, values.shape[1], name) is wanted:
            return convert(made, target, name)
    what = f"{name} is in {layout}, to which no other matrix is converted"
    raise UnsupportedError(what, where="overlay", hint="load the model with weight_format='w8'")


def _empty(layout: Layout, shape: tuple[int, int]) -> Weight:
    """Return room for a weight."""
    rows, columns = shape
    if layout.kind != "parts":
        size = (rows, layout.row_bytes(columns))
        return Weight(layout, shape, {"raw": np.empty(size, np.uint8)})
    blocks = -(-columns // (layout.block or columns))
    names = ("hi", "lo") if layout is W16 else ("codes",)
    parts = {name: np.empty(shape, np.int8) for name in names}
    return Weight(layout, shape, {**parts, "scale": np.empty((rows, blocks), F32)})


def _store(weight: Weight, start: int, values: Floats, name: str) -> None:
    """Convert rows and put them in their place."""
    layout, cut = weight.layout, slice(start, start + len(values))
    if layout is F32_LAYOUT:
        weight.parts["raw"][cut] = values.astype("<f4").view(np.uint8)
    elif layout.name in BLOCKS:
        weight.parts["raw"][cut] = _four_bits(layout, values, name)
    else:
        limit, block = CODE_LIMITS[layout.name], layout.block or values.shape[1]
        scale = weight.parts["scale"][cut] = block_scales(values, block, limit)
        codes = block_codes(values, scale, block, limit)
        if layout is W16:
            weight.parts["hi"][cut], weight.parts["lo"][cut] = planes(codes)
        else:
            weight.parts["codes"][cut] = codes


def _four_bits(layout: Layout, values: Floats, name: str) -> Bytes:
    """Return rows of a layout of `four_bits`; `UnsupportedError` if a scale is beyond f16."""
    raw = four_bit_rows(layout.name, values)
    refuse_large(layout, raw, values, name)
    return raw


def refuse_large(layout: Layout, raw: Bytes, values: Floats, name: str) -> None:
    """Raise UnsupportedError if a scale or minimum of rows became an infinity."""
    blocks = raw.reshape(-1, layout.block_bytes)
    words = np.concatenate([blocks[:, at : at + 2].view("<i2") for at in layout.scales_at])
    if int((words & 0x7FFF).max(initial=0)) >= WORDS["f16"][1]:
        refuse_scales(values, name)


def refuse_scales(values: Floats, name: str) -> NoReturn:
    """Raise UnsupportedError: f16 has no scale for rows of such values."""
    what = f"holds values up to {np.abs(values).max():g}, too large for the scales of w4"
    raise UnsupportedError(what, where=name, hint="Choose w8 or w16 for this matrix.")
