"""Layouts that the kernels do not read themselves, rewritten as one that they read: exact.

GGUF's grids of 1 to 3 bits become codes of 8 bits under sub-scales (`k8`), its ternary codes
`w8b256`: more bytes in memory than in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.numerics.layouts import Weight, unpack

GRIDS = ("IQ3_XXS", "IQ3_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S", "IQ1_M")
NATIVE: Mapping[str, str] = {**dict.fromkeys(GRIDS, "k8"), "TQ1_0": "w8b256", "TQ2_0": "w8b256"}
"""Layouts of the kernels by those that are rewritten."""
SUBS = 16
"""Sub-scales of a block of `k8`, which has 256 columns."""


def native_layout(weight: Weight) -> str:
    """Return the kernels' layout of a weight."""
    if weight.layout.kind == "float":
        return "f32"
    return NATIVE.get(weight.layout.name, weight.layout.name)


def native_parts(weight: Weight, name: str) -> Mapping[str, npt.NDArray[Any]]:
    """Return the parts of some rows as the kernels take them.

    `k8` is blocks of a float32 scale, 16 sub-scales and 256 codes.

    Raises
    ------
    FormatError : a scale is not finite, or 2⁵⁰ or more.
    """
    native = NATIVE.get(weight.layout.name)
    if native is None:
        return weight.parts
    fields = unpack(weight, name)
    if native != "k8":
        return {"codes": fields.codes, "scale": fields.scale}
    assert fields.sub_scales is not None
    rows = len(fields.codes)
    subs = np.repeat(fields.sub_scales, fields.sub // (256 // SUBS), axis=1)
    scale = np.ascontiguousarray(fields.scale, "<f4")[..., None].view(np.int8)
    blocks = [scale, subs.reshape(rows, -1, SUBS), fields.codes.reshape(rows, -1, 256)]
    return {"raw": np.concatenate(blocks, axis=2).view(np.uint8).reshape(rows, -1)}
