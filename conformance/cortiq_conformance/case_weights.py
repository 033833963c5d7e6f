"""Weights of cases: every layout, with the codes and scales that break decoders."""

from __future__ import annotations

import numpy as np

from cortiq.numerics.contract import F32
from cortiq.numerics.layouts import LAYOUTS, W16, Layout, Weight
from cortiq.numerics.synthetic import BLOCK_RECIPES, field_of, put_field, synthetic_weight
from cortiq_conformance.case_data import CaseData

BLOCK_LAYOUTS = tuple(BLOCK_RECIPES)
OUR_LAYOUTS = ("w8", "w16", "w8b256")
CODE_LAYOUTS = (*OUR_LAYOUTS, *BLOCK_LAYOUTS)
MATRIX_LAYOUTS = (*CODE_LAYOUTS, "f32")
"""Every layout a matrix can have in a program."""

FLOAT_SCALED = tuple(name for name in BLOCK_LAYOUTS if LAYOUTS[name].words == "f32")
"""Layouts of blocks whose scales are float32."""
GRIDS = (
    "IQ4_XS", "IQ3_XXS", "IQ3_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0",
)  # fmt: skip
LAYER_LAYOUTS = tuple(name for name in MATRIX_LAYOUTS if name not in (*FLOAT_SCALED, *GRIDS))
"""Layouts that cases of layers take in turn: which one each takes is part of its name."""

CODE_BYTES = (0x00, 0xFF, 0x0F, 0xF0, 0x80, 0x7F)
HALF_SCALES = (0x0000, 0x0001, 0x03FF, 0x0400, 0x8001, 0xBC00, 0x3C00)
"""f16 scales: zero, subnormals, the smallest normal, negative ones, 1."""
FLOAT_SCALES = (0.0, -(2.0**-41), 2.0**-40, 3e-8, -(2.0**-14), -1.0, 1.0)
"""float32 scales: zero, below and at the least, some that no f16 holds, negative ones, 1."""
EXPONENT_SCALES = (80, 100, 127, 160, 90, 110, 127)
"""MXFP4 scales 2^(b − 127)."""


def typical(source: CaseData, layout: str, rows: int, columns: int) -> Weight:
    """Make random codes whose products stay near the size of the rows."""
    seed = int(source.words(1)[0])
    return synthetic_weight(layout, "weight", seed, (rows, columns))


def uneven(source: CaseData, layout: str, rows: int, columns: int) -> Weight:
    """Make weights as `typical`, with varying powers of two as block scales: their sums round."""
    weight = typical(source, layout, rows, columns)
    if layout not in ("MXFP4", *FLOAT_SCALED):
        return weight
    blocks = weight.parts["raw"].reshape(rows, columns // weight.layout.block, -1).copy()
    powers = source.integers(0, 9, *blocks.shape[:2])
    at = BLOCK_RECIPES[layout].scale_at
    if layout == "MXFP4":
        blocks[..., at] += powers.astype(np.uint8)
    else:
        scales = blocks[..., at : at + 4].view("<f4")[..., 0] * np.exp2(powers).astype(F32)
        blocks[..., at : at + 4] = scales.astype("<f4")[..., None].view(np.uint8)
    return Weight.from_bytes(weight.layout, blocks.reshape(rows, -1), weight.shape)


def extreme(source: CaseData, layout: str, columns: int) -> Weight:
    """Make rows of every extreme code byte, then rows of every kind of scale."""
    kind = LAYOUTS[layout]
    rows = len(CODE_BYTES) + len(HALF_SCALES)
    weight = typical(source, layout, rows, columns)
    if kind.kind == "float":
        return Weight.from_floats(source.spread(rows, columns, low=-12, high=8))
    return _extreme_blocks(weight, kind) if kind.kind == "blocks" else _extreme_parts(weight)


def _extreme_blocks(weight: Weight, layout: Layout) -> Weight:
    rows, columns = weight.shape
    blocks = weight.parts["raw"].reshape(rows, columns // layout.block, -1).copy()
    recipe = BLOCK_RECIPES[layout.name]
    width = {"MXFP4": 1}.get(layout.name, 4 if layout.words == "f32" else 2)
    fields = [recipe.scale_at] + ([recipe.minimum_at] if recipe.ratio else [])
    for row, byte in enumerate(CODE_BYTES):
        kept = {at: field_of(layout, blocks[row], at, width) for at in fields}
        blocks[row] = byte & 0xFE if layout.name == "e4m3b32" else byte  # its 0x7F is a NaN
        for at, old in kept.items():
            put_field(layout, blocks[row], at, old)
    scales = {
        1: np.array(EXPONENT_SCALES, np.uint8),
        2: np.array(HALF_SCALES, "<u2"),
        4: np.array(FLOAT_SCALES, "<f4"),
    }[width]
    for index, scale in enumerate(scales[:, None].view(np.uint8)):
        for at in fields:
            every = np.broadcast_to(scale, (blocks.shape[1], width))
            put_field(layout, blocks[len(CODE_BYTES) + index], at, every)
    return Weight.from_bytes(layout, blocks.reshape(rows, -1), weight.shape)


def _extreme_parts(weight: Weight) -> Weight:
    parts = {name: array.copy() for name, array in weight.parts.items()}
    for name in parts.keys() & {"codes", "hi", "lo"}:
        limit = 126 if weight.layout is W16 and name == "hi" else 127
        for row, code in enumerate((limit, -limit, 1, -1, 0, 64)):
            parts[name][row] = code
    if weight.layout is W16:
        parts["lo"][:6] = np.array([127, -128, 0, -1, -128, 127], np.int8)[:, None]
    scales = np.array([0, 2.0**-40, 2.0**-39, 2.0**-20, 3e-5, 1.5, 2.0**10], F32)
    parts["scale"][len(CODE_BYTES) :] = scales[:, None]
    return Weight(weight.layout, weight.shape, parts)
